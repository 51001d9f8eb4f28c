"""Batches are built ahead and handed out once, in order, to any number of threads; and the figures of a loader's clock."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from datapipe.errors import UserError
from datapipe.loader import Loader, prefetch
from datapipe.loader.prefetch import Prefetcher
from datapipe.loader.prometheus import serve_metrics
from datapipe.loader.stats import LoaderStats, StepClock
from datapipe.service.serve import Running, ServeOptions
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.medium


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """Collects the loaders of earlier tests, which may lie in cycles: their threads end with them."""
    gc.collect()


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
    late=st.booleans(),
    stride=st.integers(1, 3),
    jumps=st.dictionaries(st.integers(0, STOP), st.integers(0, STOP - 1), max_size=3),
    failing=st.sets(st.integers(0, STOP), max_size=3),
)
def test_take_gives_each_step_in_its_turn_and_builds_no_other(
    depth: int, num_threads: int, late: bool, stride: int, jumps: dict[int, int], failing: set[int]
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

    def successor(step: int) -> int | None:
        return step + stride if step + stride < STOP else None

    ahead = Prefetcher(build_many, depth, num_threads=num_threads, requests_late=late, successor=successor)
    step, taken, left = 0, list[int](), dict(jumps)
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
        step = left.pop(step) if step in left else step + stride
    ahead.close()
    assert not prefetch_threads()
    assert set(taken) <= set(built)
    assert max(built) < STOP
    if not jumps:
        assert max(most) <= depth + 1  # the step in `take` is not counted yet
        assert set(built) == set(taken)


@pytest.mark.parametrize("works", [False, True])
def test_caller_builds_while_it_only_takes_and_threads_while_it_works(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "HANDOVER_S", 0.0 if works else 1e9)
    in_thread, is_built = list[bool](), [threading.Event() for _ in range(40)]

    def build_many(steps: Sequence[int]) -> list[int]:
        in_thread.append(threading.current_thread() in prefetch_threads())
        for step in steps:
            is_built[step].set()
        return list(steps)

    ahead = Prefetcher(build_many, 8, requests_late=True, successor=lambda step: step + 1 if step < 39 else None)
    for step in range(40):
        assert not works or not step or is_built[step].wait(60)  # the caller works
        assert ahead.take(step) == step
    ahead.close()
    assert all(in_thread[1:]) if works else not any(in_thread[2:])


@pytest.mark.parametrize("handover_s", [0, 1e9])
def test_interrupt_of_a_caller_at_any_operation_costs_no_batch(handover_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "HANDOVER_S", handover_s)
    names = {"_take", "_wait_for", "_request", "build", "hand_out"}
    left = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != prefetch.__file__ or frame.f_code.co_name not in names:
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left < 0:
            raise KeyboardInterrupt
        return trace

    number, interrupted = 0, True
    while interrupted:  # at one operation after another
        ahead = Prefetcher(list, 4, requests_late=True, successor=lambda step: step + 1)
        left, interrupted = number, False
        for step in range(5):
            sys.settrace(None if interrupted else trace)
            try:
                batch = ahead.take(step)
            except KeyboardInterrupt:
                interrupted, batch = True, ahead.take(step)
            finally:
                sys.settrace(None)
            assert batch == step
        ahead.close()
        number += 7
    assert number > 200


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


FORKS = """
import os, sys, warnings
from datapipe.loader import Loader
batches = iter(Loader(sys.argv[1], global_batch_size=4))
next(batches)
warnings.simplefilter("ignore")
if os.fork() == 0:
    try:
        next(batches)
    except Exception as error:
        os._exit(7 if "before a fork" in str(error) else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""


@pytest.mark.slow
def test_interpreter_with_an_open_iterator_exits_and_a_copy_by_a_fork_is_refused(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path, {"web": 40})
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", FORKS, str(output)]  # kernels overflow on purpose
    done = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "step"), "drop_last": True}
NUM_STEPS, NUM_THREADS = 150, 4


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshot")
    return make_snapshot(folder, {"code": 400, "web": 400}, max_epochs={"code": 1, "web": 1}, validation={"web": 600})


def taken(take: Callable[[int], Iterable[Any]], num_threads: int = NUM_THREADS) -> list[tuple[int, list[int]]]:
    """Steps and first tokens of all batches that the threads took, sorted; one error of a thread fails the test."""
    begin = threading.Barrier(num_threads)

    def run(number: int) -> list[tuple[int, list[int]]]:
        begin.wait()
        return [(int(batch["step"]), batch["input_ids"][:, 0].tolist()) for batch in take(number)]

    with ThreadPoolExecutor(num_threads) as threads:
        return sorted(each for taken in threads.map(run, range(num_threads), timeout=120) for each in taken)


def expected(output: Path, num_steps: int = NUM_STEPS, **options: Any) -> list[tuple[int, list[int]]]:
    batches = islice(Loader(output, **{**OPTIONS, **options}), num_steps)
    return [(batch["step"], batch["input_ids"][:, 0].tolist()) for batch in batches]


WAYS: list[Callable[[Loader], Iterator[Any]]] = [iter, lambda loader: iter(loader.__next__, None)]


@pytest.mark.parametrize("prefetch", [0, 1, 16])
def test_iterators_and_next_in_several_threads_give_each_batch_once(output: Path, prefetch: int) -> None:
    for ways in ([WAYS[1]], WAYS):
        loader = Loader(output, prefetch=prefetch, **OPTIONS)
        assert taken(lambda number, ways=ways, loader=loader: ways[number % len(ways)](loader)) == expected(output, 10_000)
        assert loader.state_dict()["step"] == loader.num_steps


@pytest.mark.parametrize("split", ["train", "validation"])
def test_one_iterator_in_several_threads_gives_each_batch_once(output: Path, split: Any) -> None:
    options = {"split": split, "drop_last": None}
    batches = iter(Loader(output, **OPTIONS | options))
    assert taken(lambda _: batches) == expected(output, 10_000, **options)


def test_states_and_seeks_beside_a_thread_that_takes_lose_no_batch(output: Path) -> None:
    loader, steps = Loader(output, prefetch=4, **OPTIONS), []

    def take(number: int) -> Iterator[Any]:
        for step in range(40):
            if number:
                steps.append(loader.state_dict()["step"])
                loader.load_state_dict(loader.state_dict(min(step, steps[-1])))
            else:
                yield next(loader)

    by_step = dict(expected(output, 10_000))
    assert all(by_step[step] == rows for step, rows in taken(take, 2))
    assert all(0 <= step <= NUM_STEPS for step in steps)


def test_next_of_a_service_from_several_threads_gives_each_batch_once(output: Path, tmp_path: Path) -> None:
    server = Running([f"web={output}"], ServeOptions(port=0, shares_files=False, cache_folder=str(tmp_path)))
    for depth in (0, 8):
        loader = Loader(f"{server.location}/web", prefetch=depth, **OPTIONS)
        found = taken(lambda _, take=loader.__next__: islice(iter(take, None), NUM_STEPS // NUM_THREADS))
        loader.close()
        assert found == expected(output, len(found))
    server.close()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("num_workers", [None, 0, pytest.param(2, marks=pytest.mark.medium)])
def test_torch_iterators_in_several_threads_give_each_batch_once(output: Path, num_workers: int | None) -> None:
    from datapipe.loader.device import prefetch_to_device
    from datapipe.loader.torch import dataloader

    if num_workers is None:
        batches = prefetch_to_device(Loader(output, **OPTIONS), "cpu", depth=3)
    else:
        batches = iter(dataloader(output, num_workers=num_workers, **OPTIONS))
    count = NUM_STEPS // NUM_THREADS
    assert taken(lambda _: islice(batches, count)) == expected(output, count * NUM_THREADS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_fork_while_another_thread_takes_leaves_the_child_a_loader(output: Path) -> None:
    loader = Loader(output, prefetch=0, **OPTIONS)
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with loader.turns.lock:
            begun.set()
            go_on.wait(timeout=60)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert begun.wait(timeout=60)
    child = os.fork()
    if child == 0:
        os._exit(0 if next(loader)["step"] == 0 else 1)
    go_on.set()
    holder.join(timeout=60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


S = 16
BATCH = {"input_ids": np.zeros((2, S), np.int64), "step": 3}


def clocked(steps: list[tuple[float, float]], *, build_s: float, depth: int = 2) -> LoaderStats:
    """Stats of a trainer that waits and computes by `steps`, with a builder that takes `build_s` for each batch."""
    now = [100.0]
    clock = StepClock("input_ids", lambda: now[0])
    counts = clock.counts
    clock.start(SimpleNamespace(num_ready=1, chunk_steps=1))  # type: ignore[arg-type]
    for number, (wait_s, compute_s) in enumerate(steps, start=1):
        asked_at = clock.now()
        counts.batches = counts.ready_sum = number
        counts.bytes, counts.build_s = number * BATCH["input_ids"].nbytes, number * build_s
        now[0] += wait_s
        clock.takes(asked_at, clock.count_tokens(BATCH))
        now[0] += compute_s
    return clock.stats(rank=1, split="train", depth=depth, num_threads=1)


def test_clock_separates_waiting_from_computing_and_the_first_wait_from_both() -> None:
    stats = clocked([(5.0, 1.0), (0.5, 1.0), (0.0, 2.0), (0.25, 9.0)], build_s=0.125)
    assert (stats.steps, stats.num_waits, stats.tokens, stats.bytes) == (4, 3, 4 * 2 * S, 4 * 2 * S * 8)
    assert (stats.first_wait_s, stats.wait_s, stats.longest_wait_s, stats.compute_s) == (5.0, 0.75, 0.5, 4.0)
    assert stats.wait_per_step_s == 0.25
    assert stats.lost_share == 0.75 / 4.75
    assert stats.compute_rate == 3 / 4  # the time after the last batch may not be a step
    assert stats.pipeline_rate == 8
    assert (stats.buffer_mean, stats.buffer_now) == (1.0, 1)


@pytest.mark.parametrize(
    ("steps", "build_s", "depth", "diagnosis", "facts"),
    [
        ([(1.0, 0.1)] * 9, 1.0, 2, "data-bound", ["1.0 batches/s", "10.0/s"]),
        ([(0.0, 1.0), (0.0, 1.0), (2.0, 1.0)], 0.5, 2, "data-bound", ["longest wait 2 s", "Raise prefetch"]),
        ([(0.5, 1.0)] * 9, 0.5, 0, "data-bound", ["prefetch=2"]),
        ([(0.0005, 0.01)] * 9, 0.001, 2, "data-bound", ["0.50 ms"]),  # batches are ready
        ([(1.0, 0.00001)] * 9, 1.0, 2, "data-bound", ["less than 1 ms between batches", "trains nothing"]),
        ([(0.001, 1.0)] * 9, 0.5, 2, "compute-bound", ["0.10% of the time", "2.0 batches/s"]),
        ([(1.0, 1.0)], 0.5, 2, "unknown", []),
        ([], 0.5, 2, "unknown", []),
    ],
)
def test_diagnosis_and_its_reason(
    steps: list[tuple[float, float]], build_s: float, depth: int, diagnosis: str, facts: list[str]
) -> None:
    stats = clocked(steps, build_s=build_s, depth=depth)
    assert stats.diagnosis == diagnosis
    assert all(fact in stats.reason for fact in facts)
    assert f"{diagnosis}: {stats.reason}" in str(stats)


@pytest.mark.parametrize(("wait_s", "is_advised"), [(1.0, True), (0.001, False)])
def test_reason_where_workers_build_advises_more_of_them_and_reports_no_speed_of_theirs(
    wait_s: float, is_advised: bool
) -> None:
    stats = replace(clocked([(wait_s, 1.0)] * 9, build_s=0.0), num_workers=3, built=0, num_threads=0)
    assert ("Raise num_workers" in stats.reason) is is_advised
    assert "0.0 batches/s" not in stats.reason
    assert "buffer " not in str(stats)


@pytest.mark.parametrize(("depth", "chunk_steps", "expected"), [(0, 1, 2), (1, 1, 2), (2, 1, 3), (8, 4, 12), (16, 1, 17)])
def test_host_memory_is_that_of_the_batches_that_exist_at_a_time(depth: int, chunk_steps: int, expected: int) -> None:
    clock = StepClock(None)
    clock.start(SimpleNamespace(chunk_steps=chunk_steps, num_ready=0))  # type: ignore[arg-type]
    clock.counts.batches, clock.counts.bytes = 10, 1_000_000
    stats = clock.stats(rank=0, split="train", depth=depth, num_threads=1)
    assert stats.host_bytes == expected * 100_000
    assert f"{expected / 10:.1f} MB in at most {expected} batches" in str(stats)


def test_loader_counts_over_its_iterations(tmp_path: Path) -> None:
    small_output = make_snapshot(tmp_path, {"web": 40})
    loader = Loader(small_output, global_batch_size=8, rank=1, world_size=2, prefetch=3)
    assert loader.stats().diagnosis == "unknown"
    for _ in range(2):
        list(islice(loader, 5))
    stats = loader.stats()
    assert (stats.rank, stats.split, stats.steps, stats.num_waits, stats.built) == (1, "train", 10, 8, 8)
    assert stats.tokens == 10 * 4 * S
    assert stats.bytes == stats.tokens * 8 * 2
    assert stats.host_bytes == stats.host_batches * 4 * S * 8 * 2
    assert stats.pipeline_rate > 0
    assert 0 <= stats.buffer_mean <= 3
    without_tokens = Loader(small_output, global_batch_size=8, fields=("step", "sources"), prefetch=0)
    list(islice(without_tokens, 3))
    stats = without_tokens.stats()
    assert (stats.steps, stats.tokens, stats.bytes) == (3, 0, 3 * 8 * 4)
    assert 0 < stats.build_s <= stats.wait_s
    assert (stats.buffer_mean, stats.host_batches) == (0.0, 2)


def scrape(port: int) -> dict[tuple[str, str, str], float]:
    """Value by (name, rank, split)."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels["rank"], sample.labels["split"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def small_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"web": 60}, validation={"web": 9})


def test_metrics_are_the_stats_of_each_loader(small_output: Path) -> None:
    train = Loader(small_output, global_batch_size=4, rank=1, world_size=2)
    validation = Loader(small_output, global_batch_size=4, split="validation")
    with serve_metrics([train, validation], port=0) as server:
        assert scrape(server.port)["datapipe_loader_steps_total", "1", "train"] == 0
        list(islice(train, 7))
        list(validation)
        found = scrape(server.port)
    for loader, steps in ((train, 7), (validation, 3)):
        stats = loader.stats()
        expected = {f"{name}_total": getattr(stats, name) for name in ("steps", "tokens", "bytes", "built")}
        expected |= {
            f"{name}_seconds_total": getattr(stats, f"{name}_s") for name in ("wait", "first_wait", "compute", "build")
        }
        expected |= {"buffer_batches": stats.buffer_now, "prefetch_batches": stats.depth}
        expected |= {"host_memory_bytes": stats.host_bytes}
        for name, value in expected.items():
            assert found[f"datapipe_loader_{name}", str(stats.rank), stats.split] == pytest.approx(value), name
        assert expected["steps_total"] == steps


def test_metrics_server_leaves_no_thread_and_names_a_port_in_use(small_output: Path) -> None:
    loader, before = Loader(small_output, global_batch_size=4), set(threading.enumerate())
    with serve_metrics([loader], port=0) as server, pytest.raises(UserError, match=str(server.port)):
        serve_metrics([loader], port=server.port)
    assert set(threading.enumerate()) == before
