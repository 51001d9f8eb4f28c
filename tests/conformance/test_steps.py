"""What every kind of step must do: run twice, stopped anywhere, retried, over damaged files, and in bounded memory.

Kinds are those of `kinds.KINDS`; a new kind fails the first test until a run here has it.
"""

import errno
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from datapipe.engine.protocol import Attempt, failure_of
from datapipe.errors import DatapipeError
from datapipe.records.names import ATTEMPTS
from datapipe.records.outputs import OutputFile, Record
from datapipe.steps.kind import Task
from datapipe.steps.kinds import KINDS
from datapipe.steps.run_task import run_task
from datapipe.storage.outages import OutageError
from datapipe.storage.root import Root
from tests.support import corpora, runs, scale_corpus
from tests.support.fasttext_files import Recipe
from tests.support.ledger_files import stored_records
from tests.support.task_processes import FreshTasks, fresh_tasks

pytestmark = pytest.mark.medium

OF_DOCUMENTS, OF_SHARDS = ("tokenizer=none",), ("sources.web.max_tokens=2k",)
_TAIL = """
validation: 5%
tokenizer: {train: {vocab_size: 300, sample_bytes: 64KiB}}
pack: {sequence_length: 64}
documents: {target_bytes: 8KiB}
execution: {split_bytes: 16KiB, bucket_bytes: 32KiB, check_disk: false}
"""

NAMES = [kind.kind for kind in KINDS]

MOST_RUNS, MOST_FILES = "datapipe.steps.runs.MOST_RUNS", "datapipe.steps.fold.MOST_FILES"


class Recorded(runs.LastFirst):
    """Remembers every task with its record."""

    def __init__(self, root: Root, request: Any, done: list[tuple[Task, Record]]) -> None:
        super().__init__(root, request)
        self.done = done

    def next_attempt(self, timeout_s: float) -> Any:
        attempt = super().next_attempt(timeout_s)
        self.done.append((attempt.task, attempt.record))
        return attempt


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    for number in range(4):
        corpora.write_jsonl(folder / f"web/{number}.jsonl", corpora.documents(number, 25, exact=0.2))
    model = Recipe(labels=("0", "hq")).write(folder / "quality.bin")
    scored = f"{{model: {model}, keep_share: 80%, score_column: quality}}"
    stages = f"stages:\n  - filter.classifier: {scored}\n  - dedup.minhash: {{components_bytes: 0}}\n"
    split = "{by: [{column: quality, quantiles: 3}], repeat: {'2': 1.5}}"
    return runs.write_mixture(folder, f"  web: {{path: {folder}/web/*.jsonl, split: {split}}}\n", stages, _TAIL)


@pytest.fixture(scope="module")
def ran(mixture: Path) -> tuple[Path, dict[str, tuple[Task, Record]]]:
    """The output of two runs that merge exchanges of three files, and of each kind the task with the most input files."""
    done: list[tuple[Task, Record]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MOST_RUNS, 2)
        patch.setattr(MOST_FILES, 2)
        for overrides in (OF_SHARDS, OF_DOCUMENTS):
            runs.run_mixture(mixture, overrides=overrides, make_engine=lambda root, request: Recorded(root, request, done))
    found: dict[str, tuple[Task, Record]] = {}
    for task, record in sorted(done, key=lambda each: len(_input_files(each[0]))):
        found[task.kind] = task, record
    return mixture.parent / "out", found


@pytest.fixture
def root(ran: tuple[Path, Any]) -> Root:
    """The output. Tests add attempts to it, and put back what they damage."""
    return Root(str(ran[0]))


def _input_files(part: Any) -> list[OutputFile]:
    """The committed files that a task, or a part of one, names."""
    if isinstance(part, OutputFile):
        return [part]
    if is_dataclass(part):
        return [file for each in fields(part) for file in _input_files(getattr(part, each.name))]
    if isinstance(part, Mapping):
        return _input_files(tuple(part.values()))
    return [file for each in part for file in _input_files(each)] if isinstance(part, tuple) else []


def _made(record: Record) -> dict[str, Any]:
    """What two attempts at a task must agree on: all but the folder, the time and the memory."""
    metrics = record.metrics.to_json()
    for name in ("seconds", "peak_bytes", "work"):
        metrics.pop(name, None)
    named = {kind: [replace(file, path=Path(file.path).name) for file in files] for kind, files in record.outputs.items()}
    return {"outputs": named, "metrics": metrics, "fingerprint": record.fingerprint}


def test_steps_of_every_kind_are_in_the_runs(ran: tuple[Path, Any]) -> None:
    assert ran[1].keys() == set(NAMES)


@pytest.mark.parametrize("kind", NAMES)
def test_step_again_pickled_makes_the_same_in_a_separate_folder(ran: tuple[Path, Any], root: Root, kind: str) -> None:
    task, record = ran[1][kind]
    copy = pickle.loads(pickle.dumps(task))
    assert copy == task
    for attempt in ("second", "third"):
        before = {path for path, _ in root.list_files("")}
        again = run_task(copy, root, attempt)
        assert _made(again) == _made(record)
        paths = {file.path for files in again.outputs.values() for file in files}
        assert {path for path, _ in root.list_files("")} - before == paths
        assert all(root.checksum(file.path) == (file.checksum, file.bytes) for file in again.of("documents"))


@pytest.mark.parametrize("kind", NAMES)
def test_step_that_fails_at_its_end_leaves_nothing_and_the_next_attempt_makes_the_same(ran, root, kind, monkeypatch) -> None:
    task, record = ran[1][kind]
    before = root.list_files(ATTEMPTS)

    def full(paths: Sequence[Path]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(paths[0]))

    with monkeypatch.context() as patch:
        patch.setattr("datapipe.steps.run_task.sync_all", full)
        if any(record.outputs.values()):
            with pytest.raises(OutageError, match="the disk is full"):
                run_task(task, root, "failed")
    assert root.list_files(ATTEMPTS) == before
    assert _made(run_task(task, root, "second")) == _made(record)


def _damage(path: Path, content: bytes, damage: str, number: int) -> None:
    path.unlink()  # a published file may be a link to it
    if damage == "flipped":
        position = len(content) * (1 + number % 3) // 4
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("kind", NAMES)
def test_step_over_damaged_input_names_the_file_or_does_not_need_the_damaged_part(ran, root, kind, damage) -> None:
    task, record = ran[1][kind]
    num_found = 0
    files = list({file.path: file for file in _input_files(task)}.values())[:3]
    for number, file in enumerate(files):
        path = Path(root.path(file.path))
        content = path.read_bytes()
        _damage(path, content, damage, number)
        error = None
        try:
            assert _made(run_task(task, root, f"over-{number}")) == _made(record)
        except (DatapipeError, OSError) as raised:
            error = raised
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        if error is not None:
            assert Path(file.path).name in str(error)
            assert damage == "gone" or failure_of(error).kind == "damage"
            num_found += 1
    assert num_found or not files


class Stopping(runs.InProcess):
    """Stops the run after some tasks."""

    left = 0

    def next_attempt(self, timeout_s: float) -> Any:
        if type(self).left == 0:
            raise KeyboardInterrupt
        type(self).left -= 1
        return super().next_attempt(timeout_s)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [OF_SHARDS, OF_DOCUMENTS])
def test_steps_of_a_run_that_is_stopped_again_and_again_run_once_each_to_the_same_output(
    mixture, tmp_path, overrides, monkeypatch
) -> None:
    monkeypatch.setattr(MOST_RUNS, 2)
    monkeypatch.setattr(MOST_FILES, 2)

    def run(name: str, **options: Any) -> runs.Finished:
        return runs.run_mixture(mixture, output=tmp_path / name, overrides=overrides, **options)

    expected = run("at-once", make_engine=runs.InProcess)
    ran: list[str] = []
    finished, num_stops = None, 0
    while finished is None:
        watcher = runs.Watcher()
        Stopping.left = len(expected.watcher.records) // 4
        try:
            finished = run("stopped", make_engine=Stopping, watcher=watcher)
        except KeyboardInterrupt:
            num_stops += 1
            assert num_stops < 20
        ran += [record.fingerprint for record in watcher.records]
    assert num_stops > 2
    assert finished.snapshot == expected.snapshot
    assert len(ran) == len(set(ran))
    assert stored_records(tmp_path / "stopped").keys() == stored_records(tmp_path / "at-once").keys()


class InFreshProcesses(runs.InProcess):
    """Runs each task in its own process, and keeps the greatest peak of each kind."""

    def __init__(self, root: Root, request: Any, processes: FreshTasks, peaks: dict[str, int]) -> None:
        super().__init__(root, request)
        self.processes, self.peaks = processes, peaks

    def next_attempt(self, timeout_s: float) -> Any:
        task, attempt = self.tasks.pop(0)
        measured = self.processes.run(task, self.root.url)
        self.peaks[task.kind] = max(self.peaks.get(task.kind, 0), measured.peak_bytes)
        return Attempt(task=task, attempt=attempt, record=measured.record)


_SPLIT = "sources.web.split={by: [topic, {column: score, quantiles: 5}], repeat: {'*/4': 1.5, '7/*': 2}}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_step_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the documents; what a task may hold is about its split, its bucket or its sample."""
    monkeypatch.setattr(MOST_FILES, 3)
    small, large = dict[str, int](), dict[str, int]()
    with fresh_tasks() as processes:
        for num_docs, peaks in ((12_000, small), (48_000, large)):
            folder = tmp_path / str(num_docs)
            corpus = scale_corpus.write(folder / "corpus", num_docs, docs_per_file=3_000, to_split=True)
            execution = {"split_bytes": "1MiB", "bucket_bytes": "1MiB"}
            for stage, overrides in (
                ("dedup.exact", ("shards.target_bytes=1MiB", "sources.web.max_tokens=1M")),
                ("dedup.lines", ("tokenizer=none", "documents.target_bytes=1MiB")),
                (
                    "dedup.exact",
                    ("shards.target_bytes=1MiB", "sources.web.keep=[topic, score]", "sources.web.max_tokens=1M", _SPLIT),
                ),
            ):
                mixture = scale_corpus.write_mixture(folder, corpus, stage, {}, execution)
                make = partial(InFreshProcesses, processes=processes, peaks=peaks)
                runs.run_mixture(mixture, overrides=overrides, make_engine=make)
    assert small.keys() == set(NAMES) - {"merge"}  # tests/datapipe/steps has merge
    assert {kind: peak for kind, peak in small.items() if large[kind] > peak + (64 << 20)} == {}, f"large: {large}"
