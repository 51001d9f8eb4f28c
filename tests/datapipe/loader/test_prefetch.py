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
from hypothesis import given, settings
from hypothesis import strategies as st

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


def each(build: Callable[[int], Any]) -> Callable[[Sequence[int]], list[Any]]:
    return lambda steps: [build(step) for step in steps]


def prefetch_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("datapipe-prefetch")}


@pytest.mark.parametrize(("num_bytes", "most"), [(10, 16), (2_000, 5)])
def test_chunks_begin_with_one_step_and_grow_to_half_of_the_depth_or_the_bytes(
    num_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "CHUNK_BYTES", 10_000)
    found: list[int] = []

    def build_many(steps: Sequence[int]) -> list[Any]:
        found.append(len(steps))
        return [{"x": np.zeros(num_bytes, np.uint8), "step": step} for step in steps]

    ahead = Prefetcher(build_many, 32, successor=lambda step: step + 1 if step < 199 else None)
    assert [ahead.take(step)["step"] for step in range(200)] == list(range(200))
    ahead.close()
    assert (found[0], max(found), sum(found)) == (1, most, 200)


STOP = 60


@settings(deadline=None)
@given(
    depth=st.integers(0, 40),
    num_threads=st.integers(1, 5),
    stride=st.integers(1, 3),
    jumps=st.dictionaries(st.integers(0, STOP), st.integers(0, STOP - 1), max_size=3),
    failing=st.sets(st.integers(0, STOP), max_size=3),
)
def test_take_gives_each_step_in_its_turn_and_builds_no_other(
    depth: int, num_threads: int, stride: int, jumps: dict[int, int], failing: set[int]
) -> None:
    """Steps to the end with jumps to others, of which some fail the first time: as if each was built when it is asked for."""
    failures, built, position, most = set(failing), list[int](), [0], [0]

    def build_many(steps: Sequence[int]) -> list[Any]:
        most.append(len(range(position[0], steps[-1] + 1, stride)) if steps[-1] >= position[0] else 0)
        for step in steps:
            built.append(step)
            if step in failures:
                failures.discard(step)
                raise OSError(f"step {step}")
        return [np.full(3, step) for step in steps]

    ahead = Prefetcher(
        build_many, depth, num_threads=num_threads, successor=lambda step: step + stride if step + stride < STOP else None
    )
    step, taken, jumps = 0, list[int](), dict(jumps)
    while step < STOP:
        position[0] = step
        try:
            batch = ahead.take(step)
        except OSError:
            batch = ahead.take(step)
        assert batch.tolist() == [step] * 3
        held = weakref.ref(batch)
        del batch
        assert held() is None  # nothing but the trainer holds it
        taken.append(step)
        assert 0 <= ahead.num_ready <= depth
        step = jumps.pop(step) if step in jumps else step + stride
    ahead.close()
    assert not prefetch_threads()
    assert set(taken) <= set(built)
    assert max(built) < STOP
    if not jumps and len(taken) == len(range(0, STOP, stride)):
        assert max(most) <= depth + 1  # the step in `take` is not counted yet
        assert set(built) == set(taken)


def test_take_error_within_a_chunk_comes_in_its_turn() -> None:
    def build(step: int) -> int:
        if step == 21:
            raise OSError("the disk is broken")
        return step

    ahead = Prefetcher(each(build), 16, successor=lambda step: step + 1)
    assert [ahead.take(step) for step in range(21)] == list(range(21))
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            ahead.take(21)
    assert ahead.take(22) == 22
    ahead.close()


@pytest.mark.parametrize("depth", [0, 8])
def test_counts_tell_batches_bytes_and_seconds(depth: int) -> None:
    gate = threading.Event()

    def build_many(steps: Sequence[int]) -> list[Any]:
        gate.wait(0.02)
        return [{"x": np.zeros(5, np.int64), "step": step} for step in steps]

    ahead = Prefetcher(build_many, depth, successor=lambda step: step + 1 if step < 29 else None)
    for step in range(30):
        ahead.take(step)
    counts = ahead.counts
    ahead.close()
    assert (counts.batches, counts.bytes) == (30, 30 * 40)
    assert counts.build_s >= 0.1
    assert counts.wait_s > 0.02
    assert (counts.ready_sum > 0) == (depth > 0)


def test_threads_start_at_the_first_batch_and_end_with_the_iterator_or_the_data(tmp_path: Path) -> None:
    loader = Loader(make_snapshot(tmp_path, {"web": 40}, total_tokens=16 * 40), global_batch_size=4, prefetch=3)
    batches = iter(loader)
    assert not prefetch_threads()
    next(batches)
    assert prefetch_threads()
    del batches
    gc.collect()
    assert not prefetch_threads()
    assert len(list(loader)) == 9
    assert not prefetch_threads()


def run_program(folder: Path, *lines: str) -> None:
    """Runs a program over an output in a fresh interpreter. It must exit with 0 and print nothing."""
    opened = f"import os, warnings\nfrom datapipe.loader import Loader\nloader = Loader({str(folder)!r}, global_batch_size=4)\n"
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[3]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", opened + "\n".join(lines)],  # kernels overflow on purpose
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_interpreter_with_an_open_iterator_exits(tmp_path: Path) -> None:
    run_program(make_snapshot(tmp_path, {"web": 40}), "batches = iter(loader)", "next(batches)")


@pytest.mark.slow
def test_iterator_copied_by_a_fork_is_refused(tmp_path: Path) -> None:
    run_program(
        make_snapshot(tmp_path, {"web": 40}),
        "batches = iter(loader)",
        "next(batches)",
        "warnings.simplefilter('ignore')",
        "if os.fork() == 0:",
        "    try:",
        "        next(batches)",
        "    except Exception as error:",
        "        os._exit(7 if 'before a fork' in str(error) else 1)",
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 7",
    )


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


@pytest.mark.slow
def test_child_of_a_fork_waits_for_no_lock_of_the_parents_threads(tmp_path: Path) -> None:
    run_program(
        make_snapshot(tmp_path, {"web": 20}, sequence_length=4096, shard_format="parquet"),
        "import signal",
        "from datapipe.shards import reader",
        "expected = loader.batch(3)['labels'].tolist()",
        "with reader._CACHE._lock, loader._builder._pool._lock, loader._reader._lock:",  # as if threads were at work
        "    child = os.fork()",
        "    if child == 0:",
        "        signal.alarm(30)",
        "        os._exit(7 if loader.batch(3)['labels'].tolist() == expected else 1)",
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7",
    )
