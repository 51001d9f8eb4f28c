"""Every epoch of a source has all its rows, in the declared windows and strata, and the order can be inverted."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from datapipe.loader.order.address_finder import AddressFinder
from datapipe.loader.order.source_order import SourceOrder
from datapipe.shards.manifest import Strata


def make_order(
    sizes: list[int], window: int = 0, strata: list[int] | None = None, shuffle: bool = True, **options
) -> SourceOrder:
    declared = None if strata is None else Strata(column="score", bounds=(1.0,) * max(strata), **options)
    numbers = np.full(len(sizes), -1) if strata is None else np.array(strata)
    return SourceOrder(5, ("loader", "train", "web"), np.array(sizes), numbers, declared, window, shuffle=shuffle)


def rows_of(order: SourceOrder, ordinals: np.ndarray, attempt: int = 0) -> np.ndarray:
    """The row of each ordinal, counted over the shards of the source in the order of their paths."""
    starts = np.array([0, order.num_rows])
    return AddressFinder([order], starts).find(np.zeros(len(ordinals), np.int64), ordinals, attempt)


SIZES = [7, 0, 30, 1, 12, 12, 5, 0, 40]


@pytest.mark.parametrize("window", [0, 1, 2, 3, 7, 8, 100])
def test_every_epoch_has_every_row_once_in_an_order_of_its_own(window: int) -> None:
    order = make_order(SIZES, window)
    assert order.size == order.num_rows == sum(SIZES)
    epochs = rows_of(order, np.arange(4 * order.size)).reshape(4, -1)
    assert all(sorted(epoch.tolist()) == list(range(order.size)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 4
    firsts = {tuple(sorted(next(order.windows_from(epoch * order.size))[1])) for epoch in range(20)}
    assert len(firsts) > 3 if window in (1, 2, 3) else len(firsts) == 1  # other shards are mixed with each other


@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("options", [None, {"repeats": (1, 2, 3)}, {"repeats": (1, 1, 2), "order": "descending"}])
def test_ordinals_of_is_the_inverse(window: int, options: dict | None) -> None:
    strata = None if options is None else [0, 0, 1, 1, 2, 2, 0, 1, 2]
    order = make_order(SIZES, window, strata, **(options or {}))
    for attempt in (0, 2):
        rows = rows_of(order, np.arange(3 * order.size), attempt).reshape(3, -1)
        for epoch in range(3):
            for row in range(0, order.num_rows, 5):
                expected = np.flatnonzero(rows[epoch] == row) + epoch * order.size
                assert order.ordinals_of(row, epoch, attempt) == expected.tolist()


@pytest.mark.parametrize("window", [1, 2, 3])
def test_windows_use_that_many_shards_at_a_time_and_each_once_an_epoch(window: int) -> None:
    order = make_order(SIZES, window)
    starts = np.cumsum([0, *SIZES])
    shards = np.searchsorted(starts, rows_of(order, np.arange(order.size)), side="right") - 1
    seen: set[int] = set()
    ahead = list(islice(order.windows_from(0), -(-7 // window) + 1))
    for (first, members), (stop, _) in zip(ahead, ahead[1:]):
        assert set(shards[first:stop].tolist()) == set(members)
        assert len(members) <= window
        assert not seen & set(members)
        seen |= set(members)
    assert seen == {0, 2, 3, 4, 5, 6, 8}
    assert ahead[-1][0] == order.size


@pytest.mark.parametrize(("declared", "expected"), [("ascending", [0, 1, 2]), ("descending", [2, 1, 0])])
@pytest.mark.parametrize("window", [0, 2])
def test_strata_in_order_are_a_curriculum(declared, expected: list[int], window: int) -> None:
    strata = [2, 0, 1, 0, 1, 2, 0]
    order = make_order([10] * 7, window, strata, repeats=(1, 1, 1), order=declared)
    rows = rows_of(order, np.arange(2 * order.size)).reshape(2, -1)
    for epoch in rows:
        drawn = np.array(strata)[epoch // 10]
        assert [stratum for stratum, _ in zip(*np.unique(drawn, return_index=True))] == [0, 1, 2]
        assert drawn.tolist() == sorted(drawn.tolist(), key=expected.index)
        assert sorted(epoch.tolist()) == list(range(70))


@pytest.mark.parametrize("declared", ["shuffled", "ascending"])
def test_strata_repeats_come_up_as_often_in_every_epoch(declared) -> None:
    strata = [0, 1, 2, 0, 1, 2]
    order = make_order([5] * 6, 2, strata, repeats=(1, 0, 3), order=declared)
    assert order.size == 10 * 1 + 10 * 3
    rows = rows_of(order, np.arange(order.size))
    times = np.bincount(rows, minlength=30).reshape(6, 5)
    assert (times == np.array([1, 0, 3, 1, 0, 3])[:, None]).all()


@pytest.mark.parametrize("shuffle", [True, False])
def test_unreadable_row_is_replaced_by_a_row_of_the_same_epoch(shuffle: bool) -> None:
    order = make_order(SIZES, 2, shuffle=shuffle)
    rows = [rows_of(order, np.arange(3 * order.size), attempt) for attempt in (0, 1, 2)]
    for found in rows:
        assert all(sorted(epoch.tolist()) == list(range(order.size)) for epoch in found.reshape(3, -1))
    for one, other in ((0, 1), (1, 2)):
        assert (rows[one] != rows[other]).mean() > 0.9


@pytest.mark.parametrize("window", [0, 3])
def test_unshuffled_epochs_have_the_rows_in_the_order_of_the_shards(window: int) -> None:
    order = make_order(SIZES, window, shuffle=False)
    rows = rows_of(order, np.arange(3 * order.size))
    assert rows.tolist() == list(range(order.num_rows)) * 3
    for row in range(0, order.num_rows, 7):
        assert order.ordinals_of(row, 2) == [2 * order.size + row]
    shards = [shards for _, shards in islice(order.windows_from(order.size + 8), 7)]
    assert shards == [[2], [3], [4], [5], [6], [8], [0]]


def test_unshuffled_strata_keep_their_repeats_and_their_order() -> None:
    strata = [0, 0, 1, 1, 2, 2, 0, 1, 2]
    order = make_order(SIZES, 0, strata, shuffle=False, repeats=(1, 0, 2), order="descending")
    starts = np.cumsum([0, *SIZES])
    shards = [number for number in (4, 5, 8, 4, 5, 8, 0, 6) for _ in range(SIZES[number])]
    rows = rows_of(order, np.arange(order.size))
    assert (np.searchsorted(starts, rows, side="right") - 1).tolist() == shards
    assert (np.diff(rows)[np.diff(shards) == 0] == 1).all()
