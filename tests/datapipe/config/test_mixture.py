import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datapipe.config import Mixture, WeightPhase, load_mixture
from datapipe.config.stage_use import StageUse

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
    seed=st.integers(min_value=0),
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


def test_equality_ignores_where_values_were_written(tmp_path: Path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("name: m\noutput: o\nsources: {web: {path: a}}\nstages: [a.b]\n")
    second.write_text("stages:\n  - a.b\nsources:\n  web:\n    path: [a]\nname: m\noutput: o\n")
    assert load_mixture(first) == load_mixture(second)
    assert load_mixture(first) != load_mixture(second, ["seed=1"])


def test_stages_of_a_source_are_its_own_or_the_mixtures():
    mixture = Mixture.model_validate(DATA)
    assert [use.alias for use in mixture.stages_of("web")] == ["normalize.unicode", "english"]
    assert mixture.stages_of("code") == (StageUse(name="dedup.exact", alias="dedup.exact"),)


def test_weight_phases_without_phases_is_one_for_ever():
    assert Mixture.model_validate(DATA).weight_phases() == (WeightPhase(until_tokens=None, weights={"web": 21, "code": 10}),)


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


def test_every_option_says_what_it_is():
    schema = Mixture.model_json_schema()
    models = {"Mixture": schema} | schema["$defs"]
    silent = [
        f"{model}.{name}"
        for model, definition in models.items()
        for name, field in definition["properties"].items()
        if not field.get("description")
    ]
    assert silent == []


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


def test_keys_that_nothing_reads_are_found_by_what_differs_from_the_defaults():
    text = DATA | {"tokenizer": "none"}
    assert Mixture.model_validate(text | {"shards": {"format": "arrow"}}).unused_keys() == []
    strata = {"web": DATA["sources"]["web"] | {"strata": {"by": "score", "bounds": [1]}}}
    unused = Mixture.model_validate(
        text | {"pack": {"sequence_length": 64}, "validation": "1%", "sources": strata}
    ).unused_keys()
    assert unused == ["validation", "pack", "sources.web.strata"]
    assert Mixture.model_validate(DATA | {"documents": {"format": "jsonl.zst"}}).unused_keys() == ["documents"]
