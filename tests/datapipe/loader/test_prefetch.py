"""Batches are built ahead, handed out in order, and no thread leaks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import CorruptionError
from datapipe.loader import Loader, prefetch
from datapipe.loader.prefetch import Prefetcher
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.medium


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """Collects the loaders of earlier tests, which may lie in cycles: their threads end with them."""
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _frozen_heap() -> Iterator[None]:
    """Leaves the objects of other modules out of the collections here."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def every(stride: int = 1, stop: int = 1 << 40) -> Callable[[int], int | None]:
    return lambda step: step + stride if step + stride < stop else None


def each(build: Callable[[int], Any]) -> Callable[[Sequence[int]], list[Any]]:
    return lambda steps: [build(step) for step in steps]


def prefetch_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("datapipe-prefetch")}


@pytest.mark.parametrize(("depth", "num_threads", "stride"), [(0, 1, 1), (1, 1, 1), (2, 1, 3), (5, 4, 2), (40, 40, 1)])
def test_take_any_depth_gives_each_step_in_order(depth: int, num_threads: int, stride: int) -> None:
    ahead = Prefetcher(each(lambda step: step * 10), depth, num_threads=num_threads, successor=every(stride, 100))
    steps = range(2, 100, stride)
    assert [ahead.take(step) for step in steps] == [step * 10 for step in steps]
    ahead.close()
    assert not prefetch_threads()


def test_take_never_builds_past_the_stop_or_further_than_its_depth() -> None:
    built: list[int] = []

    def build(step: int) -> int:
        built.append(step)
        return step

    ahead = Prefetcher(each(build), 3, successor=every(stop=7))
    assert ahead.take(0) == 0
    ahead.close()
    assert max(built) <= 3
    assert [ahead.take(step) for step in range(1, 7)] == list(range(1, 7))
    ahead.close()
    assert max(built) == 6


def test_take_unexpected_step_starts_there() -> None:
    ahead = Prefetcher(each(lambda step: step), 4, num_threads=2, successor=every())
    assert [ahead.take(step) for step in (0, 1, 50, 51, 3, 3)] == [0, 1, 50, 51, 3, 3]
    ahead.close()


def test_take_steps_that_are_skipped_are_never_built() -> None:
    after = {0: 1, 1: 7, 7: 8, 8: 20, 20: 21}
    built: list[int] = []
    ahead = Prefetcher(each(lambda step: built.append(step) or step), 16, successor=after.get)
    assert [ahead.take(step) for step in (0, 1, 7, 8, 20, 21)] == [0, 1, 7, 8, 20, 21]
    assert sorted(built) == [0, 1, 7, 8, 20, 21]
    ahead.close()


def test_chunks_begin_with_one_step_and_grow_to_half_of_the_depth_or_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(num_bytes: int) -> list[int]:
        found: list[int] = []

        def build_many(steps: Sequence[int]) -> list[Any]:
            found.append(len(steps))
            return [{"x": np.zeros(num_bytes, np.uint8), "step": step} for step in steps]

        ahead = Prefetcher(build_many, 32, successor=every(stop=200))
        assert [ahead.take(step)["step"] for step in range(200)] == list(range(200))
        ahead.close()
        assert sum(found) == 200
        return found

    monkeypatch.setattr(prefetch, "CHUNK_BYTES", 10_000)
    small, large = sizes(10), sizes(2_000)
    assert small[0] == large[0] == 1
    assert (max(small), max(large)) == (16, 5)


def test_take_never_holds_more_than_its_depth() -> None:
    taken = [0]
    most: list[int] = []

    def build_many(steps: Sequence[int]) -> list[int]:
        most.append(steps[-1] + 1 - taken[0])
        return list(steps)

    ahead = Prefetcher(build_many, 10, successor=every(stop=500))
    for step in range(500):
        ahead.take(step)
        taken[0] = step + 1
    ahead.close()
    assert max(most) <= 11  # the step in `take` is not counted yet


def test_take_error_within_a_chunk_comes_in_its_turn() -> None:
    def build(step: int) -> int:
        if step == 21:
            raise OSError("the disk is broken")
        return step

    ahead = Prefetcher(each(build), 16, successor=every())
    assert [ahead.take(step) for step in range(21)] == list(range(21))
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is broken"):
            ahead.take(21)
    assert ahead.take(22) == 22
    ahead.close()


@pytest.mark.parametrize("depth", [0, 8])
def test_counts_tell_batches_bytes_and_seconds(depth: int) -> None:
    gate = threading.Event()

    def build_many(steps: Sequence[int]) -> list[Any]:
        gate.wait(0.02)
        return [{"x": np.zeros(5, np.int64), "step": step} for step in steps]

    ahead = Prefetcher(build_many, depth, successor=every(stop=30))
    for step in range(30):
        ahead.take(step)
    counts = ahead.counts
    ahead.close()
    assert (counts.batches, counts.bytes) == (30, 30 * 40)
    assert counts.build_s >= 0.1
    assert counts.wait_s > 0.02
    assert (counts.ready_sum > 0) == (depth > 0)


def test_taken_batch_is_freed() -> None:
    ahead = Prefetcher(each(lambda step: np.zeros(step + 1)), 8, successor=every())
    for step in range(40):
        taken = weakref.ref(ahead.take(step))
        assert taken() is None
    ahead.close()


def test_take_error_is_raised_and_taking_again_builds_again() -> None:
    failures = iter([OSError("the disk stalled")])

    def build(step: int) -> int:
        if step == 2:
            for error in failures:
                raise error
        return step

    ahead = Prefetcher(each(build), 2, successor=every())
    assert [ahead.take(0), ahead.take(1)] == [0, 1]
    with pytest.raises(OSError, match="the disk stalled"):
        ahead.take(2)
    assert [ahead.take(2), ahead.take(3)] == [2, 3]
    ahead.close()


def test_threads_start_at_the_first_batch_and_end_with_the_iterator(tmp_path: Path) -> None:
    loader = Loader(make_snapshot(tmp_path, {"web": 40}), global_batch_size=4, prefetch=3)
    batches = iter(loader)
    assert not prefetch_threads()
    next(batches)
    assert prefetch_threads()
    del batches
    gc.collect()
    assert not prefetch_threads()


def test_threads_end_when_the_data_does_or_the_loop_breaks(tmp_path: Path) -> None:
    loader = Loader(make_snapshot(tmp_path, {"web": 40}, total_tokens=16 * 40), global_batch_size=4)
    for _ in loader:
        break
    gc.collect()
    assert not prefetch_threads()
    assert len(list(loader)) == 9
    assert not prefetch_threads()


def test_threads_end_with_the_last_reference_to_the_prefetcher() -> None:
    ahead = Prefetcher(each(np.zeros), 8, num_threads=8, successor=every())
    ahead.take(3)
    del ahead
    gc.collect()
    assert not prefetch_threads()


@pytest.mark.slow
def test_interpreter_with_an_open_iterator_exits(tmp_path: Path) -> None:
    make_snapshot(tmp_path, {"web": 40})
    program = f"from datapipe.loader import Loader\nbatches = iter(Loader({str(tmp_path)!r}, batch_size=4))\nnext(batches)\n"
    run_program(program)


def run_program(program: str) -> None:
    """Runs a program in a fresh interpreter that imports this checkout. It must exit with 0 and print nothing."""
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[3]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", program],  # kernels that run as Python overflow on purpose
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_iterator_copied_by_a_fork_is_refused(tmp_path: Path) -> None:
    make_snapshot(tmp_path, {"web": 40})
    program = (
        "import os, warnings\n"
        "from datapipe.errors import UserError\n"
        "from datapipe.loader import Loader\n"
        f"batches = iter(Loader({str(tmp_path)!r}, batch_size=4))\n"
        "next(batches)\n"
        "warnings.simplefilter('ignore')\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        next(batches)\n"
        "    except UserError as error:\n"
        "        os._exit(7 if 'before a fork' in str(error) else 1)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 7\n"
    )
    run_program(program)


def test_error_in_a_thread_names_the_shard(tmp_path: Path) -> None:
    loader = Loader(make_snapshot(tmp_path, {"web": 40}, rows_per_shard=50), global_batch_size=4)
    shard = tmp_path / "shards/web/train-0000-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CorruptionError) as caught:
        next(iter(loader))
    assert any("shards/web/train-0000-00000.arrow" in note for note in caught.value.__notes__)
    gc.collect()
    assert not prefetch_threads()


def test_several_threads_may_ask_one_loader(tmp_path: Path) -> None:
    loader = Loader(make_snapshot(tmp_path, {"code": 30, "web": 60}), global_batch_size=6)
    expected = [loader.batch(step)["input_ids"] for step in range(40)]
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(step for step in range(40) if not np.array_equal(loader.batch(step)["input_ids"], expected[step]))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(list(islice(loader, 3))) == 3


def test_num_ready_is_what_can_be_taken_at_once() -> None:
    ahead = Prefetcher(list, 6, successor=lambda step: step + 1 if step < 9 else None)
    assert ahead.num_ready == 0
    for step in range(10):
        assert ahead.take(step) == step
        assert 0 <= ahead.num_ready <= 6
        assert ahead.chunk_steps <= 3
    assert ahead.num_ready == 0
    ahead.close()


@pytest.mark.slow
def test_child_of_a_fork_waits_for_no_lock_of_the_parents_threads(tmp_path: Path) -> None:
    make_snapshot(tmp_path, {"web": 20}, sequence_length=4096, shard_format="parquet")
    program = (
        "import os, signal\n"
        "from datapipe.loader import Loader\n"
        "from datapipe.shards import reader\n"
        f"loader = Loader({str(tmp_path)!r}, global_batch_size=4)\n"
        "expected = loader.batch(3)['labels'].tolist()\n"
        "with reader._CACHE._lock, loader._builder._pool._lock, loader._reader._lock:\n"  # as if threads were at work
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        signal.alarm(30)\n"
        "        os._exit(7 if loader.batch(3)['labels'].tolist() == expected else 1)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )
    run_program(program)
