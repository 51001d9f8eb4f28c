"""A batch of documents: an Arrow record batch, and what stages share of its texts.

A segmentation (`stage/segmentation/`) is a function of a batch under `@shared`: the first stage
that calls it computes it, and the others get the same. When a filter drops documents, the
segmentations of the others are copied, which is ten times cheaper than to compute them again. When a
stage edits lines, words of the other lines are copied, which is two to four times cheaper. A batch
is immutable: a stage returns arrays, and the engine makes the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.dataclass import dataclass, replace
from datapipe.errors import StageError, UserError, suggest
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.stage.cut_points import CUT_POINTS, Parts, cut_points_where, parts_of
from datapipe.stage.segments import SEGMENTS, SEGMENTS_TYPE, Segments, segments_of

TARGET_BATCH_BYTES = 4 << 20
"""The text bytes at which a reader closes a batch. A larger document is a batch alone."""

MOST_COPIED_BYTES = 4 * TARGET_BATCH_BYTES
"""Text of a batch whose segmentations are kept through an edit: they take up to twelve times its memory."""

BASE_FIELDS = (
    pa.field("key", columns.KEY_TYPE, nullable=False),
    pa.field("id", pa.large_string(), nullable=False),
    pa.field("text", pa.large_string(), nullable=False),
)

PAGE_FIELDS = (*BASE_FIELDS[:2], pa.field("html", pa.large_binary(), nullable=False))
"""The fields of documents before extraction."""

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Origin:
    """Earlier documents, of which some are those of a batch."""

    # their texts, as in `columns.text_buffers`
    offsets: np.ndarray
    data: np.ndarray
    rows: np.ndarray  # (num_docs,) int64, ascending: the earlier document of each document of the batch
    is_edited: bool = False  # whether their texts may have changed


@dataclass(frozen=True, kw_only=True, slots=True)
class Following:
    """How a segmentation is copied for a batch from that of earlier documents; see `stage/following.py`."""

    # (find, what it returned for earlier documents, these, a batch) -> what `find` returns for the batch
    follow: Callable[[Callable[[DocumentBatch], Any], Any, Origin, DocumentBatch], Any]
    by_line: bool  # whether it is copied where texts have changed, too


def shared(
    following: Following | None = None,
) -> Callable[[Callable[[DocumentBatch], Value]], Callable[[DocumentBatch], Value]]:
    """A function of the texts of a batch that is computed once for all stages. `following`: how the result is copied when
    documents are dropped or edited; None: it is computed again."""
    return lambda find: wraps(find)(lambda batch: batch.once(find, following))


class DocumentBatch:
    """Documents as columns. `segmentation_s`: seconds per segmentation that the engine has not yet added to the metrics."""

    record: pa.RecordBatch
    segmentation_s: dict[str, float]
    _shared: dict[Callable[..., Any], tuple[Any, Following | None]]
    _earlier: dict[Callable[..., Any], tuple[Any, Following, Origin]]
    """Segmentations of earlier documents, from which some were dropped or edited since."""

    def __init__(self, record: pa.RecordBatch) -> None:
        self.__dict__.update(record=record, segmentation_s={}, _shared={}, _earlier={})

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
        """The pages, (num_docs,) large_binary without nulls. Raises StageError after extraction."""
        if self.has_text:
            raise StageError(
                "documents have a text here, and no pages. A stage that takes pages stands where they have none yet"
            )
        return self.record.column("html")

    def column(self, name: str, asked_by: str) -> pa.Array:
        """A column, (num_docs,). Raises UserError; `asked_by`: the stage and option that name the column."""
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

    @property
    def segments(self) -> Segments | None:
        """Control tokens within the texts, and what a loss counts of them; None for plain texts. See `stage/segments.py`."""
        return segments_of(self.record.column(SEGMENTS), self.buffers[0]) if SEGMENTS in self.record.schema.names else None

    def once(self, find: Callable[[DocumentBatch], Value], following: Following | None) -> Value:
        """What `find` returns for this batch, computed once; see `shared`. Its time is added to `segmentation_s`."""
        if find not in self._shared:
            started, others = perf_counter(), sum(self.segmentation_s.values())
            earlier = self._earlier.pop(find, None)
            if earlier is None:
                value = find(self)
            else:
                earlier_value, copying, origin = earlier
                value = copying.follow(find, earlier_value, origin, self)
            self._shared[find] = value, following
            nested = sum(self.segmentation_s.values()) - others
            self.segmentation_s[find.__name__] = perf_counter() - started - nested
        return self._shared[find][0]

    @property
    def text_bytes(self) -> int:
        """Bytes of the texts; before extraction of the pages."""
        offsets, _ = self.buffers if self.has_text else columns.text_buffers(self.html)
        return int(offsets[-1] - offsets[0])

    def make_read_only(self) -> None:
        """Makes the memory of the columns read-only: all stages share it, and a write would change what is
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
        if batch.num_docs:
            batch._take_over(self, np.flatnonzero(keep), is_edited=False)
        return batch

    def _take_over(self, before: DocumentBatch, rows: np.ndarray, *, is_edited: bool) -> None:
        """Takes the segmentations of another batch, of which this one has the documents `rows`, to copy them when they are
        asked for."""
        for find, (value, following) in before._shared.items():
            if following is not None and (following.by_line or not is_edited):
                origin = Origin(offsets=before.buffers[0], data=before.buffers[1], rows=rows, is_edited=is_edited)
                self._earlier[find] = value, following, origin
        for find, (value, following, origin) in before._earlier.items():
            if following.by_line or not is_edited:
                edited = replace(origin, rows=origin.rows[rows], is_edited=is_edited or origin.is_edited)
                self._earlier[find] = value, following, edited

    def extracted(self, new: Mapping[str, pa.Array]) -> DocumentBatch:
        """The batch with texts in place of its pages, and with other new columns."""
        record, place = self.record, self.record.schema.get_field_index("html")
        with_texts = DocumentBatch(record.set_column(place, BASE_FIELDS[2], new["text"]))
        return with_texts.with_columns({name: column for name, column in new.items() if name != "text"})

    def slice(self, start: int, stop: int) -> DocumentBatch:
        return DocumentBatch(self.record.slice(start, stop - start))

    def with_columns(self, new: Mapping[str, pa.Array]) -> DocumentBatch:
        """A batch with columns added or replaced. Where a new `text` differs, documents lose their cut points; with a new
        `text` and no `segments` they lose those."""
        record, cut_points = self.record, self.cut_points
        if "text" in new and cut_points is not None:
            same = columns.compute.equal(self.texts, new["text"]).to_numpy(zero_copy_only=False)
            new = {CUT_POINTS: cut_points_where(same, cut_points), **new}
        if "text" in new and SEGMENTS not in new and SEGMENTS in record.schema.names:
            new = {SEGMENTS: pa.array([[]] * self.num_docs, SEGMENTS_TYPE), **new}
        for name, column in new.items():
            field = pa.field(name, column.type, nullable=name not in OWN_COLUMNS)
            index = record.schema.get_field_index(name)
            end = record.num_columns
            record = record.add_column(end, field, column) if index < 0 else record.set_column(index, field, column)
        batch = DocumentBatch(record)
        if "text" not in new:
            if "buffers" in self.__dict__:
                batch.__dict__["buffers"] = self.buffers
            batch._shared.update(self._shared)
            batch._earlier.update(self._earlier)
        elif self.has_text and self.text_bytes <= MOST_COPIED_BYTES:
            batch._take_over(self, np.arange(self.num_docs), is_edited=True)
        return batch
