"""The rows of each sample: every epoch of a source has all its rows, in declared windows and strata, and can be inverted.

A source that grew draws what a simulation draws; addresses of many sources equal those of one sample at a time.
"""

import copy
import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import SnapshotError
from datapipe.kernels.tokens.permute import permute
from datapipe.loader.order import grown_order
from datapipe.loader.order.grown_order import AddressFinder, Generations, GrownOrder, source_eras
from datapipe.loader.order.layout import Runs
from datapipe.loader.order.source_order import SourceOrder
from datapipe.rng import seed_for
from datapipe.shards.source_entry import Strata


def make_part(
    sizes: list[int],
    window: int = 0,
    strata: list[int] | None = None,
    *,
    shuffle: bool = True,
    name: str = "web",
    part: tuple[str | int, ...] = (),
    first: int = 0,
    first_shard: int = 0,
    **options,
) -> SourceOrder:
    declared = None if strata is None else Strata(column="score", bounds=(1.0,) * max(strata), **options)
    numbers = np.full(len(sizes), -1) if strata is None else np.array(strata)
    runs = Runs(first + np.cumsum([0, *sizes[:-1]]), np.array(sizes), first_shard + np.arange(len(sizes)), numbers)
    return SourceOrder(5, ("loader", "train", name, *part), runs, declared, window, shuffle=shuffle)


def make_order(*arguments: Any, **options: Any) -> GrownOrder:
    """The order of a source of one part."""
    part = make_part(*arguments, **options)
    return GrownOrder([part], source_eras([(0, Generations())], [part.size]))


def rows_of(order: Any, ordinals: np.ndarray, attempt: int = 0) -> np.ndarray:
    """The address of each ordinal."""
    return AddressFinder([order]).find(np.zeros(len(ordinals), np.int64), ordinals, attempt)


SIZES = [7, 0, 30, 1, 12, 12, 5, 0, 40]


@pytest.mark.parametrize("window", [0, 1, 2, 3, 7, 8, 100])
def test_every_epoch_has_every_row_once_in_a_separate_order(window: int) -> None:
    order = make_order(SIZES, window)
    assert order.size == sum(SIZES)
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
            for row in range(0, sum(SIZES), 5):
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
    assert rows.tolist() == list(range(sum(SIZES))) * 3
    for row in range(0, sum(SIZES), 7):
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


PARTS = [[7, 0, 30, 1], [5, 5], [0], [12, 3, 3], [1]]
"""Rows of the shards of each part."""

PART_SIZES = [sum(part) for part in PARTS]


def part_orders(window: int = 2, shuffle: bool = True) -> list[SourceOrder]:
    firsts, shards = np.cumsum([0, *PART_SIZES]), np.cumsum([0, *map(len, PARTS)])
    return [
        make_part(sizes, window, shuffle=shuffle, part=("part", number), first=firsts[number], first_shard=shards[number])
        for number, sizes in enumerate(PARTS)
    ]


def moves_of(steps: Sequence[tuple[int, int]]) -> list[tuple[int, Generations]]:
    """The moves of a run.

    Args:
        steps: (samples drawn before, parts from then on), ascending.
    """
    parts, moves = Generations(count=steps[0][1]), []
    for (_, before), (start, count) in pairwise([(0, 0), *steps]):
        parts = parts.grown(count, sum(PART_SIZES[:before]), start) if before else parts
        moves.append((start, parts))
    return moves


def grown(steps: Sequence[tuple[int, int]], **options) -> GrownOrder:
    return GrownOrder(part_orders(**options), source_eras(moves_of(steps), PART_SIZES))


def simulated(steps: Sequence[tuple[int, int]], count: int, **options) -> list[int]:
    """The rows of the first `count` samples: parts are queued, and drawn to their end."""
    orders = part_orders(**options)
    later, epochs, queue, drawn = list(steps), [0] * len(PARTS), [], []
    num_parts = 0
    while len(drawn) < count:
        if later and len(drawn) == later[0][0]:
            _, more = later.pop(0)
            queue += [(part, number) for part in range(num_parts, more) for number in range(PART_SIZES[part])]
            num_parts = more
            continue
        if not queue:
            queue = [(part, number) for part in range(num_parts) for number in range(PART_SIZES[part])]
        part, number = queue.pop(0)
        row = rows_of(orders[part], np.array([epochs[part] * PART_SIZES[part] + number]))
        drawn.append(int(row[0]))
        epochs[part] += number + 1 == PART_SIZES[part]
    return drawn


MOVES = [
    *([(0, 1)], [(0, 5)], [(0, 1), (0, 3)], [(0, 1), (20, 2), (30, 4)], [(0, 1), (38, 2)]),
    *([(0, 1), (39, 2), (47, 3), (48, 4), (48, 5)], [(0, 2), (200, 4), (311, 5)]),
]


@pytest.mark.parametrize("steps", MOVES)
@pytest.mark.parametrize("attempt", [0, 1, 5])
def test_replacements_are_rows_of_the_same_epoch_that_no_move_changes_and_are_inverted(steps, attempt):
    order, last = grown(steps), source_eras(moves_of(steps), PART_SIZES)[-1]
    for number in range(1, len(steps)):
        before = np.arange(steps[number][0])
        np.testing.assert_array_equal(rows_of(order, before, attempt), rows_of(grown(steps[:number]), before, attempt))
    epoch = np.arange(last.origin + last.size, last.origin + 2 * last.size)
    rows, replaced = rows_of(order, epoch), rows_of(order, epoch, attempt)
    assert sorted(replaced.tolist()) == sorted(rows.tolist())
    assert (replaced != rows).any() or last.size < 3 or attempt == 0
    rows, epochs = rows_of(order, np.arange(450), attempt), range(order.epochs_until(450))
    for row in range(0, sum(PART_SIZES), 3):
        found = sorted(ordinal for number in epochs for ordinal in order.ordinals_of(row, number, attempt))
        assert [ordinal for ordinal in found if ordinal < 450] == np.flatnonzero(rows == row).tolist()
        assert len(set(found)) == len(found)


@pytest.mark.parametrize("steps", MOVES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_windows_ahead_hold_the_shards_of_the_samples(steps, shuffle):
    order = grown(steps, shuffle=shuffle)
    shard_starts = np.cumsum([0, *(rows for part in PARTS for rows in part)])
    for ordinal in (0, 13, 40, 250):
        ahead = list(islice(order.windows_from(ordinal), 12))
        assert ahead[0][0] <= ordinal
        for (first, shards), (after, _) in pairwise(ahead):
            rows = rows_of(order, np.arange(max(first, ordinal), after))
            assert {int(shard) for shard in np.searchsorted(shard_starts, rows, side="right") - 1} <= set(shards)


@pytest.mark.medium
@settings(deadline=None, max_examples=50)
@given(
    later=st.lists(st.tuples(st.integers(0, 150) | st.sampled_from([1, 37, 38, 39]), st.integers(1, 2)), max_size=4),
    first=st.integers(1, len(PARTS)),
    window=st.sampled_from([0, 2]),
)
def test_any_moves_are_those_of_a_simulation_and_each_row_comes_once_an_epoch(later, first, window):
    steps, drawn, count = [(0, first)], 0, first
    for more, parts in later:
        drawn, count = drawn + more, min(count + parts, len(PARTS))
        if count > steps[-1][1]:
            steps.append((drawn, count))
    last = source_eras(moves_of(steps), PART_SIZES)[-1]
    num_rows = max(drawn + 120, last.origin + last.size)
    rows = rows_of(grown(steps, window=window), np.arange(num_rows)).tolist()
    assert rows == simulated(steps, num_rows, window=window)
    assert sorted(rows[last.origin : last.origin + last.size]) == list(range(last.size))


@pytest.mark.parametrize(
    "moves",
    [
        *([(0, 6)], [(3, 1)], [(0, 1, 38, 1)], [(0, 1), (40, 1)], [(0, 2), (40, 1)], [(0, 1), (40, 2, 37, 1)]),
        *([(0, 1), (40, 2, 38, 2)], [(0, 1), (40, 2, 76, 2)], [(0, 1), (120, 2, 38, 1)]),
    ],
)
def test_moves_that_no_run_makes_are_refused(moves):
    """(samples drawn before, parts, origin, epochs) of each move."""
    names = ("count", "origin", "epochs")
    with pytest.raises(SnapshotError):
        source_eras([(start, Generations(**dict(zip(names, parts)))) for start, *parts in moves], PART_SIZES)


MANY = ([7, 30, 12], [70_000], [1], [40_000, 90_000], [300])
STARTS = np.cumsum([0, *(sum(sizes) for sizes in MANY)])


def make_finder(window: int = 0) -> AddressFinder:
    orders = [make_order(sizes, window, name=f"s{number}", first=int(STARTS[number])) for number, sizes in enumerate(MANY)]
    return AddressFinder(orders)


def drawn(num_samples: int, num_epochs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Samples of any source and epoch, in any order."""
    generator = np.random.default_rng(seed)
    sources = generator.integers(0, len(MANY), num_samples)
    return sources, generator.integers(0, num_epochs * np.diff(STARTS)[sources])


def naive(source: int, ordinal: int) -> int:
    """The address, where all shards of a source are one window."""
    size = sum(MANY[source])
    epoch, index = divmod(ordinal, size)
    key = seed_for(5, "loader", "train", f"s{source}", epoch)
    return int(STARTS[source]) + int(permute(key, size, np.array([index]))[0])


def test_addresses_of_any_sources_and_epochs_are_those_of_single_samples() -> None:
    sources, ordinals = drawn(300, num_epochs=6)
    expected = [naive(source, ordinal) for source, ordinal in zip(sources.tolist(), ordinals.tolist())]
    assert make_finder().find(sources, ordinals).tolist() == expected


@pytest.mark.parametrize("most_bytes", [grown_order.MOST_BYTES, 1])
@pytest.mark.parametrize("window", [0, 1, 2])
@pytest.mark.parametrize("attempt", [0, 2])
def test_addresses_do_not_depend_on_the_samples_before(
    window: int, attempt: int, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, ordinals = drawn(400, num_epochs=3)
    expected = make_finder(window).find(sources, ordinals, attempt)
    monkeypatch.setattr(grown_order, "MOST_BYTES", most_bytes)
    finder = make_finder(window)
    for first in (300, 0, 100, 200, 400):
        part = slice(first, first + 100)
        assert finder.find(sources[part], ordinals[part], attempt).tolist() == expected[part].tolist()


def test_several_threads_may_find_at_once() -> None:
    parts = [drawn(200, num_epochs=4, seed=seed) for seed in range(8)]
    expected = [make_finder(1).find(*part).tolist() for part in parts]
    finder = make_finder(1)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda part: finder.find(*part).tolist(), parts * 5))
    assert found == expected * 5


@pytest.mark.medium
def test_copy_reads_no_memory_of_the_original() -> None:
    sizes = [5, 60, 7, 80, 9, 10]
    sources, ordinals = np.zeros(sum(sizes), np.int64), np.arange(sum(sizes))
    original = AddressFinder([make_order(sizes, 3)])
    expected = original.find(sources, ordinals)
    copied = copy.deepcopy(original)
    del original
    gc.collect()
    overwritten = [np.full(num_items, -7) for num_items in range(1, 9) for _ in range(200)]  # the sizes of a window's entries
    assert copied.find(sources, ordinals).tolist() == expected.tolist()
    assert len(overwritten) == 1600
