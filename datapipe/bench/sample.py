"""The sample of a source that a bench reads: the same documents every time, from all parts of the source.

    groups of splits, in the order of a keyed hash ─▶ `SPREAD` groups read in turn, batch by batch ─▶ until the budget is used
                                                                     └─▶ of each group a prefix: a number of documents

Choosing reads the sample once, which also loads its files into the page cache. Memory holds one batch of each open group.
"""

from collections import deque
from collections.abc import Generator, Mapping

import numpy as np
import xxhash

from datapipe.columns import text_lengths
from datapipe.dataclass import dataclass
from datapipe.rng import seed_for
from datapipe.stage.reader import TEXT_PER_ARCHIVE_BYTE, FieldNames, ReadBatch, Split
from datapipe.steps.read_batches import with_content
from datapipe.steps.request import PlannedSource
from datapipe.storage.root import open_input

SPREAD = 16  # Groups that are read in turn: enough that one unusual file does not decide the result


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    # by the splits that one task reads, the number of their documents in the sample; None for all of them
    limits: Mapping[tuple[Split, ...], int | None]
    documents: int
    text_bytes: int
    # text of the batches that the sample was taken from; in the input files about `stored_bytes`
    read_bytes: int
    stored_bytes: int
    source_bytes: int  # size of all input files of the source, as stored
    is_whole: bool  # whether the sample contains every document of the source

    @property
    def estimated_text_bytes(self) -> int:
        """The text of the whole source, at the sample's ratio of text to stored bytes."""
        if self.is_whole:
            return self.text_bytes
        return int(self.source_bytes * self.read_bytes / self.stored_bytes) if self.stored_bytes else 0


def choose_sample(planned: PlannedSource, fields: FieldNames, budget_bytes: int, seed: int) -> Sample:
    """A sample of about `budget_bytes` of text; the whole source if it has less."""
    key = seed_for(seed, "bench")
    names = {f"{group[0].start}:{group[0].file.path}": group for group in planned.groups}
    waiting = deque(names[name] for name in sorted(names, key=lambda name: xxhash.xxh3_64_intdigest(name.encode(), key)))
    active: deque[_Reading] = deque()
    taken: list[_Reading] = []
    budget_left = budget_bytes
    while budget_left > 0 and (active or waiting):
        if waiting and len(active) < SPREAD:
            taken.append(_Reading(waiting.popleft(), planned, fields))
            reading = taken[-1]
        else:
            reading = active.popleft()
        batch = next(reading.batches, None)
        if batch is not None:
            budget_left -= reading.take(batch, budget_left)
            active.append(reading)
    for reading in active:
        reading.batches.close()
    return Sample(
        limits={
            reading.group: None if reading.is_done else reading.documents
            for reading in taken
            if reading.documents or reading.is_done
        },
        documents=sum(reading.documents for reading in taken),
        text_bytes=sum(reading.text_bytes for reading in taken),
        read_bytes=sum(reading.read_bytes for reading in taken),
        stored_bytes=round(sum(reading.stored_bytes for reading in taken)),
        source_bytes=sum(file.num_bytes for file in planned.files.values()),
        is_whole=not active and not waiting and budget_left > 0,
    )


class _Reading:
    def __init__(self, group: tuple[Split, ...], planned: PlannedSource, fields: FieldNames) -> None:
        self.group, self.planned, self.fields = group, planned, fields
        self.batches = self._read()
        self.documents = self.text_bytes = self.read_bytes = 0
        self.stored_bytes = 0.0
        self.is_done = False

    def take(self, batch: ReadBatch, budget_left: int) -> int:
        ends = np.cumsum(text_lengths(batch.content))
        num_taken = min(len(ends), int(np.searchsorted(ends, budget_left)) + 1)
        taken_bytes = int(ends[num_taken - 1]) if num_taken else 0
        self.documents += num_taken
        self.text_bytes += taken_bytes
        self.read_bytes += int(ends[-1]) if len(ends) else 0
        return taken_bytes

    def _read(self) -> Generator[ReadBatch, None, None]:
        for split in self.group:
            before, stored = self.stored_bytes, split.file.num_bytes * split.share
            documents = input_bytes = 0
            for batch in self.planned.readers[split.file.path].read(split, self.fields, open_input):
                documents += len(batch.positions)
                input_bytes += batch.input_bytes
                self.stored_bytes = before + min(stored, _stored_so_far(split, documents, input_bytes))
                yield with_content(batch, self.fields)
            self.stored_bytes = before + stored
        self.is_done = True


def _stored_so_far(split: Split, documents: int, input_bytes: int) -> float:
    """The bytes in its file of the part that was read: by rows, or by the input bytes."""
    if split.file.row_groups:
        rows = sum(num_rows for num_rows, _ in split.file.row_groups[split.start : split.stop])
        return split.file.num_bytes * split.share * documents / max(1, rows)
    return input_bytes / TEXT_PER_ARCHIVE_BYTE if split.file.compression else input_bytes
