"""What a run would be at another size: hours, requests, bytes and dollars, from the tasks that it would have. Pure.

    steps of the last run, or estimates ─▶ `growth.py`: the steps at the other size ─▶ waves of steps together ─▶ figures

The sources keep their proportions, files their sizes, every stage the share that it kept, and every exchange its number of
rounds. So what grows faster than the text, as pairs of near copies may, comes out too small.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datapipe.dataclass import asdict, dataclass
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import Content, OutputFile, Record
from datapipe.steps.fold import grow_folds
from datapipe.steps.growth import Files, GrownSource, Growth, Reads, StepSize
from datapipe.steps.kind import Plan, Step, Task
from datapipe.steps.request import Request
from datapipe.steps.splits import num_groups
from datapipe.steps.tokenize import LOADING, TokenizeMetrics
from datapipe.steps.unread import DOCUMENTS, PUBLISHED, KeepWork, freed_after

_DRIVER_S, _RAY_DRIVER_S = 0.00044, 0.00174  # CPU of each task, on a machine and on Ray
_DRIVER_START_S = 4.0  # of starting, and of the snapshot
_DRIVER_SHARE = 0.02  # of the time of a run: reports of workers, the screen, the status, the lease
_DRIVER_BYTES, _DRIVER_TASK_BYTES = 350e6, 1_600  # without tasks, and of each
"""Measured on 2026-11-28 and 30, two cores."""

_COMMITS_PER_S, _RENEWALS_PER_S = 10, 1 / 15  # files of the ledger at most, and writes of the lease
_RUN_REQUESTS = Counter({"PUT": 22, "GET": 20, "HEAD": 12, "LIST": 37, "DELETE": 2})
"""Of a run beside its tasks: lock, history, report and publication."""

_LIMITS = 5  # steps that hold the run up, as many as are shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Dollars."""

    core_hour: float = 0.04
    put: float = 0.005  # of 1,000 requests that write or list
    get: float = 0.0004  # of 1,000 requests that read
    tb_month: float = 23.0  # to store a TB of the output for a month


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """What a simulation goes by. `text_bytes`: by source, the bytes of input files that the steps have read."""

    steps: Sequence[StepSize]
    text_bytes: Mapping[str, float]
    is_measured: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A step that leaves cores without work."""

    step: str
    seconds: float  # that the run takes longer for it
    tasks: int
    is_driver: bool  # whether it waits for the driver, and not for a few tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """A run at another size. What is by kind goes by the kinds of work."""

    text_bytes: int  # of input, as the sources store it
    cores: int
    is_measured: bool  # whether the basis is a run, not an estimate
    basis_bytes: int
    documents: int
    tokens: int
    hours: float
    # core_seconds, tasks, bytes_written: by kind
    core_seconds: Mapping[str, float]
    tasks: Mapping[str, int]
    bytes_written: Mapping[str, int]
    bytes_read: int
    driver_seconds: float
    # by class: PUT, GET, HEAD, LIST, DELETE. Those of an output on an object store
    requests: Mapping[str, int]
    peak_work_bytes: int
    output_bytes: int
    peak_driver_bytes: int
    limits: tuple[Limit, ...]
    dollars: Mapping[str, float]  # compute, requests, and storage of the output for a month

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"core_hours": sum(self.core_seconds.values()) / 3600}


def size_of_step(step: Step) -> StepSize:
    """What the committed tasks of a step have measured. The seconds are those of work, without the imports and kernels of the
    first task of a worker, which were 28 % of the time that a task took to read 18 MB."""
    totals, files = step.totals, dict[str, list[OutputFile]]()
    for outputs in (record.outputs for record in step.records):
        for kind, listed in outputs.items():
            files.setdefault(kind, []).extend(listed)
    return StepSize(
        id=step.id,
        work=step.work,
        source=step.source,
        tasks=len(step.records),
        seconds=sum(work.seconds for name, work in totals.work.items() if name != LOADING),
        writes={kind: Files.of(listed) for kind, listed in files.items()},
        read=totals.documents.read,
        kept=totals.documents.kept,
        kept_bytes=totals.documents.kept_bytes,
        tokens=step.own(TokenizeMetrics).tokens if step.kind == "tokenize" else 0,
        metrics=step.records[0].metrics if len(step.records) == 1 else None,
    )


def simulate(
    request: Request, plan: Plan, basis: Basis, text_bytes: int, cores: int, prices: Prices, *, is_local: bool, on_ray: bool
) -> Simulation:
    """The run of a request that has input, at `text_bytes` of it. `is_local`: whether its output is on a disk, where published
    shards are links."""
    steps = _grown(request, plan, basis, text_bytes)
    waves, tasks = _waves(steps), sum(step.tasks for step in steps)
    peak, num_freed = _peak(plan, waves, request.mixture.execution.keep_work, is_local=is_local)
    driver_s = _RAY_DRIVER_S if on_ray else _DRIVER_S
    seconds, limits = _time(waves, cores, driver_s)
    requests = _requests(steps, seconds, num_freed)
    output_bytes = sum(step.writes[kind].bytes for step in steps for kind in PUBLISHED & step.writes.keys())
    return Simulation(
        text_bytes=text_bytes,
        cores=cores,
        is_measured=basis.is_measured,
        basis_bytes=round(sum(basis.text_bytes.values())),
        documents=round(sum(step.read for step in steps if step.id == f"{step.source}/read")),
        tokens=round(sum(step.tokens for step in steps)),
        hours=seconds / 3600,
        core_seconds=_by_kind(steps, "seconds"),
        tasks=_by_kind(steps, "tasks"),
        bytes_written={kind: round(value) for kind, value in _by_kind(steps, "bytes_written").items()},
        bytes_read=round(sum(step.bytes_read for step in steps)),
        driver_seconds=min(seconds, _DRIVER_START_S + _DRIVER_SHARE * seconds + driver_s * tasks),
        requests=requests,
        peak_work_bytes=round(peak),
        output_bytes=round(output_bytes),
        peak_driver_bytes=round(_DRIVER_BYTES + _DRIVER_TASK_BYTES * tasks),
        limits=limits,
        dollars=_dollars(prices, cores * seconds / 3600, requests, output_bytes),
    )


def _grown(request: Request, plan: Plan, basis: Basis, text_bytes: int) -> list[StepSize]:
    """The steps at the other size, each after those that it needs, but for folds, which come last."""
    growth = Growth(request, plan.pipeline, basis.steps, _sources(request, plan, basis, text_bytes))
    for step in basis.steps:
        if step.kind not in ("merge", "fold"):  # which follow from the sizes of the others
            step.work.grow(growth, step)
    for step in [*growth.steps.values()]:
        grow_folds(growth, step)
    return [*growth.steps.values()]


def _requests(steps: Iterable[StepSize], seconds: float, num_freed: float) -> dict[str, int]:
    """Those of tasks, and of the driver: commits, the lease, and deletions."""
    commits = min(sum(step.tasks for step in steps), seconds * _COMMITS_PER_S)
    own = Counter(PUT=round(commits + seconds * _RENEWALS_PER_S), DELETE=round(num_freed))
    return dict(sum((step.requests for step in steps), _RUN_REQUESTS + own))


def _sources(request: Request, plan: Plan, basis: Basis, text_bytes: int) -> dict[str, GrownSource]:
    planned = {name: plan.inputs.get(name, source) for name, source in request.sources.items()}
    stored = {name: sum(file.num_bytes for file in source.files.values()) for name, source in planned.items()}
    ratio = text_bytes / sum(stored.values())
    grown: dict[str, GrownSource] = {}
    for name, source in planned.items():
        tasks = num_groups(source.groups, source.readers, request.mixture.execution.split_bytes, ratio)
        files = source.files.values()
        grown[name] = GrownSource(
            factor=ratio * stored[name] / (basis.text_bytes[name] or 1.0),
            tasks=tasks,
            reads=Reads.of_input(files, ratio * stored[name], len(source.splits) * ratio),
            files_a_task=max(1.0, len(files) * ratio / max(1, tasks)),
        )
    return grown


def _waves(steps: Iterable[StepSize]) -> dict[str, list[StepSize]]:
    """Steps that run at the same time, those of all sources, by their name."""
    waves: dict[str, list[StepSize]] = {}
    for step in steps:
        waves.setdefault(step.id.partition("/")[2] if step.source else step.id, []).append(step)
    return waves


def _time(waves: Mapping[str, Sequence[StepSize]], cores: int, driver_s: float) -> tuple[float, tuple[Limit, ...]]:
    """Seconds of the run, and the steps that leave most cores without work."""
    total, limits = _DRIVER_START_S, list[Limit]()
    for name, steps in waves.items():
        tasks, computing = sum(step.tasks for step in steps), sum(step.seconds for step in steps)
        by_driver = driver_s * tasks
        took = max(by_driver, *(step.seconds / max(1, min(cores, step.tasks)) for step in steps), computing / cores)
        total += took
        limits.append(Limit(step=name, seconds=took - computing / cores, tasks=tasks, is_driver=took == by_driver))
    limits.sort(key=lambda limit: -limit.seconds)
    return total, tuple(limit for limit in limits[:_LIMITS] if limit.seconds > total / 100)


def _peak(plan: Plan, waves: Mapping[str, Sequence[StepSize]], level: KeepWork, *, is_local: bool) -> tuple[float, float]:
    """The most bytes under work/, and the number of files that are deleted."""
    steps = [step for wave in waves.values() for step in wave]
    committed = Plan(pipeline=plan.pipeline, steps=[_committed(step) for step in steps])
    ids = [{step.id for step in wave} for wave in waves.values()]
    none = (set[tuple[str, str]]() for _ in ids)
    freed = none if level == "resume" else freed_after(committed, level, ids, keeps_index=level != "none")
    files = {(step.id, kind): of for step in steps for kind, of in step.writes.items()}
    peak, held, gone = 0.0, dict[tuple[str, str], float](), set[tuple[str, str]]()
    for wave, unread in zip(waves.values(), freed):
        read = {(before, DOCUMENTS) for step in wave if (before := _documents_before(plan, step, level)) is not None}
        written = {(step.id, kind): of.bytes for step in wave for kind, of in step.writes.items()}
        held |= {name: size for name, size in written.items() if not (is_local and name[1] in PUBLISHED)}
        going = sum(held.get(name, 0.0) for name in read)  # while others are written
        peak = max(peak, sum(held.values()) - min(going, sum(held.get(name, 0.0) for name in written)))
        gone |= unread | read
        held = {name: size for name, size in held.items() if name not in gone}
    return peak, sum(files[name].number for name in gone if name in files)


def _documents_before(plan: Plan, step: StepSize, level: KeepWork) -> str | None:
    """The step whose documents go while a step reads them; None where they stay."""
    segments = plan.pipeline.segments.get(step.source, ())
    ids = [plan.pipeline.map_step(step.source, number) for number in range(len(segments))]
    if level == "resume" or not ids:
        return None
    if step.id in ids[1:]:
        return ids[ids.index(step.id) - 1]
    return ids[-1] if level == "none" and step.kind in ("tokenize", "write") else None


def _committed(step: StepSize) -> Step:
    """A step with one record that has a file of each of its kinds."""
    file = OutputFile(path="", rows=0, bytes=0, checksum="")
    content = Content(outputs=dict.fromkeys(step.writes, (file,)), metrics=TaskMetrics())
    record = Record(step=step.id, fingerprint="", stored=content)
    task = Task(step=step.id, seed=0)
    return Step(id=step.id, work=step.work, label="", source=step.source, tasks=(task,), records=(record,))


def _by_kind(steps: Iterable[StepSize], name: str) -> dict[str, Any]:
    total = Counter[str]()
    for step in steps:
        total[step.kind] += getattr(step, name)
    return dict(total)


def _dollars(prices: Prices, core_hours: float, requests: Mapping[str, int], output_bytes: float) -> dict[str, float]:
    """Cores are paid for all hours, also without work."""
    puts, gets = (sum(requests.get(name, 0) for name in names) for names in (("PUT", "LIST"), ("GET", "HEAD")))
    return {
        "compute": core_hours * prices.core_hour,
        "requests": (puts * prices.put + gets * prices.get) / 1000,
        "storage_month": output_bytes / 1e12 * prices.tb_month,
    }
