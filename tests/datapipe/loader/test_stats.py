"""The figures of a loader's clock, the diagnosis made from them, and a scrape of them over HTTP."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from datapipe.errors import UserError
from datapipe.loader import Loader
from datapipe.loader.prefetch import PrefetchCounts, Prefetcher
from datapipe.loader.prometheus import serve_metrics
from datapipe.loader.stats import LoaderStats, StepClock, host_memory, worker_memory
from tests.support.snapshots import make_snapshot

S = 16
BATCH = {"input_ids": np.zeros((2, S), np.int64), "step": 3}


class FakeBuilder(Prefetcher):
    """A prefetcher that builds nothing and has the counts that a test sets."""

    counts = PrefetchCounts()
    num_ready = 1
    chunk_steps = 1

    def __init__(self) -> None:
        super().__init__(list, 0, successor=lambda step: step + 1)


def clocked(steps: list[tuple[float, float]], *, build_s: float, depth: int = 2) -> LoaderStats:
    """Stats of a trainer that waits and computes as `steps` say, with a builder that takes `build_s` for each batch."""
    now, builder = [100.0], FakeBuilder()
    clock = StepClock("input_ids", lambda: now[0])
    clock.start(builder)
    for number, (wait_s, compute_s) in enumerate(steps, start=1):
        asked_at = clock.asks()
        size = number * BATCH["input_ids"].nbytes
        builder.counts = PrefetchCounts(batches=number, bytes=size, build_s=number * build_s, ready_sum=number)
        now[0] += wait_s
        clock.takes(asked_at, clock.count_tokens(BATCH))
        now[0] += compute_s
    return clock.stats(rank=1, split="train", depth=depth, num_threads=1)


def test_clock_tells_waiting_from_computing_and_the_first_wait_from_both() -> None:
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


@pytest.mark.parametrize(
    ("depth", "num_threads", "chunk_steps", "expected"),
    [(0, 1, 1, (0, 1, 1)), (1, 1, 1, (0, 1, 1)), (2, 1, 1, (1, 1, 1)), (8, 1, 4, (4, 4, 4)), (16, 16, 1, (0, 16, 1))],
)
def test_host_memory_is_the_batches_that_exist_at_a_time(
    depth: int, num_threads: int, chunk_steps: int, expected: tuple[int, int, int]
) -> None:
    memory = host_memory(depth=depth, num_threads=num_threads, chunk_steps=chunk_steps, batch_bytes=100)
    assert (memory.prefetch, memory.in_work, memory.in_transfer) == expected
    assert memory.bytes == sum(expected) * 100
    assert "({} ahead + {} in work + {} in transfer)".format(*expected) in str(memory)


def test_loader_counts_over_its_iterations(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path, {"web": 40})
    loader = Loader(output, global_batch_size=8, rank=1, world_size=2, prefetch=3)
    assert loader.stats().diagnosis == "unknown"
    for _ in range(2):
        list(islice(loader, 5))
    stats = loader.stats()
    assert (stats.rank, stats.split, stats.steps, stats.num_waits, stats.built) == (1, "train", 10, 8, 8)
    assert stats.tokens == 10 * 4 * S
    assert stats.bytes == stats.tokens * 8 * 2
    assert stats.host_memory.batch_bytes == 4 * S * 8 * 2
    assert stats.pipeline_rate > 0
    assert 0 <= stats.buffer_mean <= 3
    without_tokens = Loader(output, global_batch_size=8, fields=("step", "sources"), prefetch=0)
    list(islice(without_tokens, 3))
    stats = without_tokens.stats()
    assert (stats.steps, stats.tokens, stats.bytes) == (3, 0, 3 * 8 * 4)
    assert 0 < stats.build_s <= stats.wait_s
    assert (stats.buffer_mean, stats.host_memory.prefetch, stats.host_memory.in_work) == (0.0, 0, 1)


@pytest.mark.parametrize(("depth", "expected"), [(0, (2 * 3, 2, 1)), (4, (2 * (3 + 4), 0, 1))])
def test_memory_of_workers_is_what_each_has_ready_and_builds_ahead(depth: int, expected: tuple[int, int, int]) -> None:
    memory = worker_memory(num_workers=2, prefetch_factor=3, depth=depth, batch_bytes=100)
    assert (memory.prefetch, memory.in_work, memory.in_transfer) == expected


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
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"web": 60}, validation={"web": 9})


@pytest.mark.medium
def test_metrics_are_the_stats_of_each_loader(output: Path) -> None:
    train = Loader(output, global_batch_size=4, rank=1, world_size=2)
    validation = Loader(output, global_batch_size=4, split="validation")
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
        expected |= {"host_memory_bytes": stats.host_memory.bytes}
        for name, value in expected.items():
            assert found[f"datapipe_loader_{name}", str(stats.rank), stats.split] == pytest.approx(value), name
        assert expected["steps_total"] == steps


@pytest.mark.medium
def test_metrics_server_leaves_no_thread_and_names_a_port_in_use(output: Path) -> None:
    loader, before = Loader(output, global_batch_size=4), set(threading.enumerate())
    with serve_metrics([loader], port=0) as server, pytest.raises(UserError, match=str(server.port)):
        serve_metrics([loader], port=server.port)
    assert set(threading.enumerate()) == before
