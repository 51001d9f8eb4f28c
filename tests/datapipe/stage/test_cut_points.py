"""Cut points, compared with a model that keeps a mark beside every byte, and their loss when a text changes."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import text_buffers
from datapipe.stage.cut_points import CUT_POINTS, CUT_POINTS_TYPE, cut_points_after, no_cut_points, parts_of
from datapipe.stage.documents import DocumentBatch
from tests.support.global_stages import batch_of


def _with_cut_points(texts: list[str], cut_points: list[list[int]]) -> DocumentBatch:
    return batch_of(texts, cut_points=pa.array(cut_points, CUT_POINTS_TYPE))


def _cut(sizes: list[int], cut_points: list[list[int]], cuts: list[list[tuple[int, int]]]) -> list[list[int]]:
    """The cut points after bytes are cut: per remaining text, the offsets after a cut byte or an old cut point."""
    left = []
    for size, marks, spans in zip(sizes, cut_points, cuts):
        gone = {at for start, stop in spans for at in range(start, stop)}
        kept, found, marked = 0, set(), False
        for at in range(size):
            marked |= at in marks or at in gone
            if at not in gone:
                if marked and kept:
                    found.add(kept)
                kept, marked = kept + 1, False
        left.append(sorted(found))
    return left


@pytest.mark.parametrize("seed", range(20))
def test_cut_points_after_cuts_equal_those_of_a_model(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 5, 12]) for _ in range(rng.randint(1, 6))]
    offsets = np.cumsum([3, *sizes])
    before = [sorted(rng.sample(range(1, size), rng.randint(0, min(3, size - 1)))) if size else [] for size in sizes]
    cuts = []
    for size in sizes:
        ends = sorted(rng.sample(range(size + 1), 2 * rng.randint(0, (size + 1) // 4)))
        cuts.append(list(zip(ends[::2], ends[1::2])))
    spans = np.array([(at + start, at + stop) for at, part in zip(offsets, cuts) for start, stop in part], np.int64)
    starts, stops = spans.reshape(-1, 2).T
    left = [size - sum(stop - start for start, stop in part) for size, part in zip(sizes, cuts)]
    column = rng.choice([pa.array(before, CUT_POINTS_TYPE), None])
    found = cut_points_after(offsets, column, starts, stops, np.cumsum([0, *left]))
    found.validate(full=True)
    assert found.type == CUT_POINTS_TYPE
    assert found.to_pylist() == _cut(sizes, before if column is not None else [[]] * len(sizes), cuts)


def test_parts_are_those_of_a_slice_and_of_texts_without_cut_points() -> None:
    batch = _with_cut_points(["abcdef", "", "ghi", "jk"], [[2, 5], [], [1], []])
    for part, expected in ((batch, ["ab", "cde", "f", "", "g", "hi", "jk"]), (batch.slice(1, 3), ["", "g", "hi"])):
        data, parts = part.buffers[1], part.parts
        said = [bytes(data[start:stop]).decode() for start, stop in zip(parts.offsets[:-1], parts.offsets[1:])]
        assert said == expected
    assert batch.parts.documents.tolist() == [0, 0, 0, 1, 2, 2, 3]
    offsets = text_buffers(batch.texts)[0]
    for none in (None, no_cut_points(4)):
        assert parts_of(offsets, none).offsets.tolist() == offsets.tolist()
        assert parts_of(offsets, none).documents.tolist() == [0, 1, 2, 3]


def test_cut_points_are_dropped_where_the_text_of_their_document_changes() -> None:
    batch = _with_cut_points(["one two", "three", "four five", ""], [[4], [], [5], []]).slice(0, 3)
    assert batch.with_columns({"score": pa.array([1, 2, 3])}).record.column(CUT_POINTS).to_pylist() == [[4], [], [5]]
    changed = batch.with_columns({"text": pa.array(["one two", "3", "4 five"], pa.large_string())})
    assert changed.record.schema.types == batch.record.schema.types
    assert changed.record.column(CUT_POINTS).to_pylist() == [[4], [], []]
    assert batch_of(["a"]).with_columns({"text": pa.array(["b"], pa.large_string())}).cut_points is None
