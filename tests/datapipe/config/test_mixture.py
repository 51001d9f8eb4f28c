"""A mixture: written out and read back, its schedule and shares, its licences."""

import pickle
from fractions import Fraction
from math import gcd
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from datapipe.config import Mixture, WeightPhase, load_mixture
from datapipe.config.mixture_schedule import STAIRS
from datapipe.config.stage_use import StageUse, parse_stage

DATA: dict[str, Any] = {
    "name": "m",
    "output": "runs/m",
    "sources": {"web": {"path": "a", "weight": 0.7}, "code": {"path": ["b", "c"], "weight": "1/3", "stages": ["dedup.exact"]}},
    "stages": ["normalize.unicode", {"filter.language": {"keep": ["en"], "as": "english"}}],
}


def reloaded(folder: Path, mixture: Mixture) -> Mixture:
    path = folder / "resolved.yaml"
    path.write_text(mixture.resolved_yaml())
    return load_mixture(path)


def test_resolved_yaml_is_read_back_as_an_equal_mixture(tmp_path: Path):
    phases = {"tokens": "1e9", "phases": [{"until": "1/3", "weights": {"web": "1/7"}}, {"until": 1, "weights": {"code": 3}}]}
    options = {"pattern": "a${b}$${c}", "none": None, "year": "2024", "no": "no", "date": "2024-01-01", "many": "x\n y\t'\"#: "}
    data = DATA | {
        "mixture": phases,
        "max_quarantined": "0.0007%",
        "execution": {"resources": {"dedup.exact": {"num_gpus": 0.5, "memory": "1GiB"}}},
        "tokenizer": {"path": "t.json", "eos": "</s>"},
        "stages": [*DATA["stages"], {"a.b:C": options}],
    }
    mixture = Mixture.model_validate(data)
    assert reloaded(tmp_path, mixture) == mixture


@pytest.mark.parametrize(
    "taken",
    [
        {"sources": {**DATA["sources"], "old": {"snapshot": "runs/old"}}},
        {"mixture": {"replay": {"from": "runs/old", "share": "5%"}}},
        {"sources": {"old": {"snapshot": "runs/old"}}, "tokenizer": {"path": "t.json"}},
    ],
)
def test_resolved_yaml_of_rows_of_other_snapshots_is_read_back(tmp_path: Path, taken: dict[str, Any]):
    mixture = Mixture.model_validate(DATA | taken)
    assert reloaded(tmp_path, mixture) == mixture


@pytest.mark.medium
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    options=st.dictionaries(
        st.text(min_size=1).filter(lambda key: key not in ("as", "<<")),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3),
        ),
        max_size=4,
    ),
    seed=st.integers(0, 2**64 - 1),
    share=st.floats(0, 0.99),
)
def test_any_option_is_read_back_from_the_resolved_yaml(tmp_path: Path, options: dict[str, Any], seed: int, share: float):
    printable = {_printable(key): _printable(value) for key, value in options.items()}
    mixture = Mixture.model_validate(DATA | {"seed": seed, "validation": share, "stages": [{"a.b": printable}]})
    assert reloaded(tmp_path, mixture) == mixture


def _printable(value: Any) -> Any:
    """YAML holds printable text only, and ends lines with a newline."""
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return "".join(letter for letter in value if letter.isprintable() or letter == "\n") if isinstance(value, str) else value


def test_mixture_survives_pickling_with_its_places(tmp_path: Path):
    path = tmp_path / "m.yaml"
    path.write_text("name: m\noutput: o\nsources:\n  web:\n    path: a\n")
    mixture = load_mixture(path)
    copy = pickle.loads(pickle.dumps(mixture))
    assert copy == mixture
    assert copy.where("sources", "web", "path") == f"{path}:5: sources.web.path"


def test_weight_phases_are_exact_and_name_every_source():
    phases = [{"until": "1/3", "weights": {"web": 0.5, "code": 0.25}}, {"until": "100%", "weights": {"code": 9}}]
    mixture = Mixture.model_validate(DATA | {"mixture": {"tokens": "100B", "phases": phases}})
    assert mixture.weight_phases() == (
        WeightPhase(until_tokens=33_333_333_333, weights={"web": 2, "code": 1}),
        WeightPhase(until_tokens=None, weights={"web": 0, "code": 1}),
    )


def test_resources_of_a_task_are_the_most_any_of_its_stages_asks_for():
    resources = {"a.b": {"num_cpus": 2, "memory": "1KiB"}, "c.d": {"num_gpus": 0.5}}
    execution = Mixture.model_validate(DATA | {"execution": {"resources": resources}}).execution
    assert dict(execution.resources_for(["a.b", "c.d", "e.f"])) == {"num_cpus": 2.0, "num_gpus": 0.5, "memory": 1024.0}
    assert execution.resources_for(["e.f"]) == ()


def test_average_shares_weigh_phases_by_their_length():
    phases = [{"until": "25%", "weights": {"web": 1}}, {"until": 1, "weights": {"web": 1, "code": 3}}]
    mixture = Mixture.model_validate(DATA | {"mixture": {"tokens": 1000, "phases": phases}})
    assert mixture.average_shares() == {"web": Fraction(7, 16), "code": Fraction(9, 16)}
    assert Mixture.model_validate(DATA).average_shares() == {"web": Fraction(21, 31), "code": Fraction(10, 31)}


def test_tokenizer_none_is_a_tokenizer_without_keys_and_is_read_back(tmp_path: Path):
    mixture = Mixture.model_validate(DATA | {"tokenizer": "none", "documents": {"format": "jsonl.zst", "target_bytes": "1MiB"}})
    assert mixture.tokenizer.is_none and mixture.documents.target_bytes == 1 << 20
    assert "tokenizer: none" in mixture.resolved_yaml()
    assert reloaded(tmp_path, mixture) == mixture
    assert not Mixture.model_validate(DATA | {"tokenizer": None}).tokenizer.is_none  # an empty section: the default
    assert Mixture.model_json_schema()["properties"]["tokenizer"]["anyOf"][1] == {"const": "none"}


@pytest.mark.parametrize("entry", ["dedup.exact", {"a.b": {"k": [1]}}, {"a.b": {"as": "c"}}, {"a.b": {"k": 1, "as": "c"}}])
def test_data_of_a_use_is_read_back_as_it_was(entry: object):
    assert parse_stage(entry).to_data() == entry


Shares = st.integers(0, 12)


def mixture_of(own: dict[str, Any], tokens: int, phases: list[dict[str, Any]]) -> Mixture:
    sources = {name: {"path": "a", "weight": weight} for name, weight in own.items()}
    return Mixture.model_validate(
        {"name": "m", "output": "o", "sources": sources, "mixture": {"tokens": tokens, "phases": phases}}
    )


def test_linear_phase_is_a_staircase_from_the_weights_before_to_its_own():
    phases = [
        {"until": "50%", "weights": {"web": 3, "code": 1}},
        {"until": 1, "weights": {"code": 10}, "schedule": "linear"},
    ]
    found = mixture_of({"web": 1, "code": 1}, 1280, phases).weight_phases()
    assert [phase.until_tokens for phase in found] == [*range(640, 1280, 10), None]
    # web goes from 3/4 to 0: the stairs are at 1/128, 3/128, … 127/128 of the way
    assert [phase.weights for phase in found[:3]] == [
        {"web": 3, "code": 1},
        {"web": 381, "code": 131},
        {"web": 375, "code": 137},
    ]
    assert found[-1].weights == {"web": 3, "code": 509}


@pytest.mark.medium
@given(own=st.tuples(Shares, Shares), end=st.tuples(Shares, Shares))
@settings(deadline=None, max_examples=40)
def test_staircase_is_as_near_to_the_line_as_is_declared(own, end):
    if not any(own) or not any(end):
        return
    length = 1000 * STAIRS
    phases = [{"until": 1, "weights": dict(zip("ab", end)), "schedule": "linear"}]
    mixture = mixture_of(dict(zip("ab", own)), length, phases)
    first, last = Fraction(own[0], sum(own)), Fraction(end[0], sum(end))
    drawn, start, furthest = Fraction(0), 0, Fraction(0)
    for phase in mixture.weight_phases():
        assert gcd(*phase.weights.values()) == 1
        stop = phase.until_tokens or length
        share = Fraction(phase.weights["a"], sum(phase.weights.values()))
        for at in (start, (start + stop) // 2, stop):
            line = first * at + (last - first) * Fraction(at * at, 2 * length)
            furthest = max(furthest, abs(drawn + share * (at - start) - line))
        drawn, start = drawn + share * (stop - start), stop
    assert furthest == abs(last - first) * length / (8 * STAIRS**2)
    assert mixture.average_shares()["a"] == drawn / length == (first + last) / 2


def test_rounded_shares_reports_weights_that_are_too_small_to_count():
    phases = [{"until": 0.5, "weights": {"a": 1, "b": 1e-20}}, {"until": 1, "weights": {"a": 1, "b": 1}}]
    assert mixture_of({"a": 1, "b": 1e-20}, 100, []).rounded_shares() == {"b": (1e-20, 2.0**-40)}
    assert mixture_of({"a": 1, "b": 1}, 100, phases).rounded_shares() == {"b": (1e-20, 2.0**-40)}
    assert mixture_of({"a": 1, "b": 1e-20}, 100, phases[1:]).rounded_shares() == {}


def test_linear_phases_that_cannot_be_made_are_refused():
    linear = {"until": 1, "weights": {"a": "999999937/1000000000", "b": 1}, "schedule": "linear"}
    with pytest.raises(ValidationError, match="linear needs weights to start from"):
        mixture_of({"a": 0, "b": 0}, 100, [linear])


WEIGHTS = {"web": {"path": "a", "weight": 3}, "gen": {"path": "b", "weight": 1, "synthetic": {"model": "m"}}}


def _mixture(**more: Any) -> Mixture:
    return Mixture.model_validate({"name": "m", "output": "runs/m", "sources": {"web": {"path": "a"}}, **more})


def _web(**more: Any) -> dict[str, Any]:
    return {"web": {"path": "a", **more}}


def test_a_source_must_have_a_licence_that_is_allowed() -> None:
    with pytest.raises(ValidationError):
        _mixture(licenses=["mit"])
    with pytest.raises(ValidationError):
        _mixture(licenses=["mit", "unknown"], sources=_web(license="gpl-3.0-only"))
    assert _mixture(licenses=["mit", "unknown"]).stages_of("web") == ()
    assert _mixture(licenses="MIT", sources=_web(license="mit OR gpl-3.0-only")).stages_of("web") == ()


def test_documents_with_licences_are_filtered_first_or_where_the_stages_declare() -> None:
    def stages(*listed: Any, allowed: tuple[str, ...] = ("MIT",), **source: Any) -> list[tuple[str, Any]]:
        mixture = _mixture(licenses=allowed, stages=list(listed), sources=_web(license_field="terms", **source))
        return [(use.alias, use.options) for use in mixture.stages_of("web")]

    options = {"field": "terms", "allowed": ["MIT"], "missing": "drop"}
    assert stages("dedup.exact") == [("filter.license", options), ("dedup.exact", {})]
    assert stages("dedup.exact", license="mit")[0] == ("filter.license", options | {"missing": "keep"})
    assert stages("dedup.exact", license="isc")[0] == ("filter.license", options)
    assert stages("dedup.exact", allowed=("MIT", "unknown"))[0][1]["missing"] == "keep"
    named: Any = {"filter.license": {"as": "terms", "missing": "keep"}}
    assert stages("extract.html", named) == [("extract.html", {}), ("terms", options | {"missing": "keep"})]
    assert _mixture(stages=["dedup.exact"], sources=_web(license_field="terms")).stages_of("web") == (
        StageUse(name="dedup.exact", alias="dedup.exact"),
    )
    with pytest.raises(ValidationError):
        stages({"filter.field": {"field": "terms", "drop": ["x"], "as": "filter.license"}})


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({}, False),
        ({"field": "terms", "allowed": ["mit"]}, False),
        ({"allowed": ["MIT", "ISC OR mit"]}, False),
        ({"allowed": ["MIT", "CC-BY-NC-4.0"]}, True),
        ({"allowed": ["MIT", "unknown"]}, True),
        ({"field": "url"}, True),
        ({"mode": "tag"}, True),
        ({"when": {"url": "a"}}, True),
    ],
)
def test_a_filter_in_the_stages_does_not_undo_the_list(options: dict[str, Any], is_refused: bool) -> None:
    def mixture(*listed: Any) -> Mixture:
        return _mixture(licenses=["MIT"], stages=list(listed), sources=_web(license_field="terms", keep=["url"]))

    if not is_refused:
        mixture({"filter.license": options})
        return
    with pytest.raises(ValidationError, match=r"filter.license has options that undo `licenses` \((allowed|field|mode|when)\)"):
        mixture({"filter.license": options})
    mixture("filter.license", {"filter.license": {**options, "as": "second"}})


def test_more_synthetic_text_than_is_allowed_is_refused() -> None:
    assert _mixture(sources=WEIGHTS, mixture={"max_synthetic": "25%"})
    with pytest.raises(ValidationError, match=r"25\.00% of the tokens from sources that models wrote \(gen\), and 24\.90%"):
        _mixture(sources=WEIGHTS, mixture={"max_synthetic": 0.249})
    phases = [{"until": "50%", "weights": {"web": 1}}, {"until": 1, "weights": {"gen": 1}}]
    with pytest.raises(ValidationError, match=r"50\.00%"):
        _mixture(sources=WEIGHTS, mixture={"max_synthetic": 0.4, "tokens": 1000, "phases": phases})
    assert _mixture(sources=WEIGHTS, tokenizer="none", mixture={"max_synthetic": 0})


def test_resolved_yaml_lacks_new_keys_that_have_their_default(tmp_path: Path):
    path = tmp_path / "mixture.yaml"
    path.write_text("name: a\noutput: out\nsources: {web: {path: a.jsonl}}\ntokenizer: {train: {vocab_size: 300}}\n")
    mixture = load_mixture(path)
    new = (
        "bos_aligned",
        "control_tokens",
        "messages",
        "longer",
        "max_document_tokens",
        "template",
        "learn",
        "tools",
        "repository",
        "sample",
        "max_tokens",
    )
    assert [key for key in new if f"{key}:" in mixture.resolved_yaml()] == []
