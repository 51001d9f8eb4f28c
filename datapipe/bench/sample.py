"""The part of a source that a bench reads: the same documents every time, from all over the source.

    groups of splits, in the order of a keyed hash ─▶ `SPREAD` of them read in turn, a batch each ─▶ until the budget is full
                                                                         └─▶ how many documents of each group: a prefix

Choosing reads the sample once, which also brings its files into the system's cache. Memory is a batch of each open group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from datapipe.columns import text_lengths
from datapipe.plan.request import PlannedSource
from datapipe.rng import seed_for
from datapipe.stage.base import FieldNames, ReadBatch, Split
from datapipe.storage import open_input

SPREAD = 16
"""Groups that are read in turn: enough that one odd file does not stand for the whole source."""

_RAW_BYTES = 64 << 10
"""What an archive is given at once, so that how much of it was read is known as closely."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Splits that one task reads, and how many documents of them; None: all."""

    splits: tuple[Split, ...]
    limit: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What is read of a source.

    Attributes:
        documents, text_bytes: of the sample.
        read_bytes: text in the batches it was taken from.
        stored_bytes: about what those batches take in the input files.
        source_bytes: all input files of the source, as stored.
        is_whole: whether every document of the source is in it.
    """

    parts: tuple[Part, ...]
    documents: int
    text_bytes: int
    read_bytes: int
    stored_bytes: int
    source_bytes: int
    is_whole: bool

    @property
    def estimated_text_bytes(self) -> int:
        """The text of the whole source, if the rest of its files is like the sample."""
        if self.is_whole:
            return self.text_bytes
        return int(self.source_bytes * self.read_bytes / self.stored_bytes) if self.stored_bytes else 0


def choose(planned: PlannedSource, fields: FieldNames, budget_bytes: int, seed: int) -> Sample:
    """A sample of about `budget_bytes` of text; all of the source where that is less."""
    waiting = deque(sorted(planned.groups, key=lambda group: _order(group, seed)))
    active: deque[_Reading] = deque()
    taken: list[_Reading] = []
    left = budget_bytes
    while left > 0 and (active or waiting):
        if waiting and len(active) < SPREAD:
            taken.append(_Reading(waiting.popleft(), planned, fields))
            reading = taken[-1]
        else:
            reading = active.popleft()
        batch = next(reading.batches, None)
        if batch is not None:
            left -= reading.take(batch, left)
            active.append(reading)
    for reading in active:
        reading.batches.close()
    source_bytes = sum(file.num_bytes for file in planned.files.values())
    return Sample(
        parts=tuple(reading.part for reading in taken if reading.documents or reading.is_done),
        documents=sum(reading.documents for reading in taken),
        text_bytes=sum(reading.text_bytes for reading in taken),
        read_bytes=sum(reading.read_bytes for reading in taken),
        stored_bytes=int(sum(reading.stored_bytes for reading in taken)),
        source_bytes=source_bytes,
        is_whole=not active and not waiting and left > 0,
    )


def _order(group: Sequence[Split], seed: int) -> int:
    first = group[0]
    return xxhash.xxh3_64_intdigest(f"{first.start}:{first.file.path}".encode(), seed=seed_for(seed, "bench"))


class _Reading:
    """A group while it is read."""

    def __init__(self, group: tuple[Split, ...], planned: PlannedSource, fields: FieldNames) -> None:
        self.group, self.planned, self.fields = group, planned, fields
        self.batches = self._read()
        self.documents = self.text_bytes = self.read_bytes = 0
        self.stored_bytes = 0.0
        self.is_done = False

    @property
    def part(self) -> Part:
        return Part(splits=self.group, limit=None if self.is_done else self.documents)

    def take(self, batch: ReadBatch, left: int) -> int:
        """Takes documents up to the one that fills what is left of the budget; the bytes they have."""
        ends = np.cumsum(text_lengths(batch.texts))
        number = min(len(ends), int(np.searchsorted(ends, left)) + 1)
        taken = int(ends[number - 1]) if number else 0
        self.documents += number
        self.text_bytes += taken
        self.read_bytes += int(ends[-1]) if len(ends) else 0
        return taken

    def _read(self) -> Generator[ReadBatch, None, None]:
        for split in self.group:
            before, stored = self.stored_bytes, _stored_bytes(split)
            position, documents, input_bytes = _Position(), 0, 0
            opened = position.open if split.file.compression else open_input
            for batch in self.planned.readers[split.file.path].read(split, self.fields, opened):
                documents += len(batch.places)
                input_bytes += batch.input_bytes
                self.stored_bytes = before + min(stored, _stored_so_far(split, position.bytes, documents, input_bytes))
                yield batch
            self.stored_bytes = before + stored
        self.is_done = True


def _stored_bytes(split: Split) -> float:
    """What a split takes in its file."""
    file = split.file
    if file.pieces:
        sizes = [num_bytes for _, num_bytes in file.pieces]
        return file.num_bytes * sum(sizes[split.start : split.stop]) / max(1, sum(sizes))
    return (file.num_bytes if split.stop is None else split.stop) - split.start


def _stored_so_far(split: Split, position: int, documents: int, input_bytes: int) -> float:
    """The same for what was read of it: by rows, by the place in an archive, or by the input itself."""
    if split.file.pieces:
        rows = sum(num_rows for num_rows, _ in split.file.pieces[split.start : split.stop])
        return _stored_bytes(split) * documents / max(1, rows)
    return position if split.file.compression else input_bytes


class _Position:
    """How far into an archive its reader has come."""

    def __init__(self) -> None:
        self.bytes = 0

    def open(self, url: str) -> Any:
        return _Watched(open_input(url), self)


class _Watched:
    """A file that notes how far it is read; all else is the file's own."""

    def __init__(self, stream: Any, position: _Position) -> None:
        self._stream, self._position = stream, position

    def __enter__(self) -> _Watched:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, num_bytes: int | None = None) -> bytes:
        piece = self._stream.read(num_bytes)
        self._position.bytes = max(self._position.bytes, self._stream.tell())
        return piece

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        piece = self._stream.read_at(min(num_bytes, _RAW_BYTES), offset)
        self._position.bytes = max(self._position.bytes, offset + len(piece))
        return piece
