"""Seams: places in a text where something was cut out, so that what stands on either side of them was never written together.

    "One. Two. Three."  cut "Two. " ─▶  "One. Three."   seams [5]
                        cut "One. " ─▶  "Three."        seams []    (a seam at an end says nothing)

Documents that a stage has cut carry them in a column of lists: byte offsets inside the text, ascending. Verdicts that cut write
it and move what is there (`seams_after`); where a stage changes the text of a document, it has none any more
(`DocumentBatch.with_columns`). To stages that compare pieces of text a seam is the end of a document (`DocumentBatch.parts`),
so that they find nothing that came about by cutting. Nothing else looks at seams: texts are joined at them for the tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

CUT_POINTS = "cut_points"
SEAMS_TYPE = pa.list_(pa.int64())


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Texts cut at their seams, as if each part were a document.

    Attributes:
        offsets: (num_parts + 1,) int64, the bytes of the parts, as `columns.text_buffers` has those of texts.
        documents: (num_parts,) int64, ascending.
    """

    offsets: np.ndarray
    documents: np.ndarray


def no_cut_points(num_docs: int) -> pa.Array:
    """The column where nothing was cut."""
    return _lists(np.zeros(num_docs, np.int64), np.zeros(0, np.int64))


def parts_of(offsets: np.ndarray, cut_points: pa.Array | None) -> Parts:
    """The parts of texts.

    Args:
        offsets: (num_docs + 1,) int64.
        seams: (num_docs,) of `SEAMS_TYPE`, without nulls; None where nothing was ever cut.
    """
    documents = np.arange(len(offsets) - 1)
    if cut_points is None:
        return Parts(offsets=offsets, documents=documents)
    counts, places = _places(offsets, cut_points)
    return Parts(offsets=np.sort(np.concatenate([offsets, places])), documents=np.repeat(documents, counts + 1))


def cut_points_after(
    offsets: np.ndarray, cut_points: pa.Array | None, starts: np.ndarray, stops: np.ndarray, out_offsets: np.ndarray
) -> pa.Array:
    """The seams of texts out of which spans are cut: those that they had, moved, and one for each span.

    Args:
        offsets: (num_docs + 1,) int64, of the texts before.
        seams: (num_docs,) of `SEAMS_TYPE`, theirs; None where they have none.
        starts, stops: (num_cuts,) int64, the bytes that go; ascending, without overlap, none empty.
        out_offsets: (num_docs + 1,) int64, of the texts after.
    """
    places = np.zeros(0, np.int64) if cut_points is None else _places(offsets, cut_points)[1]
    places = np.concatenate([starts, places])
    removed = np.concatenate([[0], np.cumsum(stops - starts)])
    before = np.searchsorted(starts, places)  # spans that begin before a place; the last of them may reach over it
    last = np.maximum(before - 1, 0)
    over = np.where(before > 0, np.maximum(stops[last] - places, 0), 0) if len(starts) else 0
    moved = np.unique(places - removed[before] + over + (out_offsets[0] - offsets[0]))
    documents = np.searchsorted(out_offsets, moved, "right") - 1
    inside = out_offsets[documents] < moved  # at the begin of a text, which is the end of another, it says nothing
    moved, documents = moved[inside], documents[inside]
    return _lists(np.bincount(documents, minlength=len(offsets) - 1), moved - out_offsets[documents])


def cut_points_where(kept: np.ndarray, cut_points: pa.Array) -> pa.Array:
    """The seams of documents where `kept` (num_docs,) bool is true; the others have none."""
    counts = np.diff(cut_points.offsets.to_numpy())
    return _lists(np.where(kept, counts, 0), cut_points.flatten().to_numpy()[np.repeat(kept, counts)])


def _places(offsets: np.ndarray, cut_points: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """How many seams each text has, (num_docs,) int64, and the byte of each, (num_seams,) int64."""
    counts = np.diff(cut_points.offsets.to_numpy())
    return counts, cut_points.flatten().to_numpy() + np.repeat(offsets[:-1], counts)


def _lists(counts: np.ndarray, values: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int64()), type=SEAMS_TYPE)
