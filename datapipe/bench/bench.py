"""Measures how fast a mixture runs on one core, by kind of work, on a sample of the user's own data.

    mixture ─▶ plan ─▶ sample of each source ─▶ warm-up ─▶ passes: the tasks of a run, in this process ─▶ medians ─▶ rows

One process runs on one core; everything is compiled and loaded before the clock starts. Each source is a run in a temporary
folder: global stages compare documents within the source, and a tokenizer is trained once, on the sample. Reference rows of
earlier runs are left out: they are read once a run, whatever the size of the source. Files are in
the page cache, so a slow disk or network adds to the times. Memory is that of one worker.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import pyarrow as pa

from datapipe.bench.rows import advice, medians, pass_rows
from datapipe.bench.sample import Sample, choose_sample
from datapipe.config import Mixture
from datapipe.dataclass import asdict, replace
from datapipe.engine.kernels_used import kernels_of_run
from datapipe.engine.local import usable_cores
from datapipe.engine.prepare import prepare
from datapipe.engine.protocol import no_exit
from datapipe.errors import UserError, suggest
from datapipe.kernels.compiling import compile_kernels
from datapipe.machine.memory import peak_bytes
from datapipe.quantities import counted, rate_mb_per_s
from datapipe.records.outputs import Record
from datapipe.stage.global_stage import Global
from datapipe.steps.counts import source_counts
from datapipe.steps.kind import Plan, Task
from datapipe.steps.kinds import compile_plan
from datapipe.steps.map import MapTask
from datapipe.steps.request import Request
from datapipe.steps.run_task import run_task
from datapipe.storage.root import Root

VERSION = 1

WARM_UP_BYTES = 1 << 20
"""Text of the first pass, which is not timed: it loads kernels and models and fills caches."""

MAX_PASSES = 5

Show = Callable[[str], None]


def bench(
    mixture: Mixture, *, source: str = "", sample_bytes: int = 64 << 20, seconds: float = 120, show: Show
) -> dict[str, Any]:
    """Measures a mixture, or one `source`. Returns the figures that README.md describes. Raises UserError, as a run does.

    Args: sample_bytes: text to read of each source. seconds: repeat the passes over the samples for
        about so long, at least once and at most `MAX_PASSES` times. show: prints progress.
    """
    if source and source not in mixture.sources:
        known = ", ".join(mixture.sources)
        raise UserError(f"no source '{source}' in this mixture.{suggest(source, mixture.sources)} Its sources: {known}")
    with no_exit():
        request = prepare(mixture)
    names = [source] if source else list(mixture.sources)
    cores = usable_cores()
    compile_kernels(
        kernels_of_run(mixture),
        cores,
        lambda name, number, count: show(f"compiled kernel {number} of {count}, once for this machine: {name}"),
    )
    measured: dict[str, dict[str, Any]] = {}
    scratch_bytes = 0
    with tempfile.TemporaryDirectory(prefix="datapipe-bench-") as folder, one_core() as core:
        for name in names:
            alone = replace(request, sources={name: request.sources[name]}, reference_rows={})
            measuring = _Measuring(name, alone, Path(folder) / name, show)
            measured[name] = measuring.measure(sample_bytes, seconds / len(names))
            scratch_bytes = max(scratch_bytes, measuring.scratch_bytes)
    summed = ("text_bytes", "estimated_text_bytes", "estimated_core_hours")
    total = {figure: sum(each[figure] for each in measured.values()) for figure in summed}
    rate = rate_mb_per_s(total["estimated_text_bytes"], 3600 * total["estimated_core_hours"])
    return {
        "version": VERSION,
        "name": mixture.name,
        "core": core,
        "cores": cores,
        "peak_bytes": peak_bytes(),
        "scratch_bytes": scratch_bytes,
        "sources": measured,
        "total": {**total, "mb_per_s": rate},
    }


class _Measuring:
    """One source in its own folder. `trained`: the tokenizer of an earlier pass."""

    def __init__(self, name: str, request: Request, folder: Path, show: Show) -> None:
        self.name, self.request, self.folder, self.show = name, request, folder, show
        self.scratch_bytes = 0
        self.trained: tuple[Record, ...] = ()

    def measure(self, sample_bytes: int, seconds: float) -> dict[str, Any]:
        warm_up, sample = self._sample(min(WARM_UP_BYTES, sample_bytes)), self._sample(sample_bytes)
        if not sample.text_bytes:
            raise UserError(f"source '{self.name}': nothing to measure: its files contain no readable document")
        self._pass(warm_up, 0)
        self.trained = ()
        plans: list[Plan] = []
        wall_s = cpu_s = pass_s = 0.0
        while not plans or (len(plans) < MAX_PASSES and wall_s + pass_s <= seconds):
            self.show(f"{self.name}: pass {len(plans) + 1} over {counted(sample.documents, 'document')} …")
            started, cpu_started = perf_counter(), process_time()
            plans.append(self._pass(sample, len(plans) + 1))
            pass_s = perf_counter() - started
            wall_s, cpu_s = wall_s + pass_s, cpu_s + process_time() - cpu_started
        return self._result(sample, plans, cpu_s / wall_s)

    def _result(self, sample: Sample, plans: Sequence[Plan], cpu_share: float) -> dict[str, Any]:
        mixture = self.request.mixture
        uses = {use.alias: use.name for use in mixture.stages_of(self.name)}
        stages = self.request.sources[self.name].stages
        emitting = [bound.name for bound in stages if isinstance(bound.stage, Global)]
        counts = source_counts(plans[0], self.name)
        compressions = {file.compression or "" for file in self.request.sources[self.name].files.values()}
        rows = medians([pass_rows(plan, uses, emitting) for plan in plans])
        seconds = sum(row.seconds for row in rows if row.is_counted)
        slowest = max((row for row in rows if row.is_counted), key=lambda row: row.seconds)
        shares = [row.seconds / seconds if row.is_counted and seconds else None for row in rows]
        return {
            "documents": sample.documents,
            "text_bytes": sample.text_bytes,
            "is_whole": sample.is_whole,
            "passes": len(plans),
            "cpu_share": cpu_share,
            "seconds": seconds,
            "mb_per_s": rate_mb_per_s(sample.text_bytes, seconds),
            "tokens": counts.tokens,
            "quarantined": counts.document_counts.quarantined,
            "source_bytes": sample.source_bytes,
            "estimated_text_bytes": sample.estimated_text_bytes,
            "estimated_core_hours": seconds * sample.estimated_text_bytes / sample.text_bytes / 3600,
            "bottleneck": slowest.name,
            "advice": advice(slowest, compressions, len(sample.limits)),
            "rows": [{**asdict(row), "share": share, "mb_per_s": row.mb_per_s} for row, share in zip(rows, shares)],
        }

    def _sample(self, budget_bytes: int) -> Sample:
        mixture, planned = self.request.mixture, self.request.sources[self.name]
        return choose_sample(planned, planned.field_names(mixture.sources[self.name]), budget_bytes, mixture.seed)

    def _pass(self, sample: Sample, number: int) -> Plan:
        """Runs every task of the sample, with the tokenizer that the previous pass trained."""
        root = Root(str(self.folder / str(number)))
        planned = replace(self.request.sources[self.name], groups=tuple(sample.limits))
        request = replace(self.request, sources={self.name: planned})
        committed = {record.fingerprint: record for record in self.trained}
        for path in (output.path for record in self.trained for output in record.of("tokenizer")):
            Path(root.path(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / str(number - 1) / path, root.path(path))
        plan = compile_plan(request, committed.get)
        while tasks := plan.pending():
            for task in tasks:
                record = run_task(_limited(task, sample.limits), root, str(number))
                committed[record.fingerprint] = record
            plan = compile_plan(request, committed.get)
        self.trained = tuple(record for step in plan.steps if step.kind in ("sample", "train") for record in step.records)
        self._clear(number - 1)
        return plan

    def _clear(self, number: int) -> None:
        sizes = [os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(self.folder) for name in names]
        self.scratch_bytes = max(self.scratch_bytes, sum(sizes))
        if number >= 0:
            shutil.rmtree(self.folder / str(number))


def _limited(task: Task, limits: Mapping[Any, int | None]) -> Task:
    return replace(task, limit=limits.get(task.splits)) if isinstance(task, MapTask) and task.splits else task


@contextmanager
def one_core() -> Iterator[int | None]:
    """Restricts every thread of the process to one core, and Arrow to the threads of a worker. Yields the number of the
    core; None without processor affinity, where threads of libraries may use other cores."""
    arrow_cores, arrow_io = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(2)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    try:
        if allowed is not None:
            _set_affinity(frozenset({max(allowed)}))
        yield None if allowed is None else max(allowed)
    finally:
        if allowed is not None:
            _set_affinity(allowed)
        pa.set_cpu_count(arrow_cores)
        pa.set_io_thread_count(arrow_io)


def _set_affinity(cores: Set[int]) -> None:
    """Sets the affinity of each thread; new threads inherit it from their parent."""
    threads = Path("/proc/self/task")
    for thread in [int(entry.name) for entry in threads.iterdir()] if threads.is_dir() else [0]:
        try:
            os.sched_setaffinity(thread, cores)
        except ProcessLookupError:  # the thread has ended since it was listed
            continue
