"""Samples of cells: a slow definition gives the same addresses, and so does the order that has the inverse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.order.grown_order import AddressFinder
from datapipe.loader.order.recipe import recipe_of
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.trace import trace_step
from datapipe.rng import seed_for
from datapipe.shards.manifest import read_snapshot
from datapipe.storage.root import Root
from tests.oracles import loading as oracle
from tests.support.snapshots import make_cells, make_growing_snapshots, make_snapshot

NAMES = ["en/a", "en/b", "ja/a", "ja/b", "de/a", "de/b", "de/c"]
REPEATS = ["1", "5/2", "1/2", "3", "0", "1/3", "7/4"]
ROWS = [(1, 0), (20, 21), (30, 35), (2, 0), (5, 0), (0, 64), (200, 97)]
"""Of each cell the rows that an epoch has, and those it has once more."""

MORE = [(3, 0), (0, 0), (0, 2), (40, 0), (9, 0), (1, 1), (3, 3)]


def runs(rows: list[tuple[int, int]]) -> list[tuple[int, bool, int]]:
    """The rows of the cells in turn, as they lie in the shards."""
    return [(cell, again, count) for cell, both in enumerate(rows) for again, count in zip((False, True), both) if count]


def total(rows: list[tuple[int, int]]) -> int:
    return sum(map(sum, rows))


def cells_of(names: list[str] = NAMES, repeats: list[str] = REPEATS):
    return make_cells(names, weights=[0 if repeat == "0" else 3 for repeat in repeats], repeats=repeats)


def order_of(loader: Loader) -> BatchOrder:
    order = loader.batch_order
    assert isinstance(order, BatchOrder)
    return order


def inventory_of(folder: Path, snapshot: str | None = None, window: int = 0, **options) -> Inventory:
    return Inventory(read_snapshot(Root(str(folder)), snapshot), "train", 17, window, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = {"crawl": (cells_of(), runs(ROWS))}
    return make_snapshot(tmp_path_factory.mktemp("cells"), {"books": 40, "crawl": total(ROWS)}, cells=cells, rows_per_shard=50)


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A snapshot, and one with more rows and a cell more."""
    folder, more = tmp_path_factory.mktemp("growing"), [*MORE, (7, 5)]
    sources = {"books": [40], "crawl": [total(ROWS), total(more)]}
    first, later = (cells_of(), runs(ROWS)), (cells_of([*NAMES, "zz/z"], [*REPEATS, "3/2"]), runs(more))
    made = make_growing_snapshots(folder, sources, cells={"crawl": first}, later_cells={"crawl": [later]}, rows_per_shard=50)
    return folder, made


Parts = list[tuple[int, list[tuple[int, int]]]]


def defined(cell: int, ordinal: int, parts: Parts, names: list[str], repeats: list[str]) -> int:
    """The address of a sample, from lists of all rows. `parts`: of each generation, its first address and rows by cell."""
    numerator, _, denominator = repeats[cell].partition("/")
    times = int(numerator) // int(denominator or 1)
    epochs = []
    for first, rows in parts:
        start = first + sum(map(sum, rows[:cell]))
        once, again = rows[cell]
        epochs.append([*range(start, start + once)] * times + [*range(start + once, start + once + again)] * (times + 1))
    epoch, index = divmod(ordinal, sum(map(len, epochs)))
    for part, addresses in enumerate(epochs):
        if index < len(addresses):
            seed = seed_for(17, "loader", "train", f"crawl/{names[cell]}", *(("part", part) if part else ()))
            key, size = oracle.mix((seed + (epoch + 1) * oracle.GOLDEN) % oracle.WORD), len(addresses)
            if size <= 64:
                return addresses[oracle.shuffled(key, size)[index]]
            return addresses[oracle.feistel(index, size, oracle.round_keys(key, 8))]
        index -= len(addresses)
    raise AssertionError(ordinal)


def drawn_cells(inventory: Inventory) -> list[int]:
    return [number for number, name in enumerate(inventory.layout.sources) if "/" in name and inventory.sizes[name]]


def check_defined(inventory: Inventory, parts: Parts, names: list[str], repeats: list[str]) -> None:
    generator = np.random.default_rng(1)
    for source in drawn_cells(inventory):
        name = inventory.layout.sources[source]
        ordinals = generator.integers(0, 5 * inventory.sizes[name], 40)
        cell = names.index(name.removeprefix("crawl/"))
        expected = [defined(cell, ordinal, parts, names, repeats) for ordinal in ordinals.tolist()]
        assert inventory.addresses.find(np.full(40, source), ordinals).tolist() == expected


def test_samples_of_cells_are_those_of_the_definition(folder: Path) -> None:
    check_defined(inventory_of(folder), [(40, ROWS)], NAMES, REPEATS)


def test_samples_of_cells_in_several_generations_are_those_of_the_definition(growing: tuple[Path, list[str]]) -> None:
    folder, (_, grown) = growing
    parts = [(40, [*ROWS, (0, 0)]), (40 + total(ROWS), [*MORE, (7, 5)])]
    check_defined(inventory_of(folder, grown), parts, [*NAMES, "zz/z"], [*REPEATS, "3/2"])


@pytest.mark.parametrize("options", [{}, {"window": 1}, {"window": 2}, {"shuffle": False}])
def test_an_epoch_has_the_rows_as_often_as_the_cell_repeats_them_and_is_inverted(folder: Path, options) -> None:
    inventory = inventory_of(folder, **options)
    for source in drawn_cells(inventory):
        name = inventory.layout.sources[source]
        order, size, (once, again) = inventory.orders[source], inventory.sizes[name], ROWS[NAMES.index(name[6:])]
        times = {"1": 1, "5/2": 2, "1/2": 0, "3": 3, "1/3": 0, "7/4": 1}[REPEATS[NAMES.index(name[6:])]]
        ordinals = np.arange(3 * size)
        addresses = inventory.addresses.find(np.full(len(ordinals), source), ordinals)
        np.testing.assert_array_equal(AddressFinder([order]).find(np.zeros_like(ordinals), ordinals), addresses)
        start = 40 + total(ROWS[: NAMES.index(name[6:])])
        for epoch, found in enumerate(addresses.reshape(3, -1)):
            counts = np.bincount(found - start, minlength=once + again)
            assert counts.tolist() == [times] * once + [times + 1] * again
            for address in {*found[::11].tolist()}:
                assert order.ordinals_of(address, epoch) == (np.flatnonzero(found == address) + epoch * size).tolist()
        assert inventory.layout.source_of(addresses).tolist() == [source] * len(addresses)


@pytest.mark.parametrize("move", [0, 1, 90, 700])
@pytest.mark.parametrize("window", [0, 1])
def test_cells_that_grew_within_a_run_draw_what_their_orders_draw(growing, move: int, window: int) -> None:
    folder, snapshots = growing
    loader = Loader(folder, snapshot=snapshots[0], global_batch_size=4, window=window)
    loader.seek(move)
    before = [loader.batch(step)["input_ids"] for step in range(move)]
    loader.advance(snapshots[1])
    order = order_of(loader).sample_order
    for step, ids in enumerate(before):
        np.testing.assert_array_equal(loader.batch(step)["input_ids"], ids)
    sources, ordinals = order.mixture.assign(np.arange(4 * move, 4 * move + 3000))
    expected = AddressFinder([*order._orders[:]]).find(sources, ordinals)
    np.testing.assert_array_equal(order._addresses.find(sources, ordinals), expected)


def test_windows_ahead_hold_the_shards_that_are_read_next(folder: Path) -> None:
    for window in (0, 1):
        loader = Loader(folder, global_batch_size=8, window=window)
        order = order_of(loader)
        for step in (0, 7, 100):
            read = order.layout.find(order.addresses_of(order.samples(step)))[0]
            assert set(read.tolist()) <= set(order.sample_order.windows_ahead(8 * step))


def test_a_trace_names_the_cell_that_the_loader_drew_a_row_from(folder: Path) -> None:
    loader = Loader(folder, global_batch_size=8, fields=("sources",))
    for step in range(6):
        traced = {row.row: row.source for row in trace_step(folder, step, global_batch_size=8)}
        assert [traced[row] for row in range(8)] == [loader.sources[source] for source in loader.batch(step)["sources"]]


def test_replacements_are_rows_of_the_same_cell(folder: Path) -> None:
    shards = [shard.path for shard in read_snapshot(Root(str(folder))).shards]
    left_out = Loader(folder, global_batch_size=8, skip_shards=shards[2:4], mixture={"crawl/de/c": 1}, fields=("sources",))
    order = order_of(left_out)
    for step in range(60):
        assert not {2, 3} & set(order.layout.find(order.addresses_of(order.samples(step)))[0].tolist())
        assert {left_out.sources[source] for source in left_out.batch(step)["sources"]} == {"crawl/de/c"}


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        ({"books": 1, "crawl": 1}, {"books": 6, **dict.fromkeys(["en/a", "en/b", "ja/a", "ja/b", "de/b", "de/c"], 1)}),
        ({"crawl/*/a": 2, "crawl": 4}, {"en/a": 1, "ja/a": 1, "en/b": 1, "ja/b": 1, "de/b": 1, "de/c": 1}),
        ({"crawl": 1, "crawl/de/*": 0}, dict.fromkeys(["en/a", "en/b", "ja/a", "ja/b"], 1)),
        ({"crawl/*/?": 1, "crawl/en/a": 5}, {"en/a": 25, **dict.fromkeys(["en/b", "ja/a", "ja/b", "de/b", "de/c"], 1)}),
        ({"crawl/de/a": 1, "books": 2}, {"de/a": 1, "books": 2}),
    ],
)
def test_a_key_of_a_mixture_takes_the_cells_that_no_later_pattern_takes(folder: Path, mixture, expected) -> None:
    snapshot = read_snapshot(Root(str(folder)))
    [phase] = recipe_of(snapshot, mixture).phases
    assert phase.weights == {name if name == "books" else f"crawl/{name}": weight for name, weight in expected.items()}


@pytest.mark.parametrize(
    ("mixture", "reason"),
    [
        ({"crawls/en/a": 1}, "no source 'crawls/en/a'"),
        ({"crawl/en/x": 1}, "where * stands for all of a part. Did you mean 'crawl/en/"),
        ({"crawl/*": 1}, "names of 2 parts"),
        ({"books/a": 1}, "source 'books' has no cells"),
        ({"crawl/xx/*": 1}, "takes no cell"),
        ({"crawl": 1, "crawl/*/*": 1}, "'crawl' takes no cell"),
        ({"crawl/en/a": 5, "crawl/*/a": 1}, "'crawl/en/a' takes no cell"),
    ],
)
def test_keys_that_take_no_cell_are_refused(folder: Path, mixture, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        Loader(folder, global_batch_size=2, mixture=mixture)
    assert reason in str(caught.value)


def test_a_cell_with_weight_and_no_rows_in_an_epoch_is_refused(folder: Path) -> None:
    with pytest.raises(SnapshotError, match="'crawl/de/a' has weight in the mixture, but all its rows are repeated 0 times"):
        Loader(folder, global_batch_size=2, mixture={"crawl/de/a": 1})
