"""Cut points: byte offsets where a stage removed a span. Text that spans one never existed in the source.

    "One. Two. Three."  cut "Two. " ─▶  "One. Three."   cut_points [5]
                        cut "One. " ─▶  "Three."        cut_points []    (no cut point at the ends of a text)

They are a column of lists, ascending. The engine adds and moves them when it applies cuts
(`cut_points_after`), and a document whose text a stage changes loses them. Stages that compare
spans take a cut point as the end of a document (`DocumentBatch.parts`). Nothing else reads them.
"""

import numpy as np
import pyarrow as pa

from datapipe.dataclass import dataclass

CUT_POINTS = "cut_points"
CUT_POINTS_TYPE = pa.list_(pa.int64())


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Texts split at their cut points, each part for a document: byte offsets (num_parts + 1,) int64 as in
    `columns.text_buffers`, and the document of each part, (num_parts,) int64, ascending."""

    offsets: np.ndarray
    documents: np.ndarray


def no_cut_points(num_docs: int) -> pa.Array:
    """The column for documents without cut points."""
    return _lists(np.zeros(num_docs, np.int64), np.zeros(0, np.int64))


def parts_of(offsets: np.ndarray, cut_points: pa.Array | None) -> Parts:
    """The parts of texts by their offsets (num_docs + 1,) int64 and cut points (num_docs,), None if no stage has cut."""
    documents = np.arange(len(offsets) - 1)
    if cut_points is None:
        return Parts(offsets=offsets, documents=documents)
    counts, byte_offsets = _byte_offsets(offsets, cut_points)
    return Parts(offsets=np.sort(np.concatenate([offsets, byte_offsets])), documents=np.repeat(documents, counts + 1))


def cut_points_after(
    offsets: np.ndarray, cut_points: pa.Array | None, starts: np.ndarray, stops: np.ndarray, out_offsets: np.ndarray
) -> pa.Array:
    """The cut points of texts after spans are removed: the existing ones, moved, and a new one for each span.
    `offsets`, `out_offsets`: (num_docs + 1,) int64, of the texts before and after the cuts. `starts`, `stops`:
    (num_cuts,) int64, the removed bytes; ascending, without overlap, none empty."""
    byte_offsets = np.zeros(0, np.int64) if cut_points is None else _byte_offsets(offsets, cut_points)[1]
    byte_offsets = np.concatenate([starts, byte_offsets])
    moved = np.unique(offsets_after(byte_offsets, starts, stops) + (out_offsets[0] - offsets[0]))
    documents = np.searchsorted(out_offsets, moved, "right") - 1
    inside = out_offsets[documents] < moved  # no cut point at the begin of a text, which is the end of another
    moved, documents = moved[inside], documents[inside]
    return _lists(np.bincount(documents, minlength=len(offsets) - 1), moved - out_offsets[documents])


def offsets_after(byte_offsets: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Where byte offsets, (num_offsets,) int64, lie once the bytes from `starts` to `stops` are removed: one inside a removed
    span moves to its place. `starts`, `stops`: (num_cuts,) int64, ascending, without overlap."""
    removed = np.concatenate([[0], np.cumsum(stops - starts)])
    before = np.searchsorted(starts, byte_offsets)  # spans that begin before an offset; the last of them may reach over it
    last = np.maximum(before - 1, 0)
    over = np.where(before > 0, np.maximum(stops[last] - byte_offsets, 0), 0) if len(starts) else 0
    return byte_offsets - removed[before] + over


def cut_points_where(kept: np.ndarray, cut_points: pa.Array) -> pa.Array:
    """The cut points of documents where `kept` (num_docs,) bool is true; the others lose theirs."""
    counts = np.diff(cut_points.offsets.to_numpy())
    return _lists(np.where(kept, counts, 0), cut_points.flatten().to_numpy()[np.repeat(kept, counts)])


def _byte_offsets(offsets: np.ndarray, cut_points: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The number of cut points of each text, (num_docs,) int64, and their offsets in all bytes, (num_cut_points,) int64."""
    counts = np.diff(cut_points.offsets.to_numpy())
    return counts, cut_points.flatten().to_numpy() + np.repeat(offsets[:-1], counts)


def _lists(counts: np.ndarray, values: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int64()), type=CUT_POINTS_TYPE)
