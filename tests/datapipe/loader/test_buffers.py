"""A buffer is reused if and only if no array refers to it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.loader import Loader
from datapipe.loader.buffers import BufferPool
from datapipe.loader.share import Mesh
from tests.support.snapshots import make_snapshot

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


def test_arrays_are_aligned_to_64_bytes_new_and_reused() -> None:
    pool = BufferPool()
    for shape, dtype in product([(64,), (13, 5), (64, 2048), (33, 1024)], [np.uint8, np.int32, np.int64]):
        for _ in range(3):
            array = pool.empty(shape, dtype)
            array[...] = 1
            assert (array.ctypes.data % 64, array.shape, array.dtype) == (0, shape, dtype)
            del array


@pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")
@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 3}, {"mesh": CONTEXT}])
def test_tokens_of_every_batch_are_aligned_to_64_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    output = make_snapshot(tmp_path, {"web": 60}, sequence_length=64)
    fields = ("input_ids", "labels", "position_ids", "segment_ids")
    for prefetch in (0, 16):
        loader = Loader(output, global_batch_size=7, prefetch=prefetch, fields=fields, dtype="int32", **options)
        for batch in islice(loader, 20):
            assert [batch[field].ctypes.data % 64 for field in fields] == [0, 0, 0, 0]
