"""Input files that change, go or are replaced while a run reads them: the run fails, names the file, and mixes nothing."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from datapipe.engine.protocol import Attempt, failure_of
from datapipe.errors import UserError
from datapipe.explore.documents import Inspector
from datapipe.inputs.discovery import discover
from datapipe.inputs.planned_input import ChangedInputError, PlannedInput
from datapipe.stage import FieldNames, InputFile
from datapipe.steps.run_task import run_task
from datapipe.storage.outages import OutageError, StoreRefusedError, StoreSilentError, outage_of
from datapipe.storage.root import open_input, resolve
from stages.read.jsonl import Jsonl
from tests.support import corpora, runs
from tests.support.object_store import object_store

OLD, NEW = "old words of", "new words of"
"""Of equal length, so that a file of one has the size of a file of the other."""

_STAGES = "stages:\n  - filter.length: {min_words: 1}\n"
_NUM_DOCS = 4000


def _content(words: str) -> bytes:
    return corpora.jsonl([{"text": f"{words} document {number:05d}"} for number in range(_NUM_DOCS)])


def _restored(path: Path, status: os.stat_result) -> None:
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 5)


def _appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"text": "one more"}\n')


def _overwritten(path: Path) -> None:
    """With other content of the same size, and its time restored."""
    status = path.stat()
    path.write_bytes(_content(NEW))
    _restored(path, status)


def _replaced(path: Path) -> None:
    """By another file of the same size and time, which was there before the run."""
    other = path.with_name("other")
    other.write_bytes(_content(NEW))
    _restored(other, path.stat())
    os.replace(other, path)


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_pipe(path: Path) -> None:
    """To open it would wait for a writer."""
    path.unlink()
    os.mkfifo(path)


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (_truncated, "changed while the run read it: it had .* bytes"),
    "appended": (_appended, "changed while the run read it: it had .* bytes"),
    "overwritten": (_overwritten, "changed while the run read it: it was written, replaced"),
    "replaced": (_replaced, "changed while the run read it: it was written, replaced"),
    "touched": (lambda path: os.utime(path, ns=(1, 1)), "changed while .* it was modified at .* 1970-01-01 00:00:00.000000001"),
    "deleted": (Path.unlink, "cannot be opened: No such file"),
    "folder": (_a_folder, "cannot be opened: Is a directory"),
    "pipe": (_a_pipe, "cannot be opened: it is no regular file"),
}


class _Interfering(runs.InProcess):
    """Runs tasks one by one; `interfere` is called once, before a task that reads."""

    interfere: Callable[[], None]
    num_before = 0

    def next_attempt(self, timeout_s: float) -> Attempt:
        task, attempt = self.tasks.pop(0)
        if task.step == "web/read":
            self.num_before -= 1
            if self.num_before == -1:
                self.interfere()
        try:
            return Attempt(task=task, attempt=attempt, record=run_task(task, self.root, attempt))
        except Exception as error:
            return Attempt(task=task, attempt=attempt, failure=failure_of(error))


def _engine(interfere: Callable[[], None], num_before: int) -> type[_Interfering]:
    """An engine that calls `interfere` when `num_before` reading tasks have run."""
    return type("Engine", (_Interfering,), {"interfere": staticmethod(interfere), "num_before": num_before})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "web/a.jsonl"
    path.parent.mkdir()
    path.write_bytes(_content(OLD))
    return path


@pytest.fixture
def mixture(tmp_path: Path, path: Path) -> Path:
    """Of one file, which three tasks read."""
    assert 2 << 16 < path.stat().st_size < 3 << 16
    return runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n", _STAGES)


def _texts(output: str) -> list[str | None]:
    return [seen["text"] for seen in Inspector.open(output).find(outcome="kept", count=10_000)]


@pytest.mark.medium
@pytest.mark.parametrize(("change", "num_before"), [("truncated", 0), ("overwritten", 1), ("deleted", 1), ("pipe", 0)])
def test_input_that_changes_after_the_plan_fails_the_run_at_once(
    mixture: Path, path: Path, change: str, num_before: int
) -> None:
    interfere, said = CHANGES[change]
    watcher = runs.Watcher()
    with pytest.raises(UserError, match=f"{path} {said}"):
        runs.run_mixture(mixture, make_engine=_engine(lambda: interfere(path), num_before), watcher=watcher)
    assert watcher.retries == []
    assert watcher.steps == ["web/read"] * num_before


@pytest.mark.slow
@pytest.mark.parametrize("change", [_overwritten, _replaced])
def test_run_after_a_change_that_leaves_size_and_time_mixes_no_contents(
    mixture: Path, path: Path, change: Callable[[Path], None]
) -> None:
    with pytest.raises(UserError, match="changed while the run read it"):
        runs.run_mixture(mixture, make_engine=_engine(lambda: change(path), num_before=2))
    again = runs.run_mixture(mixture, make_engine=runs.InProcess)
    assert again.watcher.steps.count("web/read") == 3
    assert sorted(map(str, _texts(again.mixture.output))) == [f"{NEW} document {number:05d}" for number in range(_NUM_DOCS)]


def _planned(pattern: str) -> InputFile:
    ((file, _),) = discover([pattern], lambda path: Jsonl(), "stat", "here")
    return file


def _read_while(file: InputFile, interfere: Callable[[], None], error: Exception | None = None) -> None:
    """Reads a planned file, to which something happens meanwhile; then the reader may raise."""
    with PlannedInput(file) as planned:
        with planned.open(file.url) as stream:
            stream.read(1000)
            interfere()
            stream.read()
        if error is not None:
            raise error


@pytest.mark.parametrize("change", CHANGES)
def test_planned_input_that_changes_while_it_is_open_is_found_at_the_end(path: Path, change: str) -> None:
    interfere, said = CHANGES[change]
    with pytest.raises(ChangedInputError, match=f"{path} {said}"):
        _read_while(_planned(str(path)), lambda: interfere(path))


def test_planned_input_that_is_left_alone_may_be_opened_often_beside_other_files(path: Path) -> None:
    other = path.with_name("words")
    other.write_bytes(b"a")
    with PlannedInput(_planned(str(path))) as planned:
        for _ in range(2):
            with planned.open(str(path)) as stream:
                assert stream.read() == _content(OLD)
        other.write_bytes(b"two")
        with planned.open(str(other)) as stream:
            assert stream.read() == b"two"


def test_error_of_a_reader_over_a_changed_input_is_reported_as_the_change(path: Path) -> None:
    error = OSError(5, "the file ends")
    with pytest.raises(ChangedInputError) as raised:
        _read_while(_planned(str(path)), lambda: _truncated(path), error)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    ("error", "told", "said"),
    [
        (ValueError("no text"), ValueError, "no text"),
        (OSError(5, "no disk"), OutageError, "{path}: no answer: "),
        (StoreSilentError(5, "no network", "s3://b/a"), OutageError, "s3://b/a: no answer: "),
        (TimeoutError("late"), OutageError, "{path}: no answer: "),
        (StoreRefusedError(5, "403 Forbidden: AccessDenied", "s3://b/a"), UserError, "{path}: .*AccessDenied"),
    ],
    ids=["of the reader", "no disk", "no network", "late", "refused"],
)
def test_error_over_an_unchanged_input_is_reported_as_what_it_is_with_the_file(
    path: Path, error: Exception, told: type[Exception], said: str
) -> None:
    with pytest.raises(told, match=said.format(path=path)) as raised:
        _read_while(_planned(str(path)), lambda: None, error)
    assert told is not ValueError or raised.value.__notes__ == [f"while {path} was read"]
    if isinstance(raised.value, OutageError):
        assert outage_of(raised.value, "s3://other/out") == raised.value.outage


@pytest.mark.medium
def test_file_that_is_cut_short_between_two_reads_ends_the_reading(path: Path) -> None:
    """A reader that waits for bytes up to the size which the file had would wait forever."""

    def cut(url: str) -> Any:
        stream = open_input(url)
        os.truncate(path, 2000)
        return stream

    file = _planned(str(path))
    for split in Jsonl().cut(file, 64 << 10):
        path.write_bytes(_content(OLD))
        with pytest.raises(OSError, match=r"the file ends at byte .*, expected .* bytes"):
            list(Jsonl().read(split, FieldNames(), cut))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_object_that_changes_after_the_plan_or_while_it_is_read_is_found() -> None:
    with object_store("corpus") as query:
        url = f"s3://corpus/web/a.jsonl{query}"
        _put(url, b"old content")
        file = _planned(url)
        _read_while(file, lambda: None)
        with pytest.raises(ChangedInputError, match="changed while the run read it"):
            _read_while(file, lambda: _put(url, b"new content"))  # of the same size, and within the same second
        _put(url, b"new and longer content")
        with pytest.raises(ChangedInputError, match="it had 11 bytes"):
            _read_while(file, lambda: None)
        bucket, key = resolve(url)
        bucket.delete(key)
        with pytest.raises(ChangedInputError, match="cannot be opened: No such file or directory"):
            _read_while(file, lambda: None)


def _put(url: str, content: bytes) -> None:
    bucket, key = resolve(url)
    with closing(bucket.create(key)) as stream:
        stream.write(content)
