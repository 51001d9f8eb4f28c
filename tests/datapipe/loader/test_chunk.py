"""Counts over the global batch, on every rank, against the labels of all ranks."""

from __future__ import annotations

import pickle
import shutil
import warnings
from itertools import islice
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
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_counts_of_every_rank_are_those_of_the_labels_of_all_ranks(
    output: Path, world_size: int, kind: Any, balance: Any
) -> None:
    left_out = Loader(output, global_batch_size=9, fields=FIELDS).batch(2)["document_keys"][3].tobytes().hex()
    for more in ({}, {"skip_documents": (left_out,)}, {"split": "validation"}, {"drop_last": False, "skip": [(2, 10)]}):
        options: dict[str, Any] = {"global_batch_size": 9, "labels": kind, "balance": balance, **more}
        ranks = [Loader(output, rank=rank, world_size=world_size, fields=FIELDS, **options) for rank in range(world_size)]
        alone = Loader(output, fields=("global_target_tokens",), **options)
        for part_alone, *parts in zip(*(islice(rank, 4) for rank in [alone, *ranks]), strict=True):
            rows = sum(len(part["labels"]) for part in parts)
            targets = sum(counted(part["labels"], kind) for part in parts)
            assert [(part["global_rows"], part["global_target_tokens"]) for part in parts] == [(rows, targets)] * world_size
            assert part_alone == {"global_target_tokens": targets}
            assert all(type(part[field]) is int for part in parts for field in FIELDS[2:])


def test_counts_of_a_context_group_are_those_of_whole_rows(output: Path) -> None:
    whole = Loader(output, global_batch_size=9, fields=FIELDS).batch(3)
    for rank in range(2):
        mesh = Mesh(data_rank=1, data_size=3, context_rank=rank, context_size=2, layout="zigzag")
        part = Loader(output, global_batch_size=9, mesh=mesh, fields=FIELDS).batch(3)
        assert (part["global_rows"], part["global_target_tokens"]) == (9, whole["global_target_tokens"])


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


@pytest.mark.parametrize(("size", "world_size", "nearest"), [(8, 3, "6 or 9"), (2, 3, "3"), (9, 4, "8 or 12")])
def test_ragged_ranks_are_warned_of_once_by_one_rank_and_refused_where_even(
    output: Path, size: int, world_size: int, nearest: str
) -> None:
    def run_all() -> None:
        for rank in range(world_size):
            loader = Loader(output, global_batch_size=size, rank=rank, world_size=world_size)
            loader.load_state_dict(loader.state_dict())

    with pytest.warns(RaggedRanksWarning, match=f"Use {nearest} rows") as caught:
        run_all()
    assert len(caught) == 1
    for rank in range(world_size):
        with pytest.raises(UserError, match=f"multiple of {world_size}: {nearest}"):
            Loader(output, global_batch_size=size, rank=rank, world_size=world_size, even=True)


def test_equal_shares_and_scaled_losses_are_not_warned_of(output: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(output, global_batch_size=9, world_size=3)
        Loader(output, batch_size=5, world_size=3)
        Loader(output, global_batch_size=8, world_size=3, fields=FIELDS)


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


@pytest.mark.needs("torch")
def test_copies_in_workers_do_not_warn_again(output: Path) -> None:
    from datapipe.loader.torch import StreamingDataset

    with pytest.warns(RaggedRanksWarning):
        dataset = StreamingDataset(output, global_batch_size=8, rank=0, world_size=3)
    content = pickle.dumps(dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert next(iter(pickle.loads(content)))["input_ids"].shape == (2, 16)
