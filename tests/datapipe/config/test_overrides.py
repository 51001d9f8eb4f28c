from typing import Any

import pytest

from datapipe.config.origins import Origins
from datapipe.config.overrides import apply_override
from datapipe.errors import UserError

ORIGINS = Origins(file="m.yaml")


def base() -> dict[str, Any]:
    return {
        "seed": 17,
        "sources": {"web": {"path": "a", "weight": 1}, "web.v1": {"path": "b"}},
        "stages": ["dedup.exact", {"filter.length": {"min_words": 3, "as": "short"}}, {"filter.language": None}],
        "mixture": {"phases": [{"until": 0.5}]},
        "shards": None,
    }


def overridden(override: str) -> dict[str, Any]:
    return apply_override(base(), ORIGINS, override)[0]


SHORT = {"filter.length": {"min_words": 5, "as": "short"}}


@pytest.mark.parametrize(
    ("override", "section", "changed"),
    [
        ("seed=18", "seed", 18),
        ("seed='18'", "seed", "18"),
        ("mixture.tokens=1e9", "mixture", {"phases": [{"until": 0.5}], "tokens": 1e9}),
        ("mixture.phases.0.until=80%", "mixture", {"phases": [{"until": "80%"}]}),
        ("pack.sequence_length=512", "pack", {"sequence_length": 512}),  # an absent section
        ("shards.format=parquet", "shards", {"format": "parquet"}),  # an empty one
        ("sources.web.path=[a=1, b]", "sources.web", {"path": ["a=1", "b"], "weight": 1}),
        ("sources.web.v1.weight=0.2", "sources.web.v1", {"path": "b", "weight": 0.2}),  # the longest name that fits
        ("sources.code={path: c}", "sources.code", {"path": "c"}),
        ("stages.1.min_words=5", "stages.1", SHORT),
        ("stages[1].min_words=5", "stages.1", SHORT),
        ("stages.short.min_words=5", "stages.1", SHORT),
        ("stages.dedup.exact.scope=source", "stages.0", {"dedup.exact": {"scope": "source"}}),
        ("stages.filter.language.keep=[en]", "stages.2", {"filter.language": {"keep": ["en"]}}),
        ("stages=[a.b]", "stages", ["a.b"]),
        ("stages.0=a.b", "stages.0", "a.b"),
    ],
)
def test_value_is_yaml_at_a_path(override: str, section: str, changed: object):
    found = overridden(override)
    name, _, part = section.partition(".")
    assert (found[name] if not part else found[name][int(part) if name == "stages" else part]) == changed
    assert {key: value for key, value in found.items() if key != name} == {k: v for k, v in base().items() if k != name}


def test_data_given_is_left_as_it_was():
    data = base()
    apply_override(data, ORIGINS, "stages.0.scope=source")
    assert data == base()


def test_replaced_values_say_they_come_from_the_command_line():
    _, origins = apply_override(base(), Origins(file="m.yaml", locations={("seed",): "m.yaml:1"}), "pack.method=concat")
    assert origins.where(("pack", "method")) == "--set: pack.method"
    assert origins.where(("seed",)) == "m.yaml:1: seed"


@pytest.mark.parametrize(
    ("override", "place", "told"),
    [
        ("seed", "--set", "'seed', expected KEY=VALUE"),
        ("=3", "--set", "'=3', expected KEY=VALUE"),
        ("a..b=3", "--set", "'a..b'"),
        ("seed.x=1", "--set: seed.x", "17, which has no keys"),
        ("sources.wbe.weight=2", "--set: sources.wbe", "'web'? Expected one of: web, web.v1."),
        ("stages.9.x=1", "--set: stages.9.x", "an index from 0 to 2, or one of: dedup.exact, short, filter.language."),
        ("stages.filter.lenguage.x=1", "--set: stages.filter.lenguage.x", "Did you mean 'filter.language'?"),
        ("mixture.phases.1.until=1", "--set: mixture.phases.1.until", "an index from 0 to 0."),
        ("seed=[1", "--set seed:1", "invalid YAML"),
    ],
)
def test_bad_override_is_refused(override: str, place: str, told: str):
    with pytest.raises(UserError) as caught:
        apply_override(base(), ORIGINS, override)
    assert str(caught.value).startswith(f"{place}: ")
    assert told in str(caught.value)
