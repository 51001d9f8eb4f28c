"""Why `plan` says that a step would run: after each kind of change, in words that name it."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import pytest

from datapipe import catalogue
from datapipe.config import load_mixture
from datapipe.engine.history import why
from datapipe.engine.run import planned
from datapipe.ledger.names import RUN
from datapipe.plan.reasons import flat, stage_changes
from datapipe.storage import Root
from tests.support import corpora, runs
from tests.support.ledger_files import drop_record

pytestmark = pytest.mark.medium

STAGES = "stages:\n  - filter.length: {min_chars: 20}\n  - dedup.exact\n"
TAIL = "tokenizer: {train: {vocab_size: 300, sample_bytes: 16KiB}}\npack: {sequence_length: 64}\n"


def run_two_sources(folder: Path) -> Path:
    """The mixture of a finished run over two sources."""
    source = ""
    for number, name in enumerate(("web", "books")):
        corpora.write_jsonl(folder / name / "a.jsonl", corpora.documents(number, 30))
        corpora.write_jsonl(folder / name / "b.jsonl", corpora.documents(number + 7, 30))
        source += f"  {name}: {{path: {folder}/{name}/*.jsonl}}\n"
    file = runs.write_mixture(folder, source, STAGES, TAIL)
    runs.run_mixture(file, make_engine=runs.InProcess)
    return file


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_two_sources(tmp_path_factory.mktemp("reasons"))


@pytest.fixture
def mixture(ran: Path, tmp_path: Path) -> Path:
    """The mixture of a finished run, with a copy of its output."""
    copytree(ran.parent / "out", tmp_path / "out")
    copy = tmp_path / "mixture.yaml"
    copy.write_text(ran.read_text().replace(f"output: {ran.parent}/out", f"output: {tmp_path}/out"))
    return copy


def reasons(file: Path, *overrides: str) -> dict[str, list[str]]:
    mixture = load_mixture(file, overrides)
    request, plan = planned(mixture)
    return why(Root(mixture.output), request, plan)


def test_reasons_of_an_unchanged_mixture_are_none_and_of_a_new_output_that_all_is_new(mixture: Path, tmp_path: Path) -> None:
    assert reasons(mixture) == {}
    found = reasons(mixture, f"output={tmp_path}/elsewhere")
    assert "web/read" in found and set(map(tuple, found.values())) == {("new",)}


def test_reasons_of_another_sequence_length_are_the_option_before_and_now(mixture: Path) -> None:
    assert reasons(mixture, "pack.sequence_length=[32]") == {
        "web/pack": ["options changed: pack.sequence_length 64 → 32"],
        "books/pack": ["options changed: pack.sequence_length 64 → 32"],
    }
    assert reasons(mixture, "pack.sequence_length=[64, 32]") == {"web/pack-32": ["new"], "books/pack-32": ["new"]}


def test_reasons_of_changed_inputs_count_files_of_that_source_alone(tmp_path: Path) -> None:
    mixture = run_two_sources(tmp_path)
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
    assert reasons(mixture)["web/read"] == ["options changed: filter.length.min_chars 20 → 30"]
    mixture.write_text(text.replace("  - dedup.exact", "  - normalize.unicode\n  - dedup.exact"))
    assert reasons(mixture)["books/read"] == ["added normalize.unicode"]
    mixture.write_text(text.replace("  - filter.length: {min_chars: 20}\n", ""))
    assert reasons(mixture)["books/read"] == ["left out filter.length"]
    mixture.write_text(text.replace("min_chars: 20", "min_chars: 20, min_words: 3"))
    default = catalogue.stage_class("filter.length").model_fields["min_words"].default
    assert reasons(mixture)["web/read"] == [f"options changed: filter.length.min_words {flat(default)['']} → 3"]


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
    drop_record(root, pack["tasks"][0])
    assert reasons(mixture) == {"web/pack": ["the last run did not commit it"]}


def test_flat_options_are_by_dotted_key_without_stages() -> None:
    phases = [{"tokens": 5, "weights": {"web": 1}}, {"tokens": 7, "weights": {"web": 2}}]
    sources = {"web": {"keep": ["a", "b"], "stages": ["dedup.exact"]}}
    assert flat({"stages": [{"filter.length": {"min_chars": 2}}], "sources": sources, "phases": phases, "seed": None}) == {
        "sources.web.keep": "a, b",
        "phases[0].tokens": "5",
        "phases[0].weights.web": "1",
        "phases[1].tokens": "7",
        "phases[1].weights.web": "2",
        "seed": "none",
    }


_REPETITION = "filter.gopher_repetition"
_BEFORE = ["normalize.unicode", {"filter.length": {"min_chars": 20}}, _REPETITION, "dedup.exact"]


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        (_BEFORE, []),
        (
            [*_BEFORE[:2], {_REPETITION: {"max_duplicate_5_grams": 0.35}}, _BEFORE[3]],
            [f"{_REPETITION}.max_duplicate_5_grams 0.15 → 0.35"],
        ),
        ([*_BEFORE[:2], {_REPETITION: {"max_duplicate_5_grams": 0.15}}, _BEFORE[3]], []),
        ([{"mine:Shouts": {"share": 0.5, "of": ["a", "b"]}}, *_BEFORE], ["added mine:Shouts {share: 0.5, of: a, b}"]),
        ([*_BEFORE, {"dedup.exact": {"as": "again"}}], ["added again (dedup.exact)"]),
        (_BEFORE[:3], ["left out dedup.exact"]),
        ([_BEFORE[1], _BEFORE[0], *_BEFORE[2:]], ["order of stages changed"]),
        ([_BEFORE[0], {"filter.url": {"as": "filter.length"}}, *_BEFORE[2:]], ["filter.length: filter.length → filter.url"]),
        (
            [_BEFORE[0], {"filter.length": {"min_chars": 20, "unknown_option": 1}}, *_BEFORE[2:]],
            ["filter.length.unknown_option not given → 1"],
        ),
    ],
)
def test_changes_of_stages_are_told_by_their_names_in_the_run(now: list[object], lines: list[str]) -> None:
    before, after = ({"sources": {"web": {}, "books": {}}, "stages": stages} for stages in (_BEFORE, now))
    assert stage_changes(before, after) == lines


@pytest.mark.parametrize("stages", [None, 7, {"dedup.exact": {}}, [{"a": 1, "b": 2}], [3], ["no stage"]])
def test_changes_from_stages_that_cannot_be_read_are_that_all_are_new(stages: object) -> None:
    before = {"sources": {"web": {}}, "stages": stages}
    assert stage_changes(before, {"sources": {"web": {}}, "stages": ["dedup.exact"]}) == ["added dedup.exact"]


def test_changes_of_the_stages_of_some_sources_name_these() -> None:
    sources = {name: {"stages": None} for name in "abcde"}
    before = {"sources": sources, "stages": ["dedup.exact"]}
    own = {"stages": ["dedup.exact", "normalize.unicode"]}
    assert stage_changes(before, before | {"sources": sources | {"a": own}}) == ["added normalize.unicode (of a)"]
    many = dict.fromkeys("abcd", own)
    assert stage_changes(before, before | {"sources": sources | many}) == ["added normalize.unicode (of a, b, c and 1 more)"]
    assert stage_changes(before, before | {"sources": dict.fromkeys("abcde", own)}) == ["added normalize.unicode"]
