import pytest

from datapipe.config.stage_use import StageUse, parse_stage


def test_stage_without_options_is_its_name():
    use = parse_stage("dedup.exact")
    assert (use.name, use.alias, use.options) == ("dedup.exact", "dedup.exact", {})


def test_stage_with_options_loses_as():
    use = parse_stage({"filter.language": {"keep": ["en"], "as": "lid2"}})
    assert (use.name, use.alias, use.options) == ("filter.language", "lid2", {"keep": ["en"]})


@pytest.mark.parametrize("entry", ["dedup.exact", {"a.b": {"k": [1]}}, {"a.b": {"as": "c"}}, {"a.b": {"k": 1, "as": "c"}}])
def test_data_of_a_use_is_read_back_as_it_was(entry: object):
    assert parse_stage(entry).to_data() == entry


def test_equality_ignores_where_a_use_stands():
    here = StageUse(name="a.b", alias="a.b", options={"k": 1}, where="m.yaml:3: stages[0]")
    there = StageUse(name="a.b", alias="a.b", options={"k": 1}, where="m.yaml:9: stages[4]")
    assert here == there
    assert len({here, there}) == 1
    assert here != StageUse(name="a.b", alias="a.b", options={"k": 2})
    assert here != StageUse(name="a.b", alias="c", options={"k": 1})
