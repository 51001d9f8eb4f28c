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
from datapipe.loader.trace import trace_document
from tests.support.loader_rows import assert_joined, assert_no_row_early, rows_by_source
from tests.support.object_store import object_store
from tests.support.snapshots import make_snapshot, upload

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
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The snapshot of each case."""
    options = {name: {"exhausted": case.exhausted, "max_epochs": case.max_epochs} for name, case in CASES.items()}
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


def random_options(generator: np.random.Generator) -> dict[str, Any]:
    """The options of a part of a run: batch size, groups, phases, weights of any digits, and steps to leave out."""
    size = int(generator.integers(2, 13))
    groups = [rows for rows in range(1, 3 * size) if size % rows == 0 or rows % size == 0]
    weights = [dict(zip(SIZES, np.exp(2 * generator.standard_normal(len(SIZES))))) for _ in range(2)]
    until = S * int(generator.integers(1, 300))
    starts = generator.integers(0, 90, 3).tolist()
    return {
        "global_batch_size": size,
        "group_rows": int(generator.choice(groups)) if generator.integers(2) else 1,
        "mixture": (None, weights[0], [(until, weights[0]), (None, weights[1])])[generator.integers(3)],
        "skip": [(start, start + int(generator.integers(1, 6))) for start in starts],
    }


def own_orders(folder: Path, count: int, **order: Any) -> list[list[int]]:
    """The first tokens of each source's own rows, of a run that draws from it alone."""
    fields = ("input_ids", "sources")
    alone = [Loader(folder, global_batch_size=count, fields=fields, mixture={name: 1}, **order) for name in SIZES]
    return [loader.batch(0)["input_ids"][:, 0].tolist() for loader in alone]


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(6))
def test_any_history_is_restored_traced_and_draws_each_source_in_its_own_order(tmp_path: Path, seed: int) -> None:
    """Whatever changes during a run, each source goes on in its own order, without a gap and without a repeat."""
    generator = np.random.default_rng(seed)
    folder = make_snapshot(tmp_path, SIZES, rows_per_shard=5)
    order: dict[str, Any] = {"shuffle": bool(seed % 3), "window": int(generator.integers(0, 4))}
    state, options, batches = None, dict[str, Any](), dict[int, dict[str, Any]]()
    for _ in range(5):
        options = {"fields": FIELDS, "migrate": True, **order, **random_options(generator)}
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
    own = own_orders(folder, 2500, **order)
    for source, rows in rows_by_source(again).items():
        assert_no_row_early(own[source], [*SIZES.values()][source])
        assert rows == own[source][: len(rows)]
    for key in {batch["document_keys"][0].tobytes() for batch in list(batches.values())[::9]}:
        expected = [step for step in sorted(batches) if key in {each.tobytes() for each in batches[step]["document_keys"]}]
        found = trace_document(folder, key.hex(), state=state)
        assert sorted({appearance.step for appearance in found}) == expected
