"""What the readers of Parquet and Arrow have in common: splits of row groups, which Arrow calls
record batches, and damage of the content, as distinct from failures of the storage."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import pyarrow as pa

from datapipe.dataclass import replace
from datapipe.errors import DamagedInputError, DatapipeError, UserError
from datapipe.stage import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split
from datapipe.stage.decoding import HEAD_BYTES, lfs_pointer
from datapipe.stage.reader import NOT_SAMPLED, Sample
from stages.read._parquet_columns import field_names, has_field

BATCH_ROWS = 8192  # most rows of a batch
BROKEN = (pa.ArrowException, ValueError, OSError)
"""What Arrow raises for damaged content, each seen with random bytes flipped: thrift and IPC errors are OSErrors."""


class OpenedFile:
    """A file whose row groups are known, (num_rows, num_bytes) each. `damage`: why there may be more; empty for none."""

    row_groups: tuple[tuple[int, int], ...]
    schema: pa.Schema
    damage: str = ""

    def read(self, number: int, row: int, fields: FieldNames) -> Iterator[ReadBatch]:
        """The documents of a row group, whose first row is `row` of the file, in batches. Raises ValueError for damage."""
        raise NotImplementedError


class ColumnReader(Reader):
    """Reads files of one document a row, by row groups."""

    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    format_name: ClassVar[str]
    row_group_name: ClassVar[str]

    def opened(self, stream: pa.NativeFile) -> OpenedFile:
        """Raises ValueError where nothing can be read, OSError where the storage fails."""
        raise NotImplementedError

    def probe(self, file: InputFile, open_input: OpenInput) -> InputFile:
        """Rows and bytes of each row group, and the schema. Raises DamagedInputError for a file that `read` rejects."""
        if file.compression is not None:
            raise UserError(
                f"{file.url}: {self.format_name} inside {file.compression} cannot be read by parts. Decompress the file; "
                f"{self.format_name} itself compresses."
            )
        with open_input(file.url) as stream:
            try:
                opened = self.opened(stream)
            except ValueError as error:
                raise DamagedInputError(self._unreadable(error, stream)) from error
            return replace(file, row_groups=opened.row_groups, schema=opened.schema.remove_metadata())

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Runs of row groups of about `target_bytes`."""
        splits: list[Split] = []
        start = size = 0
        for number, (_, num_bytes) in enumerate(file.row_groups[:-1], 1):
            size += num_bytes
            if size >= target_bytes:
                splits.append(Split(file=file, start=start, stop=number))
                start, size = number, 0
        return [*splits, Split(file=file, start=start)]

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        planned, kind = split.file.row_groups, f"{self.format_name} file"
        row = sum(num_rows for num_rows, _ in planned[: split.start])
        with open_input(split.file.url) as stream:
            try:
                opened = self.opened(stream)
            except ValueError as error:
                yield damaged(row, self._unreadable(error, stream))
                return
            if opened.row_groups != planned:
                raise DatapipeError(
                    f"{split.file.url}: its rows differ from those that were planned. Run again to plan it as it is."
                )
            for number in range(split.start, len(planned) if split.stop is None else split.stop):
                read, num_rows = 0, planned[number][0]
                if fields.sample is not None and not _has_any(fields.sample, row, row + num_rows):
                    yield replace(ReadBatch.of_rejected(), passed_over={NOT_SAMPLED: num_rows})
                    row += num_rows
                    continue
                try:
                    for batch in opened.read(number, row, fields):
                        yield batch
                        read += len(batch.positions) + len(batch.rejected) + sum(batch.passed_over.values())
                except ValueError as error:
                    where = f"{self.row_group_name} {number} of the {kind} is damaged from row {row + read} on"
                    yield damaged(row + read, f"{where}: {on_one_line(error)}")
                row += num_rows
            if split.stop is None and opened.damage:
                yield damaged(row, f"the {kind} is damaged from row {row} on: {opened.damage}")

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """The fields of the schema; no row is read. Nothing for a file that cannot be read, which `read` rejects."""
        with open_input(split.file.url) as stream:
            try:
                opened = self.opened(stream)
            except ValueError:
                return FieldsSeen()
        found = (name for name in fields.wanted if has_field(opened.schema, name))
        num_rows = sum(num_rows for num_rows, _ in opened.row_groups)
        return FieldsSeen(num_records=num_rows, found=frozenset(found), names=tuple(field_names(opened.schema)))

    def _unreadable(self, error: Exception, stream: pa.NativeFile) -> str:
        pointer = lfs_pointer(stream.read_at(min(HEAD_BYTES, stream.size()), 0))
        return pointer or f"the {self.format_name} file is damaged: {on_one_line(error)}"


def _has_any(sample: Sample, start: int, stop: int) -> bool:
    """Whether a row of `start:stop` is sampled, by a million at a time: a damaged file may declare any number of rows."""
    starts = range(start, stop, 1 << 20)
    return any(sample.has(np.arange(first, min(first + (1 << 20), stop), dtype=np.uint64)).any() for first in starts)


_IMPOSSIBLE_BYTES = 1 << 40
"""A size that no row group or record batch has: where Arrow asks for more memory at once, a length in the file is damaged."""

_LARGE_BYTES = 64 << 20
"""The size of a read from which on it is compared with that of the file: memory for it is taken first."""


class WatchedStream:
    """A file that records what storage raised while Arrow read it, since Arrow raises OSErrors for damaged content too."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self.stream = stream
        self.error: Exception | None = None

    @contextmanager
    def noting_damage(self) -> Iterator[None]:
        """A context in which Arrow's errors about the content become ValueErrors; those of storage and memory stay."""
        try:
            yield
        except BROKEN as error:
            if self.error is not None:
                raise self.error from error
            asked = re.search(r"\bof size (\d+)", str(error))
            if isinstance(error, MemoryError) and (asked is None or int(asked[1]) < _IMPOSSIBLE_BYTES):
                raise
            raise ValueError(on_one_line(error)) from error

    def read(self, num_bytes: int = -1) -> bytes:
        """The next bytes; fewer where the file has fewer, whatever a damaged length asks for."""
        if num_bytes > _LARGE_BYTES:
            num_bytes = min(num_bytes, max(0, self.stream.size() - self.stream.tell()))
        try:
            return self.stream.read(None if num_bytes < 0 else num_bytes)
        except Exception as error:
            self.error = error
            raise

    def seek(self, position: int, whence: int = 0) -> int:
        return self.stream.seek(position, whence)

    def tell(self) -> int:
        return self.stream.tell()

    def close(self) -> None:
        """Does nothing: the caller closes the stream that it opened."""


def damaged(position: int, error: str) -> ReadBatch:
    """No document, and the reject for all that is lost from a position on."""
    return ReadBatch.of_rejected(Rejected(position=position, error=error, is_file_damage=True))


def on_one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
