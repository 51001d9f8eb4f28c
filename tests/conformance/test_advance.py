"""A run that moves to newer snapshots: what was handed out stays as it was, and all else of the loader's contract holds on.

Sources that grow by parts, moves at any step, world sizes, skips, windows, weights, and the history that a state holds.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from datapipe.loader.trace import trace_step
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
    options = ORDERS[order]
    _, states, batches = history(folder, snapshots, moves, 40, **options)
    newest = snapshots[-1]
    for world_size in (1, 3, 8):
        for at in range(0, len(batches), 3):
            of_state = snapshots[sum(move <= at for move in moves)]  # the snapshot of the state, and the newest one
            for snapshot in {of_state, newest}:
                ranks = [
                    opened(folder, snapshot, rank=rank, world_size=world_size, prefetch=0, migrate=True, **options)
                    for rank in range(world_size)
                ]
                if snapshot != of_state:  # a later snapshot holds all that was handed out before
                    moved = opened(folder, newest, migrate=True, **options)
                    moved.load_state_dict(states[-1])
                    np.testing.assert_array_equal(moved.batch(batches[at]["step"])["input_ids"], batches[at]["input_ids"])
                    continue
                for rank in ranks:
                    rank.load_state_dict(states[at])
                parts = [next(rank) for rank in ranks]
                for field in PER_ROW:
                    np.testing.assert_array_equal(np.concatenate([part[field] for part in parts]), batches[at][field])


@pytest.mark.medium
@pytest.mark.parametrize("order", ["all", "window-2", "unshuffled"])
def test_every_batch_of_a_run_that_moved_comes_again_from_its_last_state(growing, order):
    folder, snapshots = growing
    loader, _, batches = history(folder, snapshots, [4, 9, 23], 40, **ORDERS[order])
    again = opened(folder, snapshots[-1], **ORDERS[order])
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    for batch in batches:
        np.testing.assert_array_equal(again.batch(batch["step"])["input_ids"], batch["input_ids"])
    assert again.state_dict() == loader.state_dict()


@pytest.mark.medium
def test_new_rows_come_before_old_ones_are_repeated_and_each_once_an_epoch(growing):
    folder, snapshots = growing
    _, _, batches = history(folder, snapshots, [3, 6, 8], 60)
    rows: dict[int, list[int]] = {}
    for batch in batches:
        for source, number in zip(batch["sources"].tolist(), numbers(batch)):
            rows.setdefault(source, []).append(number)
    for source, parts in enumerate(PARTS.values()):
        size = sum(parts)
        for start in range(0, len(rows[source]), size):
            epoch = rows[source][start : start + size]
            assert len(set(epoch)) == len(epoch)


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


@pytest.mark.medium
def test_loader_moves_within_an_iteration_and_by_default_to_the_newest(growing):
    folder, snapshots = growing
    expected = history(folder, snapshots, [3], 8)[2]
    loader, seen = opened(folder, snapshots[0]), []
    for batch in loader:
        seen.append(batch)
        if len(seen) == 3:
            assert loader.advance(snapshots[1]) == snapshots[1]
        if len(seen) == 8:
            break
    for mine, theirs in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(mine["input_ids"], theirs["input_ids"])
    assert loader.advance() == snapshots[-1] == loader.snapshot.fingerprint
    before = loader.state_dict()
    assert loader.advance() == snapshots[-1]
    assert loader.state_dict() == before


@pytest.mark.medium
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_torch_loader_moves_between_the_batches_that_the_trainer_takes(growing, num_workers):
    pytest.importorskip("torch")
    from datapipe.loader.torch import dataloader

    folder, snapshots = growing
    expected = history(folder, snapshots, [3, 5], 8)[2]
    options = {"global_batch_size": GLOBAL_BATCH, "fields": FIELDS, "rank": 0, "world_size": 1}
    loader, seen = dataloader(folder, snapshot=snapshots[0], num_workers=num_workers, **options), []
    for batch in loader:
        seen.append(batch)
        if len(seen) in (3, 5):
            assert loader.advance(snapshots[1 + (len(seen) == 5)]) == loader.snapshot.fingerprint
        if len(seen) == 8:
            break
    for mine, theirs in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(mine["input_ids"].numpy(), theirs["input_ids"])


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


@pytest.mark.medium
def test_documents_of_all_parts_are_traced(growing):
    folder, snapshots = growing
    loader, _, batches = history(folder, snapshots, [2, 4, 6], 20)
    state = loader.state_dict()
    for step in (0, 3, 19):
        traced = trace_step(folder, step, state=state)
        keys = {piece.key for piece in traced}
        assert len(keys) > 3, batches[step]["step"]


@pytest.mark.parametrize(
    "parts",
    [
        {"web": [3, 0, 1]},
        {"web": [2, 40, 1], "code": [9, 0, 0]},
        {"web": [2, 7, 0]},
        {"web": [0, 0, 0]},
        {"web": [2, 0]},
        {"web": [2, -1, 0]},
        {"nowhere": [2, 0, 0]},
        7,
    ],
)
def test_a_state_with_parts_that_no_run_comes_to_is_refused(growing, parts):
    folder, snapshots = growing
    loader, _, _ = history(folder, snapshots, [3], 5)
    state = json.loads(json.dumps(loader.state_dict()))
    lineage = json.loads(state["lineage"]) if isinstance(state["lineage"], str) else state["lineage"]
    lineage["mixtures"][-1]["parts"] = parts
    state["lineage"] = json.dumps(lineage) if isinstance(state["lineage"], str) else lineage
    with pytest.raises(SnapshotError):
        opened(folder, snapshots[1], migrate=True).load_state_dict(state)
