"""A run that moves to newer snapshots: what was handed out stays as it was, and all else of the loader's contract holds on.

Sources that grow by parts, moves at any step, world sizes, skips, windows, weights, and the history that a state holds.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from datapipe.loader.order.state import sealed
from datapipe.loader.trace import trace_step
from tests.support.loader_rows import assert_joined, first_tokens
from tests.support.snapshots import make_growing_snapshots

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
PARTS = {"code": [31, 12, 5, 20], "web": [40, 30, 13], "zeta": [10]}
GLOBAL_BATCH = 7
FIELDS = ("input_ids", "labels", "document_keys", "sources", "step")
PER_ROW = FIELDS[:-1]
ORDERS: dict[str, dict[str, Any]] = {
    "all": {},
    "window-2": {"window": 2},
    "unshuffled": {"shuffle": False},
    "one-source-batches": {"group_rows": GLOBAL_BATCH},
    "skips": {"skip": [(3, 5), (9, 10), (14, 30)], "skip_shards": ["shards/web/train-0000-00001.arrow"]},
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


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("moves", [[4, 9, 23], [0, 30, 30], [1, 2, 3]])
def test_a_run_that_moves_is_restored_at_every_step_in_any_world(growing, order, moves):
    folder, snapshots = growing
    _, states, batches = history(folder, snapshots, moves, 40, **ORDERS[order])
    options: dict[str, Any] = {"prefetch": 0, "migrate": True, **ORDERS[order]}
    newest = opened(folder, snapshots[-1], **options)  # holds all that was handed out before
    newest.load_state_dict(states[-1])
    for at in range(0, len(batches), 3):
        np.testing.assert_array_equal(newest.batch(batches[at]["step"])["input_ids"], batches[at]["input_ids"])
        of_state = snapshots[sum(move <= at for move in moves)]
        for size in (1, 3, 8):
            ranks = [opened(folder, of_state, rank=rank, world_size=size, **options) for rank in range(size)]
            for rank in ranks:
                rank.load_state_dict(states[at])
            assert_joined([next(rank) for rank in ranks], batches[at], PER_ROW)


@pytest.mark.medium
@pytest.mark.parametrize("order", ["all", "window-2", "unshuffled"])
def test_every_batch_of_a_run_that_moved_comes_again_from_its_last_state_and_is_traced(growing, order):
    folder, snapshots = growing
    loader, states, batches = history(folder, snapshots, [4, 9, 23], 40, **ORDERS[order])
    state = json.loads(json.dumps(loader.state_dict()))
    again = opened(folder, snapshots[-1], **ORDERS[order])
    again.load_state_dict(state)
    for batch in batches:
        np.testing.assert_array_equal(again.batch(batch["step"])["input_ids"], batch["input_ids"])
    assert again.state_dict() == loader.state_dict()
    for number in (0, 11, 30):  # and in another world, from a state on the way
        snapshot = snapshots[sum(move <= number for move in (4, 9, 23))]
        ranks = [opened(folder, snapshot, rank=rank, world_size=3, prefetch=0, **ORDERS[order]) for rank in range(3)]
        for rank in ranks:
            rank.load_state_dict(states[number])
        assert_joined([next(rank) for rank in ranks], batches[number], PER_ROW)
        traced = trace_step(folder, batches[number]["step"], state=state)
        assert [piece.key for piece in traced] == [key.tobytes().hex() for key in batches[number]["document_keys"]]


@pytest.mark.medium
def test_a_move_in_the_second_epoch_of_a_source_finishes_it_and_then_draws_the_new_part(growing):
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


@pytest.mark.medium
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
    with pytest.raises(SnapshotError, match="source 'code' has grown by 2 parts; source 'web' has grown by 2 parts"):
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
