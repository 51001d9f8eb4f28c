import pickle

import pytest

from datapipe.config.stage_use import StageUse, parse_stage


def test_stage_without_options_is_its_name():
    use = parse_stage("dedup.exact")
    assert (use.name, use.alias, use.options) == ("dedup.exact", "dedup.exact", {})


def test_stage_with_options_loses_as():
    use = parse_stage({"filter.language": {"keep": ["en"], "as": "lid2"}})
    assert (use.name, use.alias, use.options) == ("filter.language", "lid2", {"keep": ["en"]})


def test_stage_with_nothing_below_it_has_no_options():
    assert parse_stage({"filter.language": None}) == parse_stage("filter.language")


def test_user_class_is_a_stage():
    use = parse_stage({"my_company.clean:DropBoilerplate": {"min_lines": 3}})
    assert (use.name, use.alias) == ("my_company.clean:DropBoilerplate", "my_company.clean:DropBoilerplate")


def test_reading_leaves_the_data_as_it_was():
    entry = {"filter.language": {"as": "x"}}
    parse_stage(entry)
    assert entry == {"filter.language": {"as": "x"}}


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


def test_use_survives_pickling_with_its_place():
    use = StageUse(name="a.b", alias="a.b", where="m.yaml:3: stages[0]")
    assert pickle.loads(pickle.dumps(use)).where == "m.yaml:3: stages[0]"
