"""Input files are read as they were planned: a file that changes while a run reads it fails the run, and the error names it.

    plan: size and times ─▶ InputFile ─▶ task: each time the file is opened, and when it is read ─▶ the same file, or UserError

| compared             | local                     | object store, web server                             |
|----------------------|---------------------------|------------------------------------------------------|
| with the plan        | size, mtime, ctime        | size, time of modification in seconds, else the ETag |
| first open with last | also device and inode     | also the ETag                                        |

No program can set ctime back. The facts enter no fingerprint: a file that was copied with its time between two runs is the
same. An output of a task whose input changed is not committed.

Not found: an object that is replaced by one of its size within the second of its modification, between two tasks that read it;
and a file that was overwritten between two runs with size and time restored: `fingerprint: content` finds it."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import pyarrow as pa

from datapipe.dataclass import replace
from datapipe.errors import UserError
from datapipe.inputs.entries import ETAG
from datapipe.metrics import UnreadableFile
from datapipe.stage.reader import FieldNames, InputFile, ReadBatch, Reader, Rejected
from datapipe.storage.local import FileState
from datapipe.storage.outages import OutageError, outage_of, refusal_of
from datapipe.storage.root import current_state, file_state, is_remote, open_input, whole_seconds

# errors of opening a file that no further attempt corrects
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ELOOP, errno.EACCES, errno.EPERM})
_WHOLE_FILE = 1 << 62
_REMEDY = (
    "Nothing that this task read of it is kept. See that nothing writes to input files while a run reads them, then run the "
    "same command again"
)


class ChangedInputError(UserError):
    """An input file has changed. `has_planned_state`: so that a new plan, by size and time, will not see the change."""

    def __init__(self, message: str, file: InputFile, *, has_planned_state: bool = False) -> None:
        super().__init__(message)
        self.file, self.has_planned_state = file, has_planned_state


class PlannedInput:
    """An input file while a task reads it: a context manager that compares the file once more at the end of its block. Raises
    ChangedInputError for a file that is not the planned one, or may not be opened; OutageError and UserError, with its name,
    where its store does not answer, or refuses it."""

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self._first: FileState | None = None

    def open(self, url: str) -> pa.NativeFile:
        """Opens the file for its reader. Other files, which a reader may need, are not compared."""
        if url != self.file.url:
            return open_input(url)
        with self._reporting_gone():
            stream = open_input(url)
            self._compare(file_state(url, stream))
        return stream

    def read(self, reader: Reader, fields: FieldNames) -> Iterator[tuple[ReadBatch, list[UnreadableFile]]]:
        """The batches of the whole file, each with the damages of the file that it reports, under the file's URL."""
        with self:
            for split in reader.cut(self.file, _WHOLE_FILE):
                for batch in reader.read(split, fields, self.open):
                    yield batch, damages(replace(self.file, path=self.file.url), batch.rejected)

    def compare(self) -> None:
        """Raises ChangedInputError unless the file is still the planned one, and the one that was opened first."""
        with self._reporting_gone():
            self._compare(current_state(self.file.url))

    @contextmanager
    def _reporting_gone(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _GONE:
                raise
            file = self.file
            reason = os.strerror(error.errno or 0) if error.errno != errno.ENXIO else "it is no regular file"
            message = (
                f"{file.url} cannot be opened: {reason}. When the run was planned, it was a file of {file.num_bytes:,} bytes. "
                f"Put it back, or take it out of the source's path; on a cluster, every node must see it and may read it. Then "
                f"run the same command again."
            )
            raise ChangedInputError(message, file) from error

    def _compare(self, state: FileState) -> None:
        difference = _difference(self.file, state) or (self._first and _between(self._first, state))
        if difference:
            has_planned_state = state.num_bytes == self.file.num_bytes and state.mtime_ns == self.file.mtime_ns
            message = f"{self.file.url} changed while the run read it: {difference}. {_REMEDY}."
            raise ChangedInputError(message, self.file, has_planned_state=has_planned_state)
        self._first = state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Compares once more, also after an error of the reader, which the change may have caused."""
        if kind is None:
            try:
                self.compare()
            except Exception as failure:
                self._raise_of_store(failure)
                raise
        elif isinstance(error, Exception) and not isinstance(error, UserError):
            error.add_note(f"while {self.file.url} was read")
            if outage_of(error, self.file.url) is None or not is_remote(self.file.url):  # a silent store is not asked again
                try:
                    self.compare()
                except ChangedInputError as changed:  # the cause of the error
                    raise changed from error
                except OSError:  # the storage fails again, which `error` reports
                    pass
            self._raise_of_store(error)

    def _raise_of_store(self, error: Exception) -> None:
        """Raises the outage or refusal of the file's store behind an error, if there is one, with the file's name."""
        if isinstance(error, UserError):
            return
        outage, refusal = outage_of(error, self.file.url), refusal_of(error)
        if outage is not None:
            raise OutageError(outage) from error
        if refusal is not None:
            raise UserError(f"{self.file.url}: {refusal}, and run the same command again.") from error


def changed_inputs(files: Iterable[InputFile]) -> list[ChangedInputError]:
    """The errors of local input files that have changed, for an attempt that failed. Others are left to their tasks."""
    changed: list[ChangedInputError] = []
    for file in files:
        try:
            if not is_remote(file.url):
                PlannedInput(file).compare()
        except ChangedInputError as error:
            changed.append(error)
        except OSError:  # no change but a failing disk, which the attempt reports
            continue
    return changed


def damages(file: InputFile, rejected: Iterable[Rejected]) -> list[UnreadableFile]:
    """The rejects of a file that stand for more than one bad record."""
    return [
        UnreadableFile(path=file.path, position=record.position, error=record.error)
        for record in rejected
        if record.is_file_damage
    ]


def _difference(file: InputFile, state: FileState) -> str:
    """How a file differs from the planned one, in words; empty if it does not."""
    if state.num_bytes != file.num_bytes:
        return f"it had {file.num_bytes:,} bytes when the run was planned, and has {state.num_bytes:,} now"
    planned_ns, ctime_ns = file.mtime_ns, file.ctime_ns
    if planned_ns is not None and is_remote(file.url):
        planned_ns = whole_seconds(planned_ns)
    if None not in (planned_ns, state.mtime_ns) and planned_ns != state.mtime_ns:
        return f"it was modified at {_time(planned_ns)} when the run was planned, and at {_time(state.mtime_ns)} now"
    if file.stamp.startswith(ETAG) and state.etag != file.stamp.removeprefix(ETAG):
        return f"its ETag was {file.stamp.removeprefix(ETAG)} when the run was planned, and is {state.etag} now"
    if None not in (ctime_ns, state.ctime_ns) and ctime_ns != state.ctime_ns:
        return (
            f"it was written, replaced, renamed or given other permissions at {_time(state.ctime_ns)}, although its size and "
            f"its time of modification are those that were planned"
        )
    return ""


def _between(first: FileState, last: FileState) -> str:
    if last.inode != first.inode:
        return "another file has taken its place"
    if last.etag != first.etag:
        return f"its ETag was {first.etag} when it was opened, and is {last.etag} now"
    return ""


def _time(time_ns: int | None) -> str:
    seconds, fraction = divmod(time_ns or 0, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{fraction:09d} UTC"
