"""A batch of documents: an Arrow record batch with its words and lines found once, on first use.

    DocumentBatch.record   key, id, text, the columns the source keeps, the columns stages add, the seams of what was cut
                 .parts    the texts cut at their seams
                 .words    found on first use, shared by the stages of a task, gone when a stage changes the text
                 .found_s  what finding them took, so that no stage is charged for what others use too

A batch is immutable. A stage returns arrays; the engine makes the next batch of them. Where a filter drops documents, the words
and lines of the others are copied, on first use again, which is ten times cheaper than finding them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.errors import DatapipeError, UserError, suggest
from datapipe.own_columns import OWN_COLUMNS
from datapipe.stage.cut_points import CUT_POINTS, Parts, cut_points_where, parts_of

if TYPE_CHECKING:
    from datapipe.kernels.text.raw_lines import RawLines
    from datapipe.kernels.text.words import Lines, Words

TARGET_BATCH_BYTES = 4 << 20
"""Text bytes at which a reader closes a batch. A larger document is a batch of its own."""

BASE_FIELDS = (
    pa.field("key", columns.KEY_TYPE, nullable=False),
    pa.field("id", pa.large_string(), nullable=False),
    pa.field("text", pa.large_string(), nullable=False),
)

WordRule = Literal["whitespace", "english", "unicode"]

WORD_SEGMENTATIONS: Mapping[WordRule, str] = {"whitespace": "words", "english": "english_words", "unicode": "unicode_words"}
"""Which segmentation `DocumentBatch.words_by` gives. A stage names those of its options in `Stage.segmentations`."""

REACHES = ()  # `words_by` looks up what stages name in `segmentations`

_SEGMENTATIONS = ("words", "lines", "raw_lines", "english_words", "unicode_words")
_COPIED = ("words", "lines", "english_words", "unicode_words")
"""Those that are copied when documents are dropped; `raw_lines` is quickly found from `lines`."""

Segmentation = TypeVar("Segmentation")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Earlier:
    """A segmentation of the batch that this one was filtered from: what was found, the offsets of its texts, who stayed."""

    found: Any
    offsets: np.ndarray
    keep: np.ndarray


@dataclass(frozen=True, slots=True)
class _Covered:
    """Who uses batches at this moment, and the segmentations that its fingerprint covers."""

    user: str
    segmentations: frozenset[str]


_covered: ContextVar[_Covered | None] = ContextVar("covered", default=None)


@contextmanager
def only_covered(user: str, segmentations: frozenset[str] | None) -> Iterator[None]:
    """Inside, a segmentation that the fingerprint of `user` does not cover is an error.

    Args:
        segmentations: those that it covers; None where that is not known, and nothing is checked.
    """
    token = _covered.set(None if segmentations is None else _Covered(user, segmentations))
    try:
        yield
    finally:
        _covered.reset(token)


class segmentation(Generic[Segmentation]):  # noqa: N801, a decorator
    """A part of a batch that is found once, for every stage that asks for it; the seconds go to `found_s`."""

    def __init__(self, find: Callable[[DocumentBatch], Segmentation]) -> None:
        self._find, self._name, self.__doc__ = find, find.__name__, find.__doc__

    @overload
    def __get__(self, batch: None, owner: type) -> segmentation[Segmentation]: ...
    @overload
    def __get__(self, batch: DocumentBatch, owner: type) -> Segmentation: ...
    def __get__(self, batch: DocumentBatch | None, owner: type) -> Segmentation | segmentation[Segmentation]:
        if batch is None:
            return self
        covered = _covered.get()
        if covered is not None and self._name not in covered.segmentations:
            raise _not_covered(covered.user, self._name)
        if self._name not in batch.__dict__:
            batch.__dict__[self._name] = self._found(batch)
        return batch.__dict__[self._name]

    def __set__(self, batch: DocumentBatch, value: Segmentation) -> None:
        raise AttributeError(f"{self._name}: a batch is immutable")

    def _found(self, batch: DocumentBatch) -> Segmentation:
        started, others = perf_counter(), sum(batch.found_s.values())
        earlier = batch.earlier.pop(self._name, None)
        found = self._find(batch) if earlier is None else _of_the_kept(earlier, batch.buffers[0])
        nested = sum(batch.found_s.values()) - others
        batch.found_s[self._name] = perf_counter() - started - nested
        return found


def _not_covered(user: str, name: str) -> DatapipeError:
    return DatapipeError(
        f"stage {user} uses `{name}` of a batch, which its fingerprint does not cover: no name in its code tells of it, so its "
        f"results would stay as they are when the code behind `{name}` changes. Name it in the stage:\n"
        f'    def segmentations(self) -> tuple[str, ...]:\n        return ("{name}",)'
    )


def _of_the_kept(earlier: _Earlier, offsets: np.ndarray) -> Any:
    from datapipe.kernels.text.selection import selected

    return selected(earlier.found, earlier.keep, earlier.offsets, offsets)


class DocumentBatch:
    """Documents as columns, with the segmentation of their text shared by all who ask for it.

    Attributes:
        found_s: seconds by the name of each segmentation that was found and not yet charged to anybody.
        earlier: by name, segmentations that were found before documents were dropped.
    """

    def __init__(self, record: pa.RecordBatch) -> None:
        self.record = record
        self.found_s: dict[str, float] = {}
        self.earlier: dict[str, _Earlier] = {}

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

    def column(self, name: str, asked_by: str) -> pa.Array:
        """A column, (num_docs,) of its own type. Raises UserError, which names who asked, where there is none."""
        names = self.record.schema.names
        if name in names:
            return self.record.column(name)
        raise UserError(
            f"{asked_by}: documents have no column '{name}'.{suggest(name, names)} They have {', '.join(names)}. Name the "
            "field in the source's `keep`, or put the stage that writes it before this one."
        )

    @cached_property
    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets (num_docs + 1,) int64 and bytes uint8 of the texts, read-only; see `columns.text_buffers`."""
        return columns.text_buffers(self.texts)

    @property
    def cut_points(self) -> pa.Array | None:
        """(num_docs,) lists of byte offsets where the texts were cut, None where no stage cut. See `stage/cut_points.py`."""
        return self.record.column(CUT_POINTS) if CUT_POINTS in self.record.schema.names else None

    @property
    def parts(self) -> Parts:
        """The texts cut at their seams, for stages that compare what was written together."""
        return parts_of(self.buffers[0], self.cut_points)

    @segmentation
    def words(self) -> Words:
        """The words of every document, split at Unicode white space; see `kernels/text/words.py`."""
        from datapipe.kernels.text.words import find_words  # numba is paid for by those who need it

        return find_words(*self.buffers)

    @segmentation
    def lines(self) -> Lines:
        """The lines of every document, split at newlines; see `kernels/text/words.py`."""
        from datapipe.kernels.text.words import find_lines

        return find_lines(*self.buffers)

    @segmentation
    def raw_lines(self) -> RawLines:
        """`lines` with the white space around them, newlines and characters of each text; see `kernels/text/raw_lines.py`."""
        from datapipe.kernels.text.raw_lines import find_raw_lines

        return find_raw_lines(*self.buffers, self.lines)

    @segmentation
    def english_words(self) -> Words:
        """The words as spaCy cuts English, punctuation apart; see `kernels/text/english_words.py`."""
        from datapipe.kernels.text.english_words import find_english_words

        return find_english_words(self.words, self.buffers[1])

    @segmentation
    def unicode_words(self) -> Words:
        """The words of any script without punctuation; see `kernels/text/unicode_words.py`."""
        from datapipe.kernels.text.unicode_words import find_unicode_words

        return find_unicode_words(*self.buffers)

    def words_by(self, rule: WordRule) -> Words:
        """The words as one of the rules has them, found once. The stage names their segmentation in `Stage.segmentations`."""
        return getattr(self, WORD_SEGMENTATIONS[rule])

    @property
    def text_bytes(self) -> int:
        offsets, _ = self.buffers
        return int(offsets[-1] - offsets[0])

    def filter(self, keep: np.ndarray) -> DocumentBatch:
        """The documents where `keep` (num_docs,) bool is true. All of them: this very batch, with its words."""
        if keep.all():
            return self
        batch = DocumentBatch(self.record.filter(pa.array(keep)))
        for name in _COPIED:
            if name in self.__dict__:
                batch.earlier[name] = _Earlier(found=self.__dict__[name], offsets=self.buffers[0], keep=keep)
            elif name in self.earlier:
                both = self.earlier[name].keep.copy()
                both[both] = keep
                batch.earlier[name] = _Earlier(found=self.earlier[name].found, offsets=self.earlier[name].offsets, keep=both)
        return batch

    def slice(self, start: int, stop: int) -> DocumentBatch:
        return DocumentBatch(self.record.slice(start, stop - start))

    def with_columns(self, new: Mapping[str, pa.Array]) -> DocumentBatch:
        """A batch with columns added or replaced. Words and lines live on unless the text changed, seams where a document's own
        text did not."""
        record, cut_points = self.record, self.cut_points
        if "text" in new and cut_points is not None:
            same = columns.compute.equal(self.texts, new["text"]).to_numpy(zero_copy_only=False)
            new = {CUT_POINTS: cut_points_where(same, cut_points), **new}
        for name, column in new.items():
            field = pa.field(name, column.type, nullable=name not in OWN_COLUMNS)
            at = record.schema.get_field_index(name)
            record = record.add_column(record.num_columns, field, column) if at < 0 else record.set_column(at, field, column)
        batch = DocumentBatch(record)
        if "text" not in new:
            batch.__dict__ |= {name: self.__dict__[name] for name in ("buffers", *_SEGMENTATIONS) if name in self.__dict__}
            batch.earlier = dict(self.earlier)
        return batch
