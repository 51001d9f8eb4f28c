"""A batch of documents: an Arrow record batch with its words and lines found once, on first use.

    DocumentBatch.record   key, id, text, the columns the source keeps, the columns stages add
                 .words    found on first use, shared by the stages of a task, gone when a stage changes the text

A batch is immutable. A stage returns arrays; the engine makes the next batch of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from datapipe import columns

if TYPE_CHECKING:
    from datapipe.kernels.raw_lines import RawLines
    from datapipe.kernels.words import Lines, Words

TARGET_BATCH_BYTES = 4 << 20
"""Text bytes at which a reader closes a batch. A larger document is a batch of its own."""

BASE_FIELDS = (
    pa.field("key", columns.KEY_TYPE, nullable=False),
    pa.field("id", pa.large_string(), nullable=False),
    pa.field("text", pa.large_string(), nullable=False),
)

WordRule = Literal["whitespace", "english", "unicode"]

SEGMENTATIONS = ("buffers", "words", "lines", "raw_lines", "english_words", "unicode_words")
"""What is found once in the text of a batch, on first use, and lives until the text changes."""


class DocumentBatch:
    """Documents as columns, with the segmentation of their text shared by all who ask for it."""

    def __init__(self, record: pa.RecordBatch) -> None:
        self.record = record

    @property
    def num_docs(self) -> int:
        return self.record.num_rows

    @property
    def keys(self) -> pa.Array:
        """(num_docs,) fixed_size_binary(16)."""
        return self.record.column("key")

    @property
    def texts(self) -> pa.Array:
        """(num_docs,) large_string, without nulls."""
        return self.record.column("text")

    @cached_property
    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets (num_docs + 1,) int64 and bytes uint8 of the texts; see `columns.text_buffers`."""
        return columns.text_buffers(self.texts)

    @cached_property
    def words(self) -> Words:
        """The words of every document, split at Unicode white space; see `kernels/words.py`."""
        from datapipe.kernels.words import find_words  # numba is paid for by those who need it

        return find_words(*self.buffers)

    @cached_property
    def lines(self) -> Lines:
        """The lines of every document, split at newlines; see `kernels/words.py`."""
        from datapipe.kernels.words import find_lines

        return find_lines(*self.buffers)

    @cached_property
    def raw_lines(self) -> RawLines:
        """`lines` with the white space around them, and newlines and characters of each text; see `kernels/raw_lines.py`."""
        from datapipe.kernels.raw_lines import find_raw_lines

        return find_raw_lines(*self.buffers, self.lines)

    @cached_property
    def english_words(self) -> Words:
        """The words as spaCy cuts English, punctuation apart; see `kernels/english_words.py`."""
        from datapipe.kernels.english_words import find_english_words

        return find_english_words(self.words, self.buffers[1])

    @cached_property
    def unicode_words(self) -> Words:
        """The words of any script without punctuation; see `kernels/unicode_words.py`."""
        from datapipe.kernels.unicode_words import find_unicode_words

        return find_unicode_words(*self.buffers)

    def words_by(self, rule: WordRule) -> Words:
        """The words as one of the rules has them, found once."""
        if rule == "english":
            return self.english_words
        return self.unicode_words if rule == "unicode" else self.words

    @property
    def text_bytes(self) -> int:
        offsets, _ = self.buffers
        return int(offsets[-1] - offsets[0])

    def filter(self, keep: np.ndarray) -> DocumentBatch:
        """The documents where `keep` (num_docs,) bool is true. All of them: this very batch, with its words."""
        if keep.all():
            return self
        return DocumentBatch(self.record.filter(pa.array(keep)))

    def slice(self, start: int, stop: int) -> DocumentBatch:
        return DocumentBatch(self.record.slice(start, stop - start))

    def with_columns(self, new: Mapping[str, pa.Array]) -> DocumentBatch:
        """A batch with columns added or replaced. Words and lines live on unless the text changed."""
        record = self.record
        for name, column in new.items():
            field = pa.field(name, column.type, nullable=name not in ("key", "id", "text"))
            at = record.schema.get_field_index(name)
            record = record.add_column(record.num_columns, field, column) if at < 0 else record.set_column(at, field, column)
        batch = DocumentBatch(record)
        if "text" not in new:
            for found in SEGMENTATIONS:
                if found in self.__dict__:
                    batch.__dict__[found] = self.__dict__[found]
        return batch
