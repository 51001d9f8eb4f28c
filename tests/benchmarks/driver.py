"""What the driver of a run costs: CPU of its process for each task, and how long a resumed run plans; and generations.

Tasks have next to no work: a range of 1 KiB of a file, with one document. Every task is planned, submitted, committed and,
where the engine is not `none`, run. The engine `none` gives a record for each task at once, whose outputs do not exist. The
mixture has two steps of as many tasks, before and after a global stage, so the plan is compiled several times.

Generations are of so many documents each, alternately, to one output, with exact and MinHash deduplication, in this process,
so that the start of workers does not count. The times are fitted by least squares: seconds = a + b * new + c * old.
"""

import json
import resource
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from datapipe.config import Mixture, load_mixture
from datapipe.engine.driver import Driver
from datapipe.engine.prepare import prepare
from datapipe.engine.protocol import Attempt, Engine
from datapipe.engine.run import Run, RunOptions
from datapipe.engine.run_report import run_and_report
from datapipe.engine.watching.state import RunState
from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.records.ledger import Ledger
from datapipe.records.names import ATTEMPTS
from datapipe.records.outputs import Content, Record, TableFile
from datapipe.shards.manifest import read_snapshot
from datapipe.snapshots.generations import Generation, begin_generation
from datapipe.steps.kind import Task
from datapipe.steps.map import MapTask
from datapipe.steps.write import WriteTask, weight
from datapipe.storage.lock import OutputLock, exclusive
from datapipe.storage.root import Root
from tests.benchmarks.tables import Bound, Settings, Table
from tests.support import corpora, runs

_BYTES = 1024
_SIZES = (1_000, 10_000, 100_000, 500_000)
_GENERATIONS, _ADDED = 100, (1000, 4000)
_STAGES = "stages:\n  - normalize.unicode\n  - filter.gopher_quality\n  - dedup.exact\n  - dedup.minhash: {}\n"
_TAIL = "tokenizer: {train: {vocab_size: 4096}}\npack: {sequence_length: 512}\nexecution: {check_disk: false}\n"


def tables(settings: Settings) -> Iterator[Table]:
    runs_of = [("none", size) for size in _SIZES] + [(engine, _SIZES[1] // 2) for engine in ("local", "ray")]
    runs_of = [("none", settings.documents)] if settings.documents else runs_of
    yield _driver(settings.folder / "driver", [("none", 500)] if settings.quick else runs_of)
    yield _generations(settings.folder / "generations", 6 if settings.quick else _GENERATIONS)


def bounds(folder: Path) -> Iterator[Bound]:
    few, many = (_apart(folder / str(size), size, "none") for size in (1_000, 10_000))
    kilobytes = 1e3 * (many["MB"] - few["MB"]) / (many["tasks"] - few["tasks"])
    yield Bound(name="driver, peak kB of memory a task", ratio=kilobytes, most=2)
    for name in ("driver", "resumed"):
        ratio = many[f"{name} ms a task"] / few[f"{name} ms a task"]
        yield Bound(name=f"{name}, ms a task, ten times the tasks", ratio=ratio, most=2)
    added = _added(folder / "generations", 8, (200, 800))
    _, new_s, old_s = _fitted(added)
    yield Bound(name="generations, an old document beside a new one", ratio=max(old_s, 0) / new_s, most=0.2)


# ------------------------------------------------------------------------------------------------ the driver


class NoEngine(Engine):
    """Every task ends at once."""

    slots = 1000

    def __init__(self) -> None:
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


_WORK = (
    *("read", "measure", "filter.url", "filter.language", "lines", "raw_lines", "words", "english_words"),
    *("filter.gopher_repetition", "filter.gopher_quality", "filter.c4_quality", "filter.fineweb_quality"),
    *("dedup.minhash", "dedup.minhash: exchange", "write documents", "write facts"),
)
_FILES = ("documents.arrow", "drops.parquet", "measured.arrow", "borderline.parquet", "bands.exchange", "signatures.exchange")


def _record(task: Task, attempt: str) -> Record:
    """A record as the task would have it, of outputs that do not exist; those of map tasks have as many files, counts and times
    as a task of `mixtures/fineweb.yaml`."""
    metrics, outputs = TaskMetrics(seconds=0.001, peak_bytes=1 << 28), {}
    if isinstance(task, MapTask):
        varied, folder = int(task.fingerprint[:8], 16), f"{ATTEMPTS}/{task.step.replace('/', '.')}"
        metrics.document_counts = DocumentCounts(read=1, read_bytes=_BYTES, kept=1, kept_bytes=_BYTES)
        metrics.document_counts.counts.update({f"filter.c4_quality:lines_{number}": varied >> number for number in range(20)})
        for number, name in enumerate(_WORK):
            metrics.spent(name, (varied >> number) / 1e9, varied >> number, varied >> (16 + number))
        for number, name in enumerate(_FILES):
            path = f"{folder}/{task.fingerprint[:16]}-{attempt}/{name}"
            checksum = f"xxh3_128:{xxhash.xxh3_128_hexdigest(task.fingerprint.encode(), number)}"
            file = TableFile(path=path, rows=1, bytes=1200 + (varied >> 20), checksum=checksum, row_bytes=varied)
            outputs[name.partition(".")[0]] = (file,)
    if isinstance(task, WriteTask):
        each = weight(_BYTES, 1)
        number = sum(task.start <= task.begin + each * place < task.stop for place in range(len(task.documents)))
        metrics.document_counts = DocumentCounts(read=number, kept=number)
    return Record(task.step, task.fingerprint, Content(outputs, metrics))


def _write_corpus(folder: Path, num_tasks: int) -> Path:
    """A file with one document in each KiB, and the mixture that reads it in as many tasks."""
    line = json.dumps({"text": ""})
    folder.mkdir(parents=True)
    with open(folder / "web.jsonl", "w", encoding="ascii") as stream:
        for number in range(num_tasks):
            stream.write(json.dumps({"text": f"{number} ".ljust(_BYTES - len(line) - 1, "x")}) + "\n")
    tail = f"tokenizer: none\nexecution: {{split_bytes: {_BYTES}, check_disk: false}}"
    stages = "stages: [filter.length: {min_chars: 1}, dedup.exact]"
    return runs.write_mixture(folder, f"  web: {{path: {folder}/web.jsonl}}", stages, tail)


def measure(folder: Path, num_tasks: int, engine: str) -> dict[str, float]:
    """Seconds of one run and of the plan of the same run resumed."""
    mixture = load_mixture(_write_corpus(folder, num_tasks))
    root = Root(mixture.output)
    request = prepare(mixture)
    with exclusive(root) as lock:
        cpu = time.process_time()
        driver = Driver(request, _loaded(root, lock), RunState().observe, lock)
        driver.compile()
        run_cpu = time.process_time() - cpu
        workers = NoEngine() if engine == "none" else RunOptions(engine=engine).start_engine(root, request)
        cpu = time.process_time()
        try:
            plan = driver.run(workers)
        finally:
            run_cpu += time.process_time() - cpu
            workers.close()
        count, most_mb = (
            sum(len(step.tasks or ()) for step in plan.steps),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        )
        del plan, driver
        started, cpu = time.perf_counter(), time.process_time()
        ledger = _loaded(root, lock)
        if engine == "none":
            ledger._lost = lambda files: iter(())  # type: ignore[method-assign]  # they never existed
        assert Driver(request, ledger, RunState().observe, lock).compile().is_committed
        resumed_s, resumed_cpu = time.perf_counter() - started, time.process_time() - cpu
    shutil.rmtree(folder)
    return {
        "tasks": count,
        "MB": most_mb,
        "resumed MB": _peak_mb(),  # or of the run before it
        "driver ms a task": 1e3 * run_cpu / count,
        "resumed s": resumed_s,
        "resumed ms a task": 1e3 * resumed_cpu / count,
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _apart(folder: Path, num_tasks: int, engine: str) -> dict[str, float]:
    """As `measure`, in a process whose peak memory is that of this run."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, folder, num_tasks, engine).result()


def _loaded(root: Root, lock: OutputLock) -> Ledger:
    ledger = Ledger(root, lock.pending_deletions)
    ledger.load()
    ledger.delete_orphans(lock)
    return ledger


def _driver(folder: Path, runs_of: Sequence[tuple[str, int]]) -> Table:
    rows = []
    for engine, size in runs_of:
        figures = _apart(folder / f"{engine}-{size}", size, engine)
        names = {"driver ms a task": ".3f", "resumed s": ".2f", "MB": ",.0f"}
        rows.append((engine, f"{figures['tasks']:,}", *(format(figures[name], form) for name, form in names.items())))
    return Table(
        title="The driver",
        note="Tasks with next to no work, from a mixture with two steps of as many tasks before and after a global "
        "stage. CPU of the driver's process for planning after each step, submitting, checking and committing; and the "
        "time in which the same run, resumed, reads its records and plans. Without an engine the records come at once, of "
        "outputs that do not exist.",
        header=("engine", "tasks", "driver, ms a task", "resumed, s", "peak MB of the driver"),
        rows=rows,
    )


# ------------------------------------------------------------------------------------------------ generations


def _added(folder: Path, num_generations: int, counts: Sequence[int]) -> np.ndarray:
    """(num_generations, 3): new documents, documents before, seconds of each generation."""
    folder.mkdir()
    path = runs.write_mixture(folder, f"  web:\n    path: {folder}/in/*.jsonl\n", _STAGES, _TAIL)
    corpora.write_jsonl(folder / "in/000.jsonl", corpora.documents(0, counts[0]))
    root, mixture, old, rows = Root(str(folder / "out")), load_mixture(path), counts[0], []
    _run(mixture, None)
    for number in range(1, num_generations + 1):
        new = counts[number % len(counts)]
        corpora.write_jsonl(folder / f"in/{number:03}.jsonl", corpora.documents(number, new))
        snapshot = read_snapshot(root)
        started = time.perf_counter()
        _run(mixture, begin_generation(root, snapshot, {"web": (f"{number:03}.jsonl",)}))
        rows.append((new, old, time.perf_counter() - started))
        old += new
    return np.array(rows)


def _run(mixture: Mixture, generation: Generation | None) -> None:
    run_and_report(Run(mixture, runs.Watcher(), make_engine=runs.InProcess, generation=generation)).raise_problem()


def _fitted(added: np.ndarray) -> np.ndarray:
    """Seconds of a generation, of a new document, of an old one."""
    new, old, seconds = added.T
    return np.linalg.lstsq(np.stack([np.ones_like(new), new, old], axis=1), seconds, rcond=None)[0]


def _generations(folder: Path, num_generations: int) -> Table:
    added = _added(folder, num_generations, _ADDED)
    fixed_s, new_s, old_s = _fitted(added)
    rows = [
        (f"{number}", f"{added[number - 1, 0]:,.0f}", f"{added[number - 1, 1]:,.0f}", f"{added[number - 1, 2]:.2f}")
        for number in (1, 10, 100)
        if number <= num_generations
    ]
    return Table(
        title="Generations",
        note="Exact and MinHash deduplication, documents of 1.2 kB, one process. Fitted over "
        f"{num_generations} generations: {fixed_s:.2f} s, {1e6 * new_s:.0f} µs for each new document, and {1e6 * old_s:.2f} "
        "µs for each that is there already. Rows of this run are read first, and of the old rows only those with a "
        "hash of theirs.",
        header=("generation", "new documents", "documents before", "s"),
        rows=rows,
    )
