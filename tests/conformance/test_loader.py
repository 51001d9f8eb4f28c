"""The loader's contract, over every combination: restored at any step, in a world of any size, it continues exactly there.

Mixtures (one phase, steps, a staircase with redistributed caps), skips, windows, rows in the order of shards, batches of one
source, and world sizes 1 to 9, from a local folder and from an S3 server on loopback, with its cache and without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.loader import Loader
from tests.support.object_store import object_store
from tests.support.snapshots import make_snapshot, upload

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
SIZES = {"code": 31, "web": 83, "zeta": 10}
NUM_STEPS = 12
GLOBAL_BATCH = 7
FIELDS = ("input_ids", "labels", "position_ids", "segment_ids", "document_keys", "sources", "step")
PER_ROW = ("input_ids", "labels", "position_ids", "segment_ids", "document_keys", "sources")


@dataclass(frozen=True, kw_only=True)
class Case:
    """The options of a snapshot's mixture."""

    phases: Sequence[tuple[int | None, Mapping[str, int]]]
    exhausted: str = "stop"
    max_epochs: Mapping[str, float] | None = None


CASES = {
    "one-phase": Case(phases=[(None, {"code": 1, "web": 3, "zeta": 1})]),
    "phases": Case(phases=[(S * 40, {"web": 1}), (S * 75, {"code": 2, "zeta": 1}), (None, {"code": 1, "web": 1})]),
    "stairs-and-caps": Case(
        phases=[*((S * 9 * stair, {"code": stair, "web": 8 - stair, "zeta": 1}) for stair in range(1, 8)), (None, {"web": 1})],
        exhausted="redistribute",
        max_epochs={"zeta": 0.5, "code": 1},
    ),
}
SKIPS: dict[str, list[tuple[int, int]]] = {"none": [], "ranges": [(3, 5), (9, 10), (14, 30)]}
ORDERS: dict[str, dict[str, Any]] = {
    **{f"window-{shards}": {"window": shards} for shards in (0, 1, 2, 4)},
    "unshuffled": {"shuffle": False},
    "one-source-batches": {"group_rows": GLOBAL_BATCH},
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], str]]:
    """The snapshot of each case, as a folder and as a URL."""
    found: dict[tuple[str, str], str] = {}
    with ExitStack() as stack:
        query = stack.enter_context(object_store("snapshots"))
        for name, case in CASES.items():
            folder = make_snapshot(
                tmp_path_factory.mktemp(name),
                SIZES,
                phases=case.phases,
                exhausted=case.exhausted,
                max_epochs=case.max_epochs,
            )
            found[name, "local"] = str(folder)
            found[name, "remote"] = found[name, "cached"] = upload(folder, f"s3://snapshots/{name}{query}")
        yield found


HISTORIES = [
    *product(CASES, SKIPS, ORDERS, ["local"]),
    *product(CASES, SKIPS, ["window-0", "window-2"], ["remote", "cached"]),  # an order knows nothing of storage
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "skip", "order", "storage"), HISTORIES)
def test_loader_restored_at_every_step_in_any_world_continues_exactly(
    outputs: dict[tuple[str, str], str], tmp_path: Path, storage: str, case: str, skip: str, order: str
) -> None:
    options: dict[str, Any] = {"global_batch_size": GLOBAL_BATCH, "fields": FIELDS, "skip": SKIPS[skip], **ORDERS[order]}
    reference = Loader(outputs[case, "local"], **options)
    if storage != "local":
        options |= {"cache_bytes": 0} if storage == "remote" else {"cache_bytes": 1 << 20, "cache_folder": tmp_path}
    states, batches = [reference.state_dict()], []
    for batch in islice(reference, NUM_STEPS):
        states.append(json.loads(json.dumps(reference.state_dict())))
        batches.append(batch)
    for world_size in (1, 5, 9) if storage == "remote" else range(1, 10):  # each of its batches fetches blocks anew
        ranks = [
            Loader(outputs[case, storage], rank=rank, world_size=world_size, prefetch=0, **options)
            for rank in range(world_size)
        ]
        for at, expected in enumerate(batches):
            for rank in ranks:
                rank.load_state_dict(states[at])
            parts = [next(iter(rank)) for rank in ranks]
            assert {part["step"] for part in parts} == {expected["step"]}
            for field in PER_ROW:
                np.testing.assert_array_equal(np.concatenate([part[field] for part in parts]), expected[field])
            assert {rank.state_dict()["step"] for rank in ranks} == {states[at + 1]["step"]}
        for rank in ranks:
            rank.close()


@pytest.mark.medium
def test_states_do_not_depend_on_the_rank_that_saved_them(tmp_path: Path) -> None:
    folder = make_snapshot(tmp_path, SIZES)
    ranks = [Loader(folder, global_batch_size=7, rank=rank, world_size=4) for rank in range(4)]
    for rank in ranks:
        list(islice(rank, 3))
    assert len({json.dumps(rank.state_dict(), sort_keys=True) for rank in ranks}) == 1


def random_options(generator: np.random.Generator) -> dict[str, Any]:
    """The options of a part of a run: batch size, groups, weights of any digits, and steps to leave out."""
    size = int(generator.integers(2, 13))
    groups = [rows for rows in range(1, 3 * size) if size % rows == 0 or rows % size == 0]
    powers = np.exp(2 * generator.standard_normal(len(SIZES)))
    starts = generator.integers(0, 90, 3).tolist()
    return {
        "global_batch_size": size,
        "group_rows": int(generator.choice(groups)) if generator.integers(2) else 1,
        "mixture": dict(zip(SIZES, powers / powers.sum())) if generator.integers(2) else None,
        "skip": [(start, start + int(generator.integers(1, 6))) for start in starts],
    }


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(6))
def test_any_history_is_restored_at_every_step_and_repeats_no_row_early(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    folder = make_snapshot(tmp_path, SIZES, rows_per_shard=5)
    order: dict[str, Any] = {"shuffle": bool(seed % 3), "window": int(generator.integers(0, 4))}
    state, batches = None, dict[int, dict[str, Any]]()
    for _ in range(5):
        options = {"fields": FIELDS, "migrate": True, **order, **random_options(generator)}
        loader = Loader(folder, **options)
        if state is not None:
            loader.load_state_dict(state)
        for _ in range(int(generator.integers(1, 16))):
            state = json.loads(json.dumps(loader.state_dict()))
            world_size = int(generator.integers(1, 5))
            ranks = [Loader(folder, rank=rank, world_size=world_size, prefetch=0, **options) for rank in range(world_size)]
            for rank in ranks:
                rank.load_state_dict(state)
            batch, parts = next(loader), [next(rank) for rank in ranks]
            batches[batch["step"]] = batch
            for field in PER_ROW:
                np.testing.assert_array_equal(np.concatenate([part[field] for part in parts]), batch[field])
            rows = min(options["group_rows"], options["global_batch_size"])
            groups = batch["sources"].reshape(-1, rows)
            assert (groups == groups[:, :1]).all()
        state = loader.state_dict()
    assert state is not None
    last = Loader(folder, **options)
    last.load_state_dict(state)
    rows_of: dict[int, list[int]] = {}
    for step in range(state["step"]):  # the skipped steps, too, have drawn their rows
        batch = last.batch(step)
        for source, row in zip(batch["sources"].tolist(), batch["input_ids"][:, 0].tolist()):
            rows_of.setdefault(source, []).append(row)
        if step in batches:
            np.testing.assert_array_equal(batch["input_ids"], batches[step]["input_ids"])
    for source, size in enumerate(SIZES.values()):
        found = rows_of.get(source, [])
        epochs = [found[start : start + size] for start in range(0, len(found), size)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
