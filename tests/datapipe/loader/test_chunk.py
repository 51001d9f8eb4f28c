"""Counts over the global batch, on every rank, against the labels of all ranks."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import UserError
from datapipe.loader import Loader
from datapipe.loader.share import Mesh, RaggedRanksWarning
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.medium

FIELDS = ("labels", "document_keys", "global_rows", "global_target_tokens")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshot")
    return make_snapshot(folder, {"code": 31, "web": 83}, validation={"web": 21}, total_tokens=16 * 100)


def counted(labels: np.ndarray, kind: str) -> int:
    """The labels that a loss counts; a model that shifts them itself has no use for the first of a row."""
    return int(((labels if kind == "shifted" else labels[:, 1:]) != -100).sum())


@pytest.mark.parametrize("balance", ["rows", "attention"])
@pytest.mark.parametrize("kind", ["shifted", "unshifted"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_counts_of_every_rank_are_those_of_the_labels_of_all_ranks(
    output: Path, world_size: int, kind: Any, balance: Any
) -> None:
    left_out = Loader(output, global_batch_size=9, fields=FIELDS).batch(2)["document_keys"][3].tobytes().hex()
    for split, skip in (("train", ()), ("train", (left_out,)), ("validation", ())):
        options: dict[str, Any] = {"split": split, "labels": kind, "fields": FIELDS, "balance": balance, "skip_documents": skip}
        ranks = [Loader(output, global_batch_size=9, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
        for steps in ([0], [1, 2, 0]):
            built = [rank._builder.build_many(steps) for rank in ranks]
            for parts in zip(*built):
                rows = sum(len(part["labels"]) for part in parts)
                targets = sum(counted(part["labels"], kind) for part in parts)
                assert [(part["global_rows"], part["global_target_tokens"]) for part in parts] == [(rows, targets)] * world_size
                assert all(type(part[field]) is int for part in parts for field in FIELDS[2:])


def test_counts_of_a_smaller_last_batch_are_those_of_its_rows(output: Path) -> None:
    options: dict[str, Any] = {"global_batch_size": 9, "fields": FIELDS, "drop_last": False}
    last = [Loader(output, rank=rank, world_size=2, **options).batch(11) for rank in range(2)]
    assert [(part["global_rows"], len(part["labels"])) for part in last] == [(1, 0), (1, 1)]
    assert {part["global_target_tokens"] for part in last} == {counted(last[1]["labels"], "shifted")}


def test_counts_of_replaced_rows_are_the_same_on_every_rank(output: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(output, damaged)
    sorted(damaged.glob("shards/web/train-*"))[2].unlink()
    ranks = [
        Loader(damaged, global_batch_size=9, rank=rank, world_size=2, fields=FIELDS, on_corrupt="replace") for rank in range(2)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        batches = [[rank.batch(step) for rank in ranks] for step in range(11)]
    for parts in batches:
        targets = sum(counted(part["labels"], "shifted") for part in parts)
        assert [part["global_target_tokens"] for part in parts] == [targets, targets]


def test_counts_are_the_same_without_other_fields(output: Path) -> None:
    alone = Loader(output, global_batch_size=9, rank=2, world_size=4, fields=("global_target_tokens",)).batch(1)
    assert alone == {
        "global_target_tokens": Loader(output, global_batch_size=9, fields=FIELDS).batch(1)["global_target_tokens"]
    }


@pytest.mark.parametrize("context_rank", [0, 1])
def test_counts_of_a_context_group_are_those_of_whole_rows(output: Path, context_rank: int) -> None:
    mesh = Mesh(data_rank=1, data_size=3, context_rank=context_rank, context_size=2, layout="zigzag")
    part = Loader(output, global_batch_size=9, mesh=mesh, fields=FIELDS).batch(3)
    whole = Loader(output, global_batch_size=9, fields=FIELDS).batch(3)
    assert (part["global_rows"], part["global_target_tokens"]) == (9, whole["global_target_tokens"])


@pytest.mark.parametrize(
    ("size", "world_size", "found"),
    [(8, 3, "2 or 3 rows .* Use 6 or 9 rows"), (2, 3, "0 or 1 rows .* NaN. Use 3 rows"), (9, 4, "2 or 3 rows")],
)
def test_ragged_ranks_are_warned_of_once_by_one_rank(output: Path, size: int, world_size: int, found: str) -> None:
    def run_all() -> None:
        for rank in range(world_size):
            loader = Loader(output, global_batch_size=size, rank=rank, world_size=world_size)
            loader.batch(0)
            loader.load_state_dict(loader.state_dict())

    with pytest.warns(RaggedRanksWarning, match=found) as caught:
        run_all()
    assert len(caught) == 1


def test_equal_shares_and_scaled_losses_are_not_warned_of(output: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(output, global_batch_size=9, world_size=3)
        Loader(output, batch_size=5, world_size=3)
        Loader(output, global_batch_size=8, world_size=3, fields=FIELDS)


@pytest.mark.parametrize(("size", "nearest"), [(8, "6 or 9"), (2, "3"), (4, "3 or 6")])
def test_even_refuses_ragged_ranks_with_the_nearest_sizes(output: Path, size: int, nearest: str) -> None:
    for rank in range(3):
        with pytest.raises(UserError, match=f"on 3 ranks.* multiple of 3: {nearest}"):
            Loader(output, global_batch_size=size, rank=rank, world_size=3, even=True)


def test_even_refuses_a_last_batch_that_ranks_cannot_share(output: Path) -> None:
    Loader(output, split="validation", global_batch_size=7, world_size=7, even=True)  # 21 rows
    Loader(output, global_batch_size=9, world_size=3, even=True)  # the last 1 of 100 rows is dropped
    Loader(output, global_batch_size=8, world_size=4, drop_last=False, even=True)  # 100 rows: 4 in the last batch
    with pytest.raises(UserError, match="step 11, the last, has 1 rows for 3 ranks"):
        Loader(output, global_batch_size=9, world_size=3, drop_last=False, even=True)
    with pytest.raises(UserError, match="step 2, the last, has 5 rows for 4 ranks"):
        Loader(output, split="validation", global_batch_size=8, world_size=4, even=True)


def test_even_refuses_a_state_after_which_the_last_batch_is_ragged(output: Path) -> None:
    before = Loader(output, split="validation", global_batch_size=1)
    before.seek(1)
    with pytest.raises(UserError, match="has 6 rows for 7 ranks"):
        Loader(output, split="validation", global_batch_size=7, world_size=7, even=True).load_state_dict(before.state_dict())


def test_copies_in_workers_do_not_warn_again(output: Path) -> None:
    pytest.importorskip("torch")
    from datapipe.loader import torch as torch_loader

    with pytest.warns(RaggedRanksWarning):
        dataset = torch_loader.StreamingDataset(output, global_batch_size=8, rank=0, world_size=3)
    state = dataset.__getstate__()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = object.__new__(type(dataset))
        copy.__setstate__(state)
        assert next(iter(copy))["input_ids"].shape == (2, 16)
