"""The loader's contract, over every combination: restored at any step, in a world of any size, it continues exactly there.

Mixtures (one phase, steps, a staircase with redistributed caps, cells with fractional repeats), skips, windows, rows in the
order of shards, batches of one source, and world sizes 1 to 9, from a local folder and from an S3 server on loopback, with its
cache and without. A run that moves to newer snapshots of a growing source keeps what was handed out.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.order.state import sealed
from datapipe.loader.trace import trace_document, trace_step
from datapipe.shards.source_entry import Cells
from tests.support.loader_rows import assert_joined, assert_no_row_early, first_tokens, rows_by_source
from tests.support.object_store import object_store
from tests.support.snapshots import make_cells, make_growing_snapshots, make_snapshot, upload

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
SIZES = {"code": 31, "web": 83, "zeta": 10}
NUM_STEPS = 12
GLOBAL_BATCH = 7
FIELDS = ("input_ids", "labels", "position_ids", "segment_ids", "document_keys", "sources", "step")
PER_ROW = FIELDS[:-1]


@dataclass(frozen=True, kw_only=True)
class Case:
    """The options of a snapshot's mixture."""

    phases: Sequence[tuple[int | None, Mapping[str, int]]]
    exhausted: str = "stop"
    max_epochs: Mapping[str, float] | None = None
    cells: Mapping[str, tuple[Cells, Sequence[tuple[int, bool, int]]]] = field(default_factory=dict)


CASES = {
    "one-phase": Case(phases=[(None, {"code": 1, "web": 3, "zeta": 1})]),
    "phases": Case(phases=[(S * 40, {"web": 1}), (S * 75, {"code": 2, "zeta": 1}), (None, {"code": 1, "web": 1})]),
    "stairs-and-caps": Case(
        phases=[*((S * 9 * stair, {"code": stair, "web": 8 - stair, "zeta": 1}) for stair in range(1, 8)), (None, {"web": 1})],
        exhausted="redistribute",
        max_epochs={"zeta": 0.5, "code": 1},
    ),
    "cells": Case(
        phases=[(S * 40, {"code": 1, "web": 3, "web/*/1": 2}), (None, {"web/en/*": 3, "web": 1, "zeta": 1})],
        cells={
            "web": (
                make_cells(["en/0", "en/1", "ja/0", "ja/1"], weights=[30, 5, 8, 1], repeats=["1", "5/2", "1/2", "2"]),
                [(0, False, 60), (1, False, 4), (1, True, 3), (2, False, 5), (2, True, 6), (3, False, 5)],
            )
        },
    ),
}
SKIPS: dict[str, list[tuple[int, int]]] = {"none": [], "ranges": [(3, 5), (9, 10), (14, 30)]}
ORDERS: dict[str, dict[str, Any]] = {
    **{f"window-{shards}": {"window": shards} for shards in (0, 1, 2, 4)},
    "unshuffled": {"shuffle": False},
    "one-source-batches": {"group_rows": GLOBAL_BATCH},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The snapshot of each case."""
    options: dict[str, Any] = {
        name: {"exhausted": case.exhausted, "max_epochs": case.max_epochs, "cells": case.cells} for name, case in CASES.items()
    }
    return {
        name: make_snapshot(tmp_path_factory.mktemp(name), SIZES, phases=case.phases, **options[name])
        for name, case in CASES.items()
    }


@pytest.fixture(scope="module")
def urls(folders: dict[str, Path]) -> Iterator[dict[str, str]]:
    """The same on an object store."""
    with ExitStack() as stack:
        query = stack.enter_context(object_store("snapshots"))
        yield {name: upload(folder, f"s3://snapshots/{name}{query}") for name, folder in folders.items()}


def check_restored_at_every_step(folder: Path, output: Path | str, worlds: Sequence[int], **options: Any) -> None:
    """The ranks of every world hand out the batches of one process that reads `folder`, from any of its states."""
    storage = {name: options.pop(name) for name in ("cache_bytes", "cache_folder") if name in options}
    options |= {"global_batch_size": GLOBAL_BATCH, "fields": FIELDS}
    reference = Loader(folder, **options)
    states, batches = [reference.state_dict()], []
    for batch in islice(reference, NUM_STEPS):
        states.append(json.loads(json.dumps(reference.state_dict())))
        batches.append(batch)
    for size in worlds:
        ranks = [Loader(output, rank=rank, world_size=size, prefetch=0, **storage, **options) for rank in range(size)]
        for at, expected in enumerate(batches):
            for rank in ranks:
                rank.load_state_dict(states[at])
            parts = [next(iter(rank)) for rank in ranks]
            assert {part["step"] for part in parts} == {expected["step"]}
            assert_joined(parts, expected, PER_ROW)
            assert all(rank.state_dict() == states[at + 1] for rank in ranks)
        for rank in ranks:
            rank.close()


BY_DEFAULT = set(zip([*CASES, *CASES], ["ranges", "none"] * 3, ORDERS))
"""One history of each order, in one world: the others are slow together."""


@pytest.mark.parametrize(
    ("case", "skip", "order"),
    [
        pytest.param(*history, marks=pytest.mark.medium if history in BY_DEFAULT else pytest.mark.slow)
        for history in product(CASES, SKIPS, ORDERS)
    ],
)
def test_loader_restored_at_every_step_in_any_world_continues_exactly(
    folders: dict[str, Path], case: str, skip: str, order: str
) -> None:
    worlds = (4,) if (case, skip, order) in BY_DEFAULT else range(1, 10)
    check_restored_at_every_step(folders[case], folders[case], worlds, skip=SKIPS[skip], **ORDERS[order])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "skip", "window"), [*product(CASES, SKIPS, [0, 2])])
def test_loader_of_an_object_store_continues_with_a_cache_and_without(
    folders: dict[str, Path], urls: dict[str, str], tmp_path: Path, case: str, skip: str, window: int
) -> None:
    options: dict[str, Any] = {"skip": SKIPS[skip], "window": window}
    check_restored_at_every_step(folders[case], urls[case], (1, 5, 9), cache_bytes=0, **options)
    check_restored_at_every_step(folders[case], urls[case], range(1, 10), cache_bytes=1 << 20, cache_folder=tmp_path, **options)


def random_options(generator: np.random.Generator, names: Sequence[str]) -> dict[str, Any]:
    """The options of a part of a run: batch size, groups, phases, weights of any digits, and steps to leave out."""
    size = int(generator.integers(2, 13))
    groups = [rows for rows in range(1, 3 * size) if size % rows == 0 or rows % size == 0]
    weights = [dict(zip(names, np.exp(2 * generator.standard_normal(len(names))))) for _ in range(2)]
    until = S * int(generator.integers(1, 300))
    starts = generator.integers(0, 90, 3).tolist()
    return {
        "global_batch_size": size,
        "group_rows": int(generator.choice(groups)) if generator.integers(2) else 1,
        "mixture": (None, weights[0], [(until, weights[0]), (None, weights[1])])[generator.integers(3)],
        "skip": [(start, start + int(generator.integers(1, 6))) for start in starts],
    }


def own_orders(folder: Path, names: Iterable[str], count: int, **order: Any) -> list[list[int]]:
    """The first tokens of each source's own rows, of a run that draws from it alone."""
    fields = ("input_ids", "sources")
    alone = [Loader(folder, global_batch_size=count, fields=fields, mixture={name: 1}, **order) for name in names]
    return [loader.batch(0)["input_ids"][:, 0].tolist() for loader in alone]


def pieces_of(batches: dict[int, dict[str, Any]], key: bytes) -> list[tuple[int, int, int]]:
    """(step, row, piece) of each piece of a document."""
    return [
        (step, row, piece - first)
        for step, batch in sorted(batches.items())
        for row, (first, stop) in enumerate(pairwise(batch["piece_offsets"].tolist()))
        for piece in range(first, stop)
        if batch["document_keys"][piece].tobytes() == key
    ]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 9))])
def test_any_history_is_restored_traced_and_draws_each_source_in_its_own_order(tmp_path: Path, seed: int) -> None:
    """Whatever changes during a run, each source goes on in its own order, without a gap and without a repeat."""
    generator, sizes, cells = np.random.default_rng(seed), SIZES, {}
    if seed % 2:
        sizes = {"code": 31, "web/en": 5, "web/ja": 78, "zeta": 10}
        cells = {"web": (make_cells(["en", "ja"]), [(0, False, 5), (1, False, 78)])}
    folder = make_snapshot(tmp_path, SIZES, rows_per_shard=5, cells=cells)
    order: dict[str, Any] = {"shuffle": bool(seed % 3), "window": int(generator.integers(0, 4))}
    state, options, batches = None, dict[str, Any](), dict[int, dict[str, Any]]()
    for _ in range(5):
        options = {"fields": (*FIELDS, "piece_offsets"), "migrate": True, **order, **random_options(generator, [*sizes])}
        loader, size = Loader(folder, **options), int(generator.integers(1, 5))
        ranks = [Loader(folder, rank=rank, world_size=size, prefetch=0, **options) for rank in range(size)]
        if state is not None:
            loader.load_state_dict(state)
        for _ in range(int(generator.integers(1, 16))):
            state = json.loads(json.dumps(loader.state_dict()))
            for rank in ranks:
                rank.load_state_dict(state)
            batch = next(loader)
            batches[batch["step"]] = batch
            assert_joined([next(rank) for rank in ranks], batch, PER_ROW)
            groups = batch["sources"].reshape(-1, min(options["group_rows"], options["global_batch_size"]))
            assert (groups == groups[:, :1]).all()
        state = loader.state_dict()
    assert state is not None
    last = Loader(folder, **options)
    last.load_state_dict(state)
    again = [last.batch(step) for step in range(state["step"])]  # the skipped steps, too, have drawn their rows
    for step, batch in batches.items():
        np.testing.assert_array_equal(again[step]["input_ids"], batch["input_ids"])
    own = own_orders(folder, sizes, 2500, **order)
    for source, rows in rows_by_source(again).items():
        assert_no_row_early(own[source], [*sizes.values()][source])
        assert rows == own[source][: len(rows)]
    for key in {batch["document_keys"][0].tobytes() for batch in list(batches.values())[::9]}:
        found = trace_document(folder, key.hex(), state=state)
        assert [(one.step, one.row, one.piece) for one in found] == pieces_of(batches, key)


def check_quotas(order: BatchOrder, num_samples: int) -> None:
    """Each source is within three samples of its share after every prefix of a run of one phase."""
    mixture, weights = order.sample_order.mixture, order.lineage.mixtures[0].recipe.phases[0].weights
    shares = np.array([weights.get(name, 0) for name in order.layout.sources]) / sum(weights.values())
    samples = np.arange(num_samples)
    sources, ordinals = mixture.assign(samples)
    assert np.abs(ordinals - samples * shares[sources]).max() < 3  # before each of its samples, and after
    assert np.abs(ordinals + 1 - (samples + 1) * shares[sources]).max() < 3
    counts = np.bincount(sources, minlength=len(shares))
    assert np.abs(counts - num_samples * shares).max() < 3
    assert mixture.counts(num_samples) == counts.tolist()


@pytest.mark.medium
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_cells_with_fractional_repeats_keep_their_quotas_and_their_states(tmp_path: Path, count: int) -> None:
    generator = np.random.default_rng(5)
    names = [f"{language:02}/{topic:02}/{quality}" for language, topic, quality in np.ndindex(count // 200, 20, 10)]
    repeats = [("1", "5/2", "3", "4/3")[number % 4] for number in range(count)]
    runs = [(cell, False, rows) for cell, rows in enumerate(generator.integers(1, 5, count).tolist())]
    runs += [(cell, True, rows) for cell, rows in enumerate(generator.integers(0, 4, count).tolist()) if rows and cell % 2]
    cells = make_cells(names, generator.integers(1, 1 << 40, count).tolist(), repeats)
    total = sum(rows for *_, rows in runs)
    make_snapshot(
        tmp_path, {"code": 50, "web": total}, weights={"code": 1, "web": 7}, cells={"web": (cells, runs)}, rows_per_shard=4000
    )
    options: dict[str, Any] = {"global_batch_size": 512, "fields": ("input_ids", "sources")}
    loader = Loader(tmp_path, **options)
    assert len(loader.sources) == count + 1
    order = loader.batch_order
    assert isinstance(order, BatchOrder)
    check_quotas(order, 10 * count)
    state = [json.loads(json.dumps(loader.state_dict())) for _ in islice(loader, 3)][-1]
    for size in (1, 3):
        ranks = [Loader(tmp_path, rank=rank, world_size=size, prefetch=0, **options) for rank in range(size)]
        for rank in ranks:
            rank.load_state_dict(state)
        assert_joined([next(rank) for rank in ranks], loader.batch(3), options["fields"])
    sizes = np.array(order.layout.sizes)
    numbers = np.repeat(np.arange(len(sizes)), 3 * sizes)
    ordinals = np.arange(len(numbers)) - np.repeat(3 * (np.cumsum(sizes) - sizes), 3 * sizes)
    drawn = np.bincount(order.inventory.addresses.find(numbers, ordinals))  # three epochs of each
    expected = [3] * 50 + [3 * (int(Fraction(repeats[cell])) + again) for cell, again, rows in runs for _ in range(rows)]
    assert drawn.tolist() == expected


PARTS = {"code": [31, 12, 5, 20], "web": [40, 30, 13], "zeta": [10]}
MOVES = ([4, 9, 23], [0, 30, 30], [1, 2, 3])
MOVED_ORDERS: dict[str, dict[str, Any]] = {
    "all": {},
    "window-2": ORDERS["window-2"],
    "unshuffled": ORDERS["unshuffled"],
    "one-source-batches": ORDERS["one-source-batches"],
    "skips": {"skip": SKIPS["ranges"], "skip_shards": ["shards/web/train-0000-00001.arrow"]},
}


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("growing")
    weights = {"code": 2, "web": 3, "zeta": 1}
    return folder, make_growing_snapshots(folder, PARTS, weights=weights, rows_per_shard=5)


def opened(folder: Path, snapshot: str, **options: Any) -> Loader:
    return Loader(folder, snapshot=snapshot, global_batch_size=GLOBAL_BATCH, fields=FIELDS, **options)


def numbers(batch: dict[str, Any]) -> list[int]:
    """The numbers of a batch's rows."""
    return ((batch["input_ids"][:, 0] - 1) // S).tolist()


def history(
    folder: Path, snapshots: list[str], moves: list[int], num_steps: int, **options: Any
) -> tuple[Loader, list[dict[str, Any]], list[dict[str, Any]]]:
    """A run that moves to the next snapshot after so many batches: its loader, the state before each batch, the batches."""
    loader, states, batches = opened(folder, snapshots[0], **options), [], []
    for number in range(num_steps):
        for _ in range(moves.count(number)):
            place = snapshots.index(loader.snapshot.fingerprint)
            assert loader.advance(snapshots[place + 1]) == snapshots[place + 1]
        states.append(json.loads(json.dumps(loader.state_dict())))
        batches.append(next(loader))
    return loader, states, batches


@pytest.mark.parametrize(
    ("moves", "order", "every"),
    [
        *(pytest.param([4, 9, 23], order, 11, marks=pytest.mark.medium) for order in ("all", "window-2", "unshuffled")),
        *(pytest.param(moves, order, 3, marks=pytest.mark.slow) for moves in MOVES for order in MOVED_ORDERS),
    ],
)
@pytest.mark.slow
def test_a_run_that_moves_is_restored_at_every_step_in_any_world_and_traced(growing, moves, order, every):
    folder, snapshots = growing
    loader, states, batches = history(folder, snapshots, moves, 40, **MOVED_ORDERS[order])
    state = json.loads(json.dumps(loader.state_dict()))
    options: dict[str, Any] = {"prefetch": 0, "migrate": True, **MOVED_ORDERS[order]}
    newest = opened(folder, snapshots[-1], **options)  # holds all that was handed out before
    newest.load_state_dict(state)
    assert newest.state_dict() == loader.state_dict()
    for batch in batches:
        np.testing.assert_array_equal(newest.batch(batch["step"])["input_ids"], batch["input_ids"])
    for at in range(0, len(batches), every):
        of_state = snapshots[sum(move <= at for move in moves)]
        for size in (1, 3, 8):
            ranks = [opened(folder, of_state, rank=rank, world_size=size, **options) for rank in range(size)]
            for rank in ranks:
                rank.load_state_dict(states[at])
            assert_joined([next(rank) for rank in ranks], batches[at], PER_ROW)
        traced = trace_step(folder, batches[at]["step"], state=state)
        assert [piece.key for piece in traced] == [key.tobytes().hex() for key in batches[at]["document_keys"]]


@pytest.mark.medium
def test_a_move_in_the_second_epoch_of_a_source_finishes_it_and_then_draws_the_new_generation(growing):
    folder, snapshots = growing
    loader = opened(folder, snapshots[0], mixture={"web": 1})
    before = [number for batch in islice(loader, 8) for number in numbers(batch)]  # 56 of 40 rows
    loader.advance(snapshots[1])
    after = [number for batch in islice(loader, 12) for number in numbers(batch)]
    assert sorted(before[:40]) == sorted([*before[40:], *after[:24]])
    new = set(after[24:54])
    assert len(new) == 30
    assert new.isdisjoint(before)
    assert set(after[54:]) <= new | set(before)


@pytest.mark.medium
def test_caps_hold_for_every_row_of_a_source_that_grew(tmp_path):
    weights = {"web": 1, "zeta": 1}
    snapshots = make_growing_snapshots(
        tmp_path, {"web": [20, 15], "zeta": [50]}, weights=weights, max_epochs={"web": 2}, exhausted="redistribute"
    )
    for move in (2, 5, 9):
        loader, _, batches = history(tmp_path, snapshots, [move], 30)
        drawn = [number for batch in batches for source, number in zip(batch["sources"], numbers(batch)) if source == 0]
        counts = np.bincount(drawn)
        assert counts.max() == 2
        assert loader.snapshot.fingerprint == snapshots[1]


def torch_loader(num_workers: int, folder: Path, snapshot: str, **options: Any) -> Any:
    pytest.importorskip("torch")
    from datapipe.loader.torch import dataloader

    options = {"global_batch_size": GLOBAL_BATCH, "fields": FIELDS, "rank": 0, "world_size": 1, **options}
    return dataloader(folder, snapshot=snapshot, num_workers=num_workers, **options)


@pytest.mark.slow
@pytest.mark.parametrize("make", [opened, partial(torch_loader, 0), partial(torch_loader, 2)])
def test_loader_moves_within_an_iteration_and_by_default_to_the_newest(growing, make):
    folder, snapshots = growing
    expected = history(folder, snapshots, [3, 5], 8)[2]
    loader, seen = make(folder, snapshots[0]), []
    for batch in loader:
        seen.append(batch)
        if len(seen) in (3, 5):
            assert loader.advance(snapshots[1 + (len(seen) == 5)]) == loader.snapshot.fingerprint
        if len(seen) == 8:
            break
    assert first_tokens(seen) == first_tokens(expected)
    assert loader.advance() == snapshots[-1] == loader.snapshot.fingerprint
    before = loader.state_dict()
    assert loader.advance() == snapshots[-1]
    assert loader.state_dict() == before


@pytest.mark.medium
def test_a_state_of_an_earlier_snapshot_needs_a_word_to_move(growing):
    folder, snapshots = growing
    _, states, batches = history(folder, snapshots, [], 5)
    later = opened(folder, snapshots[2])
    with pytest.raises(SnapshotError, match="source 'code' has grown by 2 generations; source 'web' has"):
        later.load_state_dict(states[4])
    moved = opened(folder, snapshots[2], migrate=True)
    moved.load_state_dict(states[4])
    np.testing.assert_array_equal(moved.batch(2)["input_ids"], batches[2]["input_ids"])


@pytest.mark.medium
def test_a_run_does_not_move_to_a_snapshot_with_other_rows(growing, tmp_path):
    folder, snapshots = growing
    loader = opened(folder, snapshots[2])
    next(loader)
    with pytest.raises(SnapshotError, match="does not hold the rows"):
        loader.advance(snapshots[0])
    assert loader.snapshot.fingerprint == snapshots[2]
    next(loader)


@pytest.mark.medium
def test_a_state_with_parts_that_no_run_comes_to_is_refused(growing):
    folder, snapshots = growing
    loader, _, _ = history(folder, snapshots, [3], 5)
    state, other = loader.state_dict(), opened(folder, snapshots[1], migrate=True)
    wrong = [{"web": parts} for parts in ([3, 0, 1], [2, 7, 0], [0, 0, 0], [2, 0], [2, -1, 0])]
    for parts in [*wrong, {"web": [2, 40, 1], "code": [9, 0, 0]}, {"nowhere": [2, 0, 0]}, 7]:
        lineage = json.loads(state["lineage"])
        lineage["mixtures"][-1]["parts"] = parts
        with pytest.raises(SnapshotError):
            other.load_state_dict(sealed({**state, "lineage": json.dumps(lineage)}))
    other.load_state_dict(state)
