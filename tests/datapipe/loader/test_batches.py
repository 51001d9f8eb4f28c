"""The fields of a batch and its counts over all ranks, against plain Python; and the memory that batches are built in."""

import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.loader import Loader
from datapipe.loader.buffers import BufferPool
from datapipe.loader.field_table import FIELDS
from datapipe.loader.share import Mesh, RaggedRanksWarning
from tests.oracles import batch as oracle
from tests.support.snapshots import make_snapshot, source_hash

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
OF_PIECES = ("piece_offsets", "piece_lengths", "piece_starts", "document_keys")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, weights={"code": 1, "web": 2})


def lengths_of(batch: dict[str, np.ndarray]) -> list[list[int]]:
    """The lengths of the pieces of each row."""
    return [row.tolist() for row in np.split(batch["piece_lengths"], batch["piece_offsets"][1:-1])]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_fields_equal_their_oracles(output: Path, dtype: str) -> None:
    options: dict[str, Any] = {"global_batch_size": 9, "fields": tuple(FIELDS), "dtype": dtype}
    loader, unshifted = (Loader(output, labels=kind, **options) for kind in ("shifted", "unshifted"))
    assert loader.sources == ("code", "web")
    for step in range(12):
        batch = loader.batch(step)
        assert (batch["step"], batch["input_ids"].dtype, batch["labels"].dtype) == (step, dtype, dtype)
        assert batch["sources"].tolist() == (batch["input_ids"][:, 0] // S >= 31).tolist()
        for row, lengths in enumerate(lengths_of(batch)):
            tokens = batch["input_ids"][row].tolist()
            assert batch["labels"][row].tolist() == oracle.shifted_labels(tokens, lengths)
            assert unshifted.batch(step)["labels"][row].tolist() == oracle.unshifted_labels(tokens, lengths)
            assert batch["position_ids"][row].tolist() == oracle.positions(lengths, S)
            assert batch["segment_ids"][row].tolist() == oracle.segments(lengths, S)
        expected = oracle.borders(lengths_of(batch), S)
        assert (batch["cu_seqlens"].tolist(), batch["cu_seqlens"].dtype) == (expected, np.int32)
        assert batch["max_seqlen"] == max(np.diff(expected))
        assert type(batch["max_seqlen"]) is int


def test_pieces_name_the_documents_of_their_rows(output: Path) -> None:
    batch = Loader(output, global_batch_size=9, fields=("input_ids", "sources", *OF_PIECES)).batch(4)
    for row, source in enumerate(batch["sources"].tolist()):
        at = 0
        for piece in range(batch["piece_offsets"][row], batch["piece_offsets"][row + 1]):
            key = batch["document_keys"][piece].tobytes()
            assert int.from_bytes(key[:8], "big") == source_hash(("code", "web")[source])
            if batch["piece_starts"][piece] == 0:
                assert int.from_bytes(key[8:], "big") + 1 == batch["input_ids"][row, at]
            at += batch["piece_lengths"][piece]


def test_rank_without_rows_gets_empty_arrays(output: Path) -> None:
    batch = Loader(output, global_batch_size=2, rank=0, world_size=3, fields=tuple(FIELDS)).batch(0)
    assert batch["input_ids"].shape == batch["labels"].shape == batch["position_ids"].shape == (0, S)
    assert batch["cu_seqlens"].tolist() == batch["piece_offsets"].tolist() == [0]
    assert batch["document_keys"].shape == (0, 16)
    assert batch["max_seqlen"] == 0


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_ranks_of_a_context_group_share_the_tokens_of_identical_rows(output: Path, layout: Any) -> None:
    fields = ("input_ids", "labels", "position_ids", "segment_ids", "document_keys")
    whole = Loader(output, global_batch_size=9, rank=1, world_size=2, fields=fields).batch(3)
    meshes = [Mesh(data_rank=1, data_size=2, context_rank=rank, context_size=2, layout=layout) for rank in range(2)]
    parts = [Loader(output, global_batch_size=9, mesh=mesh, fields=fields).batch(3) for mesh in meshes]
    for field in fields[:-1]:
        joined = np.empty_like(whole[field])
        for mesh, part in zip(meshes, parts):
            joined[:, mesh.columns(16)] = part[field]
        np.testing.assert_array_equal(joined, whole[field])
    assert all((part["document_keys"] == whole["document_keys"]).all() for part in parts)


def test_batches_built_ahead_equal_those_built_alone_and_nothing_overlaps(output: Path) -> None:
    loader = Loader(output, global_batch_size=9, fields=tuple(FIELDS), prefetch=16)
    together = [batch for _, batch in zip(range(20), loader)]
    for step, batch in enumerate(together):
        alone = loader.batch(step)
        for field, value in batch.items():
            np.testing.assert_array_equal(value, alone[field], err_msg=field)
    arrays = [value for batch in together for value in batch.values() if isinstance(value, np.ndarray)]
    assert not any(np.shares_memory(one, other) for at, one in enumerate(arrays) for other in arrays[:at])


def test_batches_that_are_kept_are_never_written_to_again(output: Path) -> None:
    # 1,200 rows of 16 tokens are 150 KiB: large enough for the memory of batches to be used again
    batches = iter(Loader(output, global_batch_size=1200, fields=("input_ids", "labels")))
    kept = [next(batches) for _ in range(3)]
    then = [{field: value.copy() for field, value in batch.items()} for batch in kept]
    for _ in range(20):
        next(batches)["input_ids"][:] = -7
    for batch, before in zip(kept, then):
        for field, value in before.items():
            np.testing.assert_array_equal(batch[field], value)


SHAPE = (64, 256)
CONTEXT = Mesh(data_rank=0, data_size=1, context_rank=1, context_size=2, layout="zigzag")


def address_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_empty_array_without_references_is_reused() -> None:
    pool = BufferPool()
    first = pool.empty(SHAPE, np.int64)
    address = address_of(first)
    other = pool.empty(SHAPE, np.int64)
    assert address_of(other) != address
    del first
    again = pool.empty(SHAPE, np.int64)
    assert (address_of(again), again.shape, again.dtype) == (address, SHAPE, np.int64)
    assert pool.num_bytes == 2 * 64 * 256 * 8


def test_empty_views_of_any_kind_keep_their_memory() -> None:
    pool = BufferPool()
    views = [
        pool.empty(SHAPE, np.int64)[3:5],
        memoryview(pool.empty(SHAPE, np.int64)),
        pool.empty(SHAPE, np.int64).reshape(-1)[7:].view(np.uint8)[::2],
        np.frombuffer(pool.empty(SHAPE, np.int64), np.uint32),
        np.from_dlpack(pool.empty(SHAPE, np.int64)),
    ]
    pages = {address_of(np.asarray(view)) // 4096 for view in views}
    assert len(pages) == len(views)
    before = [np.array(view) for view in views]
    for _ in range(20):
        pool.empty(SHAPE, np.int64)[:] = -77
    for view, then in zip(views, before):
        np.testing.assert_array_equal(np.asarray(view), then)


def test_empty_from_many_threads_never_overlap() -> None:
    pool = BufferPool()

    def fill(number: int) -> bool:
        arrays = [pool.empty(SHAPE, np.int64) for _ in range(3)]
        for at, array in enumerate(arrays):
            array[:] = 10 * number + at
        return all(bool((array == 10 * number + at).all()) for at, array in enumerate(arrays))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(fill, range(400)))
    assert pool.num_bytes <= 8 * 3 * 64 * 256 * 8


def test_empty_other_sizes_and_more_than_the_limit_are_not_kept() -> None:
    size = 64 * 256 * 8
    pool = BufferPool(most_bytes=3 * size)
    held = [pool.empty(SHAPE, np.int64) for _ in range(5)]
    assert pool.num_bytes == 3 * size
    del held
    large = pool.empty((2, *SHAPE), np.int64)
    assert pool.num_bytes == 2 * size
    assert pool.empty((4,), np.int64).base is None
    del large


@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 3}, {"mesh": CONTEXT}])
def test_tokens_of_every_batch_are_aligned_to_64_bytes(output: Path, options: dict[str, Any]) -> None:
    fields = ("input_ids", "labels", "position_ids", "segment_ids")
    for prefetch in (0, 16):
        loader = Loader(output, global_batch_size=70, prefetch=prefetch, fields=fields, dtype="int32", **options)
        for batch in islice(loader, 20):
            assert [batch[field].ctypes.data % 64 for field in fields] == [0, 0, 0, 0]


COUNTED = ("labels", "document_keys", "global_rows", "global_target_tokens")


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshot")
    return make_snapshot(folder, {"code": 31, "web": 83}, validation={"web": 21}, total_tokens=16 * 100)


def counted(labels: np.ndarray, kind: str) -> int:
    """The labels that a loss counts; a model that shifts them itself has no use for the first of a row."""
    return int(((labels if kind == "shifted" else labels[:, 1:]) != -100).sum())


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["shifted", "unshifted"])
@pytest.mark.parametrize("world_size", [1, 4])
def test_counts_of_every_rank_are_those_of_the_labels_of_all_ranks(ending: Path, world_size: int, kind: Any) -> None:
    left_out = Loader(ending, global_batch_size=9, fields=COUNTED).batch(2)["document_keys"][3].tobytes().hex()
    for more in ({}, {"skip_documents": (left_out,)}, {"split": "validation"}, {"drop_last": False, "skip": [(2, 10)]}):
        options: dict[str, Any] = {"global_batch_size": 9, "labels": kind, **more}
        ranks = [Loader(ending, rank=rank, world_size=world_size, fields=COUNTED, **options) for rank in range(world_size)]
        alone = Loader(ending, fields=("global_target_tokens",), **options)
        for part_alone, *parts in zip(*(islice(rank, 4) for rank in [alone, *ranks]), strict=True):
            rows = sum(len(part["labels"]) for part in parts)
            targets = sum(counted(part["labels"], kind) for part in parts)
            assert [(part["global_rows"], part["global_target_tokens"]) for part in parts] == [(rows, targets)] * world_size
            assert part_alone == {"global_target_tokens": targets}
            assert all(type(part[field]) is int for part in parts for field in COUNTED[2:])


def test_counts_of_a_context_group_are_those_of_whole_rows(ending: Path) -> None:
    whole = Loader(ending, global_batch_size=9, fields=COUNTED).batch(3)
    for rank in range(2):
        mesh = Mesh(data_rank=1, data_size=3, context_rank=rank, context_size=2, layout="zigzag")
        part = Loader(ending, global_batch_size=9, mesh=mesh, fields=COUNTED).batch(3)
        assert (part["global_rows"], part["global_target_tokens"]) == (9, whole["global_target_tokens"])


def test_counts_of_replaced_rows_are_the_same_on_every_rank(ending: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(ending, damaged)
    sorted(damaged.glob("shards/web/train-*"))[2].unlink()
    ranks = [
        Loader(damaged, global_batch_size=9, rank=rank, world_size=2, fields=COUNTED, on_corrupt="replace") for rank in range(2)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        batches = [[rank.batch(step) for rank in ranks] for step in range(11)]
    for parts in batches:
        targets = sum(counted(part["labels"], "shifted") for part in parts)
        assert [part["global_target_tokens"] for part in parts] == [targets, targets]


@pytest.mark.parametrize(("size", "world_size", "nearest"), [(8, 3, "6 or 9"), (2, 3, "3"), (9, 4, "8 or 12")])
def test_ragged_ranks_are_warned_of_once_by_one_rank(ending: Path, size: int, world_size: int, nearest: str) -> None:
    ranks: list[dict[str, Any]] = [{"rank": rank, "world_size": world_size} for rank in range(world_size)]
    with pytest.warns(RaggedRanksWarning, match=f"Use {nearest} rows") as caught:
        loaders = [Loader(ending, global_batch_size=size, **rank) for rank in ranks]
    for loader in loaders:
        loader.load_state_dict(loader.state_dict())  # warns of nothing
    assert len(caught) == 1


def test_equal_shares_and_scaled_losses_are_not_warned_of(ending: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(ending, global_batch_size=9, world_size=3)
        Loader(ending, batch_size=5, world_size=3)
        Loader(ending, global_batch_size=8, world_size=3, fields=COUNTED)
