"""Why `plan` says that a step would run: after each kind of change, in words that name it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datapipe.config import load_mixture
from datapipe.engine.history import why
from datapipe.engine.run import planned
from datapipe.ledger.names import RUN
from datapipe.plan.reasons import flat
from datapipe.storage import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

STAGES = "stages:\n  - filter.length: {min_chars: 20}\n  - dedup.exact\n"
TAIL = "tokenizer: {train: {vocab_size: 300, sample_bytes: 16KiB}}\npack: {sequence_length: 64}\n"


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """The mixture of a finished run over two sources."""
    source = ""
    for number, name in enumerate(("web", "books")):
        corpora.write_jsonl(tmp_path / name / "a.jsonl", corpora.documents(number, 30))
        corpora.write_jsonl(tmp_path / name / "b.jsonl", corpora.documents(number + 7, 30))
        source += f"  {name}: {{path: {tmp_path}/{name}/*.jsonl}}\n"
    file = runs.write_mixture(tmp_path, source, STAGES, TAIL)
    runs.run_mixture(file, make_engine=runs.InProcess)
    return file


def reasons(file: Path, *overrides: str) -> dict[str, list[str]]:
    mixture = load_mixture(file, overrides)
    request, plan = planned(mixture)
    return why(Root(mixture.output), request, plan)


def test_reasons_of_an_unchanged_mixture_are_none(mixture: Path) -> None:
    assert reasons(mixture) == {}


def test_reasons_of_an_output_without_a_run_are_that_every_step_is_new(mixture: Path, tmp_path: Path) -> None:
    found = reasons(mixture, f"output={tmp_path}/elsewhere")
    assert "web/read" in found and set(map(tuple, found.values())) == {("new",)}


def test_reasons_of_another_sequence_length_are_the_option_before_and_now(mixture: Path) -> None:
    assert reasons(mixture, "pack.sequence_length=[32]") == {
        "web/pack": ["options changed: pack.sequence_length 64 → 32"],
        "books/pack": ["options changed: pack.sequence_length 64 → 32"],
    }
    assert reasons(mixture, "pack.sequence_length=[64, 32]") == {"web/pack-32": ["new"], "books/pack-32": ["new"]}


def test_reasons_of_changed_inputs_count_files_of_that_source_alone(mixture: Path, tmp_path: Path) -> None:
    (tmp_path / "web/a.jsonl").unlink()
    corpora.write_jsonl(tmp_path / "web/b.jsonl", corpora.documents(9, 31))
    for name in ("c", "d"):
        corpora.write_jsonl(tmp_path / f"web/{name}.jsonl", corpora.documents(9, 3))
    found = reasons(mixture)
    assert found["web/read"] == ["input files changed: 2 added, 1 removed, 1 changed"]
    assert "books/read" not in found
    assert found["dedup.exact/match"] == ["a step before it runs"]


def test_reasons_of_a_stage_are_its_options_that_it_is_added_or_left_out(mixture: Path) -> None:
    text = mixture.read_text()
    mixture.write_text(text.replace("min_chars: 20", "min_chars: 30"))
    assert reasons(mixture)["web/read"] == ["options changed: stages.filter.length.min_chars 20 → 30"]
    mixture.write_text(text.replace("  - dedup.exact", "  - normalize.unicode\n  - dedup.exact"))
    assert reasons(mixture)["books/read"] == ["normalize.unicode added"]
    mixture.write_text(text.replace("  - filter.length: {min_chars: 20}\n", ""))
    assert reasons(mixture)["books/read"] == ["filter.length left out"]


def test_reasons_of_changed_code_name_the_stage_or_datapipe(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(load_mixture(mixture).output)
    run = json.loads(root.read_bytes(RUN))
    for stages in run["facts"]["stages"].values():
        stages["filter.length"] = ["other", "other"]
    run["facts"]["code"]["pack"] = "other"
    for step in run["steps"]:
        step["tasks"] = [f"{task[1:]}0" for task in step["tasks"]]
    root.write_atomic(RUN, json.dumps(run).encode())
    for path, _ in root.list_files("work/ledger"):
        root.delete(path)
    found = reasons(mixture)
    assert found["web/read"] == ["code of filter.length changed"]
    assert found["web/pack"] == ["a step before it runs"]


def test_reasons_of_a_run_without_facts_are_still_told(mixture: Path) -> None:
    """An earlier version wrote none."""
    root = Root(load_mixture(mixture).output)
    run = json.loads(root.read_bytes(RUN))
    del run["facts"]
    root.write_atomic(RUN, json.dumps(run).encode())
    assert reasons(mixture, "pack.sequence_length=[32]")["web/pack"] == ["options changed: pack.sequence_length 64 → 32"]
    mixture.write_text(mixture.read_text().replace("min_chars: 20", "min_chars: 30"))
    assert reasons(mixture)["web/read"] == ["its inputs, or an option, changed"]


def test_reasons_of_tasks_that_were_planned_and_not_committed(mixture: Path) -> None:
    root = Root(load_mixture(mixture).output)
    run = json.loads(root.read_bytes(RUN))
    (pack,) = [step for step in run["steps"] if step["id"] == "web/pack"]
    root.delete(f"work/ledger/{pack['tasks'][0]}.json")
    assert reasons(mixture) == {"web/pack": ["the last run did not commit it"]}


def test_flat_options_of_stages_are_below_the_name_in_the_run() -> None:
    listed = ["dedup.exact", {"filter.length": {"min_chars": 2}}, {"filter.length": {"as": "long", "min_chars": 9}}]
    assert flat({"stages": listed, "seed": 3, "pack": {"sequence_length": [8, 9]}}) == {
        "stages.filter.length.min_chars": "2",
        "stages.long.as": "long",
        "stages.long.min_chars": "9",
        "seed": "3",
        "pack.sequence_length": "8, 9",
    }
