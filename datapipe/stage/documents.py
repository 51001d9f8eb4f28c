"""A batch of documents: an Arrow record batch and the segmentations of its texts, each computed on first use.

    DocumentBatch.record           key, id, text, the columns that the source keeps, the columns of stages, the cut points
                 .html             before extraction: the pages, and no text
                 .parts            the texts split at their cut points
                 .words            computed on first use, shared by the stages of a task, dropped when a stage changes the text
                 .segmentation_s   the time of each segmentation, so that no stage is charged for work that others share

A batch is immutable. A stage returns arrays and the engine makes the next batch of them. When a filter drops documents, the
segmentations of the kept ones are copied on next use: copying is ten times cheaper than computing them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.errors import StageError, UserError, suggest
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.stage.cut_points import CUT_POINTS, Parts, cut_points_where, parts_of

if TYPE_CHECKING:
    from datapipe.kernels.text.raw_lines import RawLines
    from datapipe.kernels.text.words import Lines, Words

TARGET_BATCH_BYTES = 4 << 20
"""The text bytes at which a reader closes a batch. A larger document is a batch of its own."""

BASE_FIELDS = (
    pa.field("key", columns.KEY_TYPE, nullable=False),
    pa.field("id", pa.large_string(), nullable=False),
    pa.field("text", pa.large_string(), nullable=False),
)

PAGE_FIELDS = (*BASE_FIELDS[:2], pa.field("html", pa.large_binary(), nullable=False))
"""The fields of documents before extraction."""

_SEGMENTATIONS = ("words", "lines", "raw_lines", "english_words", "unicode_words")
_COPIED = ("words", "lines", "english_words", "unicode_words")
"""Segmentations that are copied when documents are dropped; `raw_lines` is cheap to compute from `lines`."""

Segmentation = TypeVar("Segmentation")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Earlier:
    """A segmentation of the unfiltered batch.

    Attributes:
        value: the segmentation.
        offsets: (num_docs + 1,) int64, the offsets of the unfiltered texts.
        keep: (num_docs,) bool, the documents that the filter kept.
    """

    value: Any
    offsets: np.ndarray
    keep: np.ndarray


def segmentation(find: Callable[[DocumentBatch], Segmentation]) -> cached_property[Segmentation]:
    """A property of a batch that is computed once for all stages. Its time is added to `DocumentBatch.segmentation_s`."""
    name = find.__name__

    @wraps(find)
    def timed(batch: DocumentBatch) -> Segmentation:
        started, others = perf_counter(), sum(batch.segmentation_s.values())
        earlier = batch.earlier.pop(name, None)
        if earlier is None:
            value = find(batch)
        else:
            from datapipe.kernels.text.words import selected

            value = selected(earlier.value, earlier.keep, earlier.offsets, batch.buffers[0])
        nested = sum(batch.segmentation_s.values()) - others
        batch.segmentation_s[name] = perf_counter() - started - nested
        return value

    return cached_property(timed)


class DocumentBatch:
    """Documents as columns, with segmentations of their texts that all stages share.

    Attributes:
        found_s: seconds per segmentation that the engine has not yet added to the metrics.
        earlier: by name, segmentations that were computed before documents were dropped.
    """

    record: pa.RecordBatch
    segmentation_s: dict[str, float]
    earlier: dict[str, _Earlier]

    def __init__(self, record: pa.RecordBatch) -> None:
        self.__dict__.update(record=record, segmentation_s={}, earlier={})

    def __setattr__(self, name: str, value: object) -> None:
        raise StageError(f"it assigns to `{name}` of a batch, which is read-only and belongs to all stages. Return columns")

    @property
    def num_docs(self) -> int:
        return self.record.num_rows

    @property
    def keys(self) -> pa.Array:
        """(num_docs,) fixed_size_binary(16)."""
        return self.record.column("key")

    @property
    def texts(self) -> pa.Array:
        """(num_docs,) large_string, without nulls. Raises StageError before extraction."""
        if not self.has_text:
            raise StageError(
                "documents are pages here and have no text yet. Put the stage after extract.html; a stage that does without "
                "the text declares `before_text: ClassVar[bool] = True`"
            )
        return self.record.column("text")

    @property
    def has_text(self) -> bool:
        """False before extraction, where documents are pages."""
        return "text" in self.record.schema.names

    @property
    def html(self) -> pa.Array:
        """The pages, (num_docs,) large_binary, without nulls. Raises StageError after extraction."""
        if self.has_text:
            raise StageError(
                "documents have a text here, and no pages. A stage that takes pages stands where they have none yet"
            )
        return self.record.column("html")

    def column(self, name: str, asked_by: str) -> pa.Array:
        """A column, (num_docs,). Raises UserError if there is none.

        Args:
            asked_by: the stage and option that name the column, for the message.
        """
        names = self.record.schema.names
        if name in names:
            return self.record.column(name)
        raise UserError(
            f"{asked_by}: documents have no column '{name}'.{suggest(name, names)} Expected one of: {', '.join(names)}. Write "
            f"`keep: [{name}]` in the source if its files have the field, or move the stage that writes it before this one."
        )

    @cached_property
    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets (num_docs + 1,) int64 and bytes uint8 of the texts, read-only; see `columns.text_buffers`."""
        return columns.text_buffers(self.texts)

    @property
    def cut_points(self) -> pa.Array | None:
        """(num_docs,) lists of byte offsets where spans were removed; None if no stage has cut. See `stage/cut_points.py`."""
        return self.record.column(CUT_POINTS) if CUT_POINTS in self.record.schema.names else None

    @property
    def parts(self) -> Parts:
        """The texts split at their cut points, for stages that compare spans of the source."""
        return parts_of(self.buffers[0], self.cut_points)

    @segmentation
    def words(self) -> Words:
        """The words of each document, split at Unicode white space; see `kernels/text/words.py`."""
        from datapipe.kernels.text.words import find_words  # imported on first use: it loads numba

        return find_words(*self.buffers)

    @segmentation
    def lines(self) -> Lines:
        """The lines of each document, split at newlines; see `kernels/text/words.py`."""
        from datapipe.kernels.text.words import find_lines

        return find_lines(*self.buffers)

    @segmentation
    def raw_lines(self) -> RawLines:
        """The lines with their surrounding white space, and per text its newlines and characters; see
        `kernels/text/raw_lines.py`."""
        from datapipe.kernels.text.raw_lines import find_raw_lines

        return find_raw_lines(*self.buffers, self.lines)

    @segmentation
    def english_words(self) -> Words:
        """The words as spaCy's English tokenizer splits them, punctuation separate; see `kernels/text/english_words.py`."""
        from datapipe.kernels.text.english_words import find_english_words

        return find_english_words(self.words, self.buffers[1])

    @segmentation
    def unicode_words(self) -> Words:
        """The words of any script without punctuation; see `kernels/text/unicode_words.py`."""
        from datapipe.kernels.text.unicode_words import find_unicode_words

        return find_unicode_words(*self.buffers)

    @property
    def text_bytes(self) -> int:
        """Bytes of the texts; before extraction of the pages."""
        offsets, _ = self.buffers if self.has_text else columns.text_buffers(self.html)
        return int(offsets[-1] - offsets[0])

    def make_read_only(self) -> None:
        """Makes the memory of the columns read-only, for a stage to get: all stages share it, and a write would change what is
        stored without a trace. 3 µs a column that is read-only already, 12 µs for any other."""
        old = self.record.columns
        arrays = [columns.read_only(column) for column in old]
        if any(array is not column for array, column in zip(arrays, old)):
            self.__dict__["record"] = pa.RecordBatch.from_arrays(arrays, schema=self.record.schema)
            self.__dict__.pop("buffers", None)  # views of the writable memory

    def filter(self, keep: np.ndarray) -> DocumentBatch:
        """The documents where `keep` (num_docs,) bool is true. If all are true, the result is this batch itself."""
        if keep.all():
            return self
        batch = DocumentBatch(self.record.filter(pa.array(keep)))
        for name in _COPIED:
            if name in self.__dict__:
                batch.earlier[name] = _Earlier(value=self.__dict__[name], offsets=self.buffers[0], keep=keep)
            elif name in self.earlier:
                earlier = self.earlier[name]
                kept_by_both = earlier.keep.copy()
                kept_by_both[kept_by_both] = keep
                batch.earlier[name] = _Earlier(value=earlier.value, offsets=earlier.offsets, keep=kept_by_both)
        return batch

    def extracted(self, new: Mapping[str, pa.Array]) -> DocumentBatch:
        """The batch with texts in place of its pages, and with other new columns."""
        record, place = self.record, self.record.schema.get_field_index("html")
        with_texts = DocumentBatch(record.set_column(place, BASE_FIELDS[2], new["text"]))
        return with_texts.with_columns({name: column for name, column in new.items() if name != "text"})

    def slice(self, start: int, stop: int) -> DocumentBatch:
        return DocumentBatch(self.record.slice(start, stop - start))

    def with_columns(self, new: Mapping[str, pa.Array]) -> DocumentBatch:
        """A batch with columns added or replaced.

        A new `text` drops the segmentations of all documents, and the cut points of documents whose text changes.
        """
        record, cut_points = self.record, self.cut_points
        if "text" in new and cut_points is not None:
            same = columns.compute.equal(self.texts, new["text"]).to_numpy(zero_copy_only=False)
            new = {CUT_POINTS: cut_points_where(same, cut_points), **new}
        for name, column in new.items():
            field = pa.field(name, column.type, nullable=name not in OWN_COLUMNS)
            index = record.schema.get_field_index(name)
            end = record.num_columns
            record = record.add_column(end, field, column) if index < 0 else record.set_column(index, field, column)
        batch = DocumentBatch(record)
        if "text" not in new:
            batch.__dict__.update({name: self.__dict__[name] for name in ("buffers", *_SEGMENTATIONS) if name in self.__dict__})
            batch.earlier.update(self.earlier)
        return batch
