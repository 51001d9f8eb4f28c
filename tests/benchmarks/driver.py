"""What the driver of a run costs: CPU of its process for each task, and how long a resumed run plans.

    python -m tests.benchmarks.driver --tasks 1000 10000 100000 --engine none
    python -m tests.benchmarks.driver --tasks 100000 --engine local          (ray: with Ray's own submission told apart)

Tasks have next to no work: a range of 1 KiB of a file, with one document. Every task is planned, submitted, committed and,
where the engine is not `none`, run. The engine `none` gives a record for each task at once, whose outputs do not exist. The
mixture has two steps of as many tasks, before and after a global stage, so the plan is compiled several times.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from datapipe.api import engine_factory
from datapipe.config import load_mixture
from datapipe.engine.driver import Driver
from datapipe.engine.prepare import prepare
from datapipe.engine.protocol import Attempt
from datapipe.ledger.hold import Hold
from datapipe.ledger.ledger import Ledger
from datapipe.ledger.lock import exclusive
from datapipe.ledger.names import ATTEMPTS
from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.plan.outputs import TableFile
from datapipe.plan.splits import weight
from datapipe.plan.work import MapTask, Record, Task, WriteTask
from datapipe.storage import Root
from tests.support import runs

_BYTES = 1024


def write_corpus(folder: Path, num_tasks: int) -> Path:
    """A file with one document in each KiB, and the mixture that reads it in as many tasks."""
    line = json.dumps({"text": ""})
    with open(folder / "web.jsonl", "w", encoding="ascii") as stream:
        for number in range(num_tasks):
            text = f"{number} ".ljust(_BYTES - len(line) - 1, "x")
            stream.write(json.dumps({"text": text}) + "\n")
    tail = f"tokenizer: none\nexecution: {{split_bytes: {_BYTES}, check_disk: false}}"
    stages = "stages: [filter.length: {min_chars: 1}, dedup.exact]"
    return runs.write_mixture(folder, f"  web: {{path: {folder}/web.jsonl}}", stages, tail)


class NoEngine:
    """Every task ends at once."""

    slots = 1000

    def __init__(self, *options: Any) -> None:
        self._tasks: deque[tuple[Task, str]] = deque()

    def submit(self, task: Task, attempt: str) -> None:
        self._tasks.append((task, attempt))

    def next_attempt(self, timeout_s: float) -> Attempt:
        task, attempt = self._tasks.popleft()
        return Attempt(task=task, attempt=attempt, record=_record(task, attempt))

    def cancel(self, attempt: str) -> None: ...

    def messages(self) -> Sequence[Any]:
        return ()

    def close(self) -> None: ...


def _record(task: Task, attempt: str) -> Record:
    """A record as the task would have it, of outputs that do not exist."""
    metrics = TaskMetrics(seconds=0.001, peak_bytes=1 << 28)
    outputs = {}
    if isinstance(task, MapTask):
        metrics.document_counts = DocumentCounts(read=1, read_bytes=_BYTES, kept=1, kept_bytes=_BYTES)
        for name in ("read", "filter.length", "write documents"):
            metrics.spent(name, 0.0001, _BYTES, 1)
        folder = f"{ATTEMPTS}/{task.step.replace('/', '.')}/{task.fingerprint[:16]}-{attempt}"
        file = {"rows": 1, "bytes": 1200, "checksum": f"xxh3:{task.fingerprint[:32]}", "row_bytes": _BYTES}
        outputs = {"documents": (TableFile(path=f"{folder}/documents.arrow", **file),)}
    if isinstance(task, WriteTask):
        each = weight(_BYTES, 1)
        number = sum(task.start <= task.begin + each * place < task.stop for place in range(len(task.documents)))
        metrics.document_counts = DocumentCounts(read=number, kept=number)
    return Record(step=task.step, fingerprint=task.fingerprint, outputs=outputs, metrics=metrics)


def measure(num_tasks: int, engine: str) -> dict[str, float]:
    """Seconds of one run and of the plan of the same run resumed."""
    folder = Path(tempfile.mkdtemp(prefix="driver-"))
    try:
        mixture = load_mixture(write_corpus(folder, num_tasks))
        root = Root(mixture.output)
        request = prepare(mixture)
        with exclusive(root) as hold:
            started, cpu = time.perf_counter(), time.process_time()
            ledger = _loaded(root, hold)
            driver = Driver(request, ledger, runs.Watcher(), hold)
            driver.compile()
            run_cpu = time.process_time() - cpu
            workers = NoEngine() if engine == "none" else engine_factory(engine, None, None)(root, request)
            cpu = time.process_time()
            try:
                with _time_of_ray() if engine == "ray" else nullcontext([0.0]) as of_ray:
                    plan = driver.run(workers)
            finally:
                run_cpu += time.process_time() - cpu
                workers.close()
            wall = time.perf_counter() - started
            count = sum(len(step.tasks or ()) for step in plan.steps)
            started = time.perf_counter()
            resumed = Driver(request, _resumed(root, hold, engine), runs.Watcher(), hold).compile()
            resumed_s = time.perf_counter() - started
            assert resumed.is_committed
        return {
            "tasks": count,
            "driver ms a task": 1e3 * (run_cpu - of_ray[0]) / count,
            "ms of Ray a task": 1e3 * of_ray[0] / count,
            "wall s": wall,
            "resumed s": resumed_s,
            "resumed ms a task": 1e3 * resumed_s / count,
        }
    finally:
        shutil.rmtree(folder)


@contextmanager
def _time_of_ray() -> Iterator[list[float]]:
    """Seconds of CPU that this process spends in Ray: in its calls, and in threads other than this one, which are all Ray's."""
    import ray
    from ray.actor import ActorMethod
    from ray.remote_function import RemoteFunction

    spent, depth = [0.0], [0]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            depth[0] += 1
            started = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                depth[0] -= 1
                spent[0] += 0.0 if depth[0] else time.thread_time() - started

        return call

    others = time.process_time() - time.thread_time()
    places = [(ray, "get"), (ray, "wait"), (ray, "nodes"), (RemoteFunction, "_remote"), (ActorMethod, "_remote")]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in places:
            patch.setattr(owner, name, timed(getattr(owner, name)))
        yield spent
    spent[0] += time.process_time() - time.thread_time() - others


def _loaded(root: Root, hold: Hold) -> Ledger:
    ledger = Ledger(root, hold.condemned)
    ledger.load()
    ledger.tidy()
    ledger.sweep(hold)
    return ledger


def _resumed(root: Root, hold: Hold, engine: str) -> Ledger:
    if engine != "none":
        return _loaded(root, hold)
    ledger = _loaded(root, hold)
    ledger._has_outputs = lambda record: True  # type: ignore[method-assign]  # they never existed
    return ledger


_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 300, 70, 30
_COLOURS = {"driver ms a task": "#1f77b4", "resumed ms a task": "#d95f02"}


def plot(measured: Sequence[dict[str, float]]) -> str:
    """An SVG: milliseconds a task over the number of tasks, which has a logarithmic axis."""
    decades = [math.log10(figures["tasks"]) for figures in measured]
    first, last = math.floor(min(decades) + 0.1), math.ceil(max(decades) - 0.1)
    highest = 0.1 * math.ceil(10 * max(figures[name] for figures in measured for name in _COLOURS))

    def x(decade: float) -> float:
        return _LEFT + (_WIDTH - 2 * _LEFT) * (decade - first) / max(1, last - first)

    def y(value: float) -> float:
        return _HEIGHT - 50 - (_HEIGHT - 50 - _TOP) * value / highest

    def text(left: float, top: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{left:.0f}" y="{top:.0f}" text-anchor="{anchor}">{words}</text>'

    grid, values = [], [highest * number / 4 for number in range(5)]
    for value in values:
        grid.append(f'<path d="M{x(first)} {y(value):.1f}H{x(last)}" stroke="#ccc"/>')
        grid.append(text(_LEFT - 8, y(value) + 4, f"{value:.2f}", "end"))
    grid += [text(x(decade), _HEIGHT - 30, f"{10**decade:,}") for decade in range(first, last + 1)]
    lines = []
    for number, (name, colour) in enumerate(_COLOURS.items()):
        points = [(x(decade), y(figures[name])) for decade, figures in zip(decades, measured)]
        path = "L".join(f"{left:.1f} {top:.1f}" for left, top in points)
        lines.append(f'<path d="M{path}" stroke="{colour}" fill="none" stroke-width="2"/>')
        lines += [f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{colour}"/>' for left, top in points]
        lines.append(f'<text x="{_LEFT + 200 * number}" y="18" fill="{colour}">{name}</text>')
    axis = text(_WIDTH / 2, _HEIGHT - 8, "tasks of a run")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="13">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>{"".join([*grid, *lines, axis])}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1000, 10_000, 100_000], help="of the first step")
    parser.add_argument("--engine", choices=("none", "local", "ray"), default="none")
    parser.add_argument("--plot", type=Path, help="an SVG of the figures")
    arguments = parser.parse_args()
    measured = []
    for number in arguments.tasks:
        figures = measure(number, arguments.engine)
        measured.append(figures)
        print(
            "  ".join(
                f"{name} {value:,.3f}" if isinstance(value, float) else f"{name} {value:,}" for name, value in figures.items()
            )
        )
        sys.stdout.flush()
    if arguments.plot:
        arguments.plot.write_text(plot(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
