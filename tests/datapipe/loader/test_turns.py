"""Several threads that take batches of one loader: each batch is handed out once, and nothing waits for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from datapipe.loader import Loader
from datapipe.service.serve import Running, ServeOptions
from tests.support.snapshots import make_snapshot

OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "step"), "drop_last": True}
NUM_STEPS, NUM_THREADS = 150, 4


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshot")
    return make_snapshot(folder, {"code": 400, "web": 400}, max_epochs={"code": 1, "web": 1}, validation={"web": 600})


def taken(take: Callable[[int], Iterable[Any]], num_threads: int = NUM_THREADS) -> list[tuple[int, list[int]]]:
    """Steps and first tokens of all batches that the threads took, sorted; one error of a thread fails the test."""
    found: list[tuple[int, list[int]]] = []
    errors: list[BaseException] = []
    begin = threading.Barrier(num_threads)

    def run(number: int) -> None:
        try:
            begin.wait()
            for batch in take(number):
                found.append((int(batch["step"]), [int(row[0]) for row in batch["input_ids"]]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    return sorted(found)


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


@pytest.mark.medium
def test_next_of_a_service_from_several_threads_gives_each_batch_once(output: Path, tmp_path: Path) -> None:
    server = Running([f"web={output}"], ServeOptions(port=0, tells_files=False, cache_folder=str(tmp_path)))
    for prefetch in (0, 8):
        loader = Loader(f"{server.location}/web", prefetch=prefetch, **OPTIONS)
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
