"""Parts of names from columns of every type, and the hash ranges of the cells of a source."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.errors import UserError
from datapipe.exchange.ranges import HASH_SPACE
from datapipe.steps.cells import (
    CELL_SHIFT,
    Axis,
    again_borders,
    borders_within,
    cell_hashes,
    cell_of_border,
    cell_ranges,
    joined_parts,
    parts_of,
)

PARTS = [
    (Axis(column="x"), pa.array(["a/b", None, "", "none", "a/b"]), ["a%2Fb", "none", "none", "%6Eone", "a%2Fb"]),
    (Axis(column="x"), pa.array([3, None, -1], pa.int16()), ["3", "none", "-1"]),
    (Axis(column="x"), pa.array([True, False, None]), ["true", "false", "none"]),
    (Axis(column="x"), pa.array(["b", "a", None]).dictionary_encode(), ["b", "a", "none"]),
    (Axis(column="x"), pa.nulls(2), ["none", "none"]),
    (Axis(column="x", bounds=(2.0, 10.0)), pa.array([1.9, 2, 10, np.nan, None]), ["0", "1", "2", "none", "none"]),
    (Axis(column="x", bounds=(2.0,)), pa.array([" 2 ", "x", None, "1e0"]), ["1", "none", "none", "0"]),
]


@pytest.mark.parametrize(("axis", "column", "expected"), PARTS)
def test_parts_of_columns(axis, column, expected):
    record = pa.record_batch({"key": make_keys(1, np.arange(len(column), dtype=np.uint64)), "x": column})
    codes, names = parts_of(axis, record, 0, "crawl")
    assert [names[code] for code in codes.tolist()] == expected
    pairs, joined = joined_parts([(codes, names), (codes, names)])
    assert [joined[pair] for pair in pairs.tolist()] == [f"{part}/{part}" for part in expected]
    assert sorted(joined) == sorted({f"{part}/{part}" for part in expected})


@pytest.mark.parametrize("column", [pa.array([0.5]), pa.array([[1]])])
def test_columns_without_names_are_refused(column):
    record = pa.record_batch({"key": make_keys(1, np.zeros(1, np.uint64)), "x": column})
    with pytest.raises(UserError, match=r"sources.crawl.split.by: column 'x' holds"):
        parts_of(Axis(column="x"), record, 0, "crawl")


def test_ranges_hold_neighbouring_cells_or_a_part_of_one():
    rng = np.random.default_rng(0)
    assert cell_ranges([0, 0], 10) == []
    for _ in range(200):
        sizes = (rng.integers(0, 30, rng.integers(1, 40)) ** rng.integers(1, 3)).tolist()
        ranges = cell_ranges(sizes, 100)
        if not any(sizes):
            continue
        assert (ranges[0][0], ranges[-1][1]) == (0, HASH_SPACE)
        assert all(one[1] == other[0] and one[0] < one[1] for one, other in zip(ranges, ranges[1:]))
        for start, stop in ranges:
            first, last = start >> CELL_SHIFT, min((stop - 1) >> CELL_SHIFT, len(sizes) - 1)
            whole = [cell for cell in range(first, last + 1) if sizes[cell]]
            assert sum(sizes[cell] for cell in whole) <= 100 or len(whole) == 1
        spans = [(start >> CELL_SHIFT, (stop - 1) >> CELL_SHIFT) for start, stop in ranges]
        of_cell = [sum(first <= cell <= last for first, last in spans) for cell in range(len(sizes))]
        assert of_cell == [max(1, math.ceil(size / 100)) for size in sizes]


def test_borders_of_a_range_say_what_all_borders_say():
    rng = np.random.default_rng(1)
    repeats = [Fraction(int(rng.integers(0, 40)), int(rng.integers(1, 9))) for _ in range(30)]
    cells, hashes = rng.integers(0, 30, 3000), rng.integers(0, 1 << 63, 3000).astype(np.uint64) * np.uint64(2)
    rows = cell_hashes(cells, hashes).tolist()
    again = [Fraction(shuffle >> 14, 1 << 50) < repeats[cell] % 1 for cell, shuffle in zip(cells.tolist(), hashes.tolist())]
    borders = again_borders(repeats)
    for start, stop in cell_ranges(rng.integers(1, 500, 30).tolist(), 100):
        own = {cell_of_border(border): border for border in borders_within(borders, start, stop)}
        for row, expected in zip(rows, again):
            if start <= row < stop:
                assert (row < own.get(row >> CELL_SHIFT, 0)) == expected
