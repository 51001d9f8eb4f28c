"""The sequence of each sample, and the samples of each sequence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datapipe.errors import SnapshotError
from datapipe.loader.order.batch_order import BatchOrder, begin_run
from datapipe.loader.order.layout import Split
from datapipe.loader.order.lineage import Skips
from datapipe.loader.order.recipe import recipe_of
from datapipe.loader.order.sample_order import Inventory, SampleOrder
from datapipe.shards.manifest import SNAPSHOT, Strata, read_snapshot
from datapipe.storage import Root
from tests.support.snapshots import make_snapshot


def open_run(folder: Path, split: Split = "train", seed: int = 17, window: int = 0, batch_size: int = 1) -> BatchOrder:
    snapshot = read_snapshot(Root(str(folder)))
    return begin_run(Inventory(snapshot, split, seed, window), recipe_of(snapshot), batch_size, Skips())


def open_order(folder: Path, split: Split = "train", seed: int = 17) -> SampleOrder:
    return open_run(folder, split, seed).sample_order


def test_order_new_source_disturbs_no_permutation_and_another_seed_does(tmp_path: Path) -> None:
    alone = make_snapshot(tmp_path / "a", {"web": 40})
    joined = open_order(make_snapshot(tmp_path / "b", {"code": 20, "web": 40})).locate(np.arange(80))
    expected = open_order(alone).locate(np.arange(40)).tolist()
    assert (joined[joined >= 20] - 20).tolist() == expected
    assert open_order(alone, seed=1).locate(np.arange(40)).tolist() != expected


def test_order_validation_is_every_sequence_in_order_whatever_the_mixture(tmp_path: Path) -> None:
    order = open_order(make_snapshot(tmp_path, {"web": 5}, validation={"web": 9}, weights={"web": 3}), "validation")
    assert order.num_samples == 9
    assert order.locate(np.arange(9)).tolist() == list(range(9))
    assert order.samples_of(4, num_epochs=3) == [(0, 4)]


def test_order_samples_of_finds_every_appearance(tmp_path: Path) -> None:
    phases = [(16 * 50, {"code": 1, "web": 3}), (None, {"code": 2, "web": 1})]
    order = open_order(make_snapshot(tmp_path, {"code": 12, "web": 30}, phases=phases))
    addresses = order.locate(np.arange(400))
    for address in range(42):
        expected = np.flatnonzero(addresses == address).tolist()
        found = order.samples_of(address, num_epochs=30)
        assert [epoch for epoch, _ in found] == list(range(30))
        assert [sample for _, sample in found if sample < 400] == expected


@pytest.mark.parametrize(
    ("total_tokens", "batch_size", "expected"), [(1000, 1, 62), (1000, 4, 15), (1000, 62, 1), (1000, 63, 0), (None, 1, None)]
)
def test_num_steps_are_the_whole_batches_before_the_end(
    tmp_path: Path, total_tokens: int | None, batch_size: int, expected: int | None
) -> None:
    assert (
        open_run(make_snapshot(tmp_path, {"web": 40}, total_tokens=total_tokens), batch_size=batch_size).num_steps == expected
    )


def test_order_of_nothing_is_refused_unless_nothing_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="source 'empty' has weight"):
        open_order(make_snapshot(tmp_path / "a", {"empty": 0, "web": 5}))
    folder = make_snapshot(tmp_path / "b", {"empty": 0, "web": 5}, weights={"empty": 0, "web": 1})
    assert sorted(open_order(folder).locate(np.arange(5)).tolist()) == list(range(5))
    with pytest.raises(SnapshotError, match="no validation sequences"):
        open_order(folder, "validation")


@pytest.mark.parametrize(("limit", "repeats"), [(1, 10), (2.5, 25), (0.7, 7)])
def test_num_samples_max_epochs_end_before_the_first_repeat_too_many(tmp_path: Path, limit: float, repeats: int) -> None:
    snapshot = make_snapshot(tmp_path, {"big": 90, "small": 10}, weights={"big": 3, "small": 1}, max_epochs={"small": limit})
    order = open_order(snapshot)
    assert order.num_samples is not None
    addresses = order.locate(np.arange(order.num_samples + 1))
    assert int((addresses >= 90).sum()) == repeats + 1
    assert addresses[-1] >= 90


@pytest.mark.parametrize("stratum", [None, 2])
def test_shard_outside_the_strata_of_its_source_is_refused(tmp_path: Path, stratum: int | None) -> None:
    root = Root(str(make_snapshot(tmp_path, {"web": 20})))
    snapshot = read_snapshot(root)
    strata = Strata(column="score", bounds=(1.0,), repeats=(1, 1))
    shards = [shard.model_copy(update={"stratum": 1}) for shard in snapshot.shards]
    shards[1] = shards[1].model_copy(update={"stratum": stratum})
    sources = {"web": snapshot.sources["web"].model_copy(update={"strata": strata})}
    with pytest.raises(SnapshotError, match=f"{shards[1].path}: its stratum is not one of the 2 of its source"):
        Inventory(snapshot.model_copy(update={"shards": tuple(shards), "sources": sources}), "train", 17, 0)


def test_a_source_whose_strata_are_all_left_out_is_refused(tmp_path: Path) -> None:
    snapshot = read_snapshot(Root(str(make_snapshot(tmp_path, {"web": 9}))))
    strata = Strata(column="score", bounds=(1.0,), repeats=(0, 3))
    sources = {"web": snapshot.sources["web"].model_copy(update={"strata": strata})}
    shards = tuple(shard.model_copy(update={"stratum": 0}) for shard in snapshot.shards)
    changed = snapshot.model_copy(update={"sources": sources, "shards": shards})
    Root(str(tmp_path)).write_atomic(SNAPSHOT, changed.sealed().to_json())
    with pytest.raises(SnapshotError, match="all its strata"):
        open_order(tmp_path)
