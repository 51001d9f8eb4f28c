"""A kind of work, its tasks, and the plan of a run.

A kind is a subclass of `Task` in a file of this folder. Its fields are the inputs of a worker, and
`run` is the work. The class declares its version, the options and libraries that it depends on, how
its steps are planned, and what they cost. `kinds.py` lists the kinds.

    mixture, inputs, records ─▶ Planning ─▶ Plan: steps of tasks ─▶ workers: Task.run ─▶ records ─▶ Planning ─▶ …

Every task is picklable, names its inputs by content, and writes only under its own folder.
Each field declares how it enters the fingerprint of its task: as it is, as what `entering(…)` makes
of it, or not at all (`LEFT_OUT`). Stages enter by their digests. The code of a kind enters as its
`version`, which grows with every change of the bytes of its outputs; the bytes of each version are
pinned in `tests/golden/test_kinds.py`.

Versions of libraries enter where they decide what a later step reads, or bytes of the snapshot (`records/versions.py`):

| kind | libraries, beside those of its stages and readers | why |
|---|---|---|
| map, reduce | Unicode tables of Python | they define letters and words |
| merge, gather, size, limit | none | integers and keys are sorted, and their order is unique |
| rank, narrow, cells, cell_sizes, stops | none | scores and names are compared, and integers added |
| grid | pyarrow | it reads numbers from text |
| sample | Unicode, pyarrow | letters end words; pyarrow groups the words, and their order decides between equal pairs |
| fold | pyarrow | it groups the words of several samples |
| train | those of sample, and the encoders | tokenizers writes tokenizer.json, and both libraries are compared |
| tokenize | encoders, pyarrow | they decide ids; pyarrow reads the numbers of strata from text |
| pack, write | pyarrow | it encodes the files of the snapshot; Parquet also has its exact version |

pyarrow also encodes the files between steps. Another encoding of the same rows reads as the same
rows, so it is no reason to run a task again. xxhash is a fixed algorithm with published test
vectors. numba compiles integers and single operations of IEEE 754, without `fastmath`; the stages
whose kernels call `exp` or `log` name it. NumPy sorts, adds and compares integers; the stages that
call its `log` or average floats name it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from datapipe.dataclass import dataclass, field, fields, replace
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, F, OutputFile, Outputs, Record, TableFile, Tables, TokenizerFile, typed
from datapipe.records.versions import fingerprint_of, versions_of
from datapipe.stage.reader import InputFile
from datapipe.steps.costs import DOCUMENTS, StepCost, Texts, seconds_of
from datapipe.steps.pipeline import BoundStage, Pipeline
from datapipe.steps.totals import Records, Summed, Totals
from datapipe.storage.root import Root

if TYPE_CHECKING:
    from datapipe.steps.growth import Growth, StepSize
    from datapipe.steps.request import PlannedSource, Request

_ENTERS = "enters"


def entering(part: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Metadata of a field of which `part(value)`, plain JSON, enters the fingerprint."""
    return {_ENTERS: part}


_ABSENT = object()


def where_given(part: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Metadata of a field that enters as `entering(part)` has it, and only with a value, so that tasks without one have the
    fingerprints of the version before."""
    return entering(lambda value: part(value) if value else _ABSENT)


WHERE_GIVEN = where_given(lambda value: value)

LEFT_OUT: Mapping[str, Any] = {_ENTERS: None}
"""Metadata of a field that the outputs do not depend on, or that follows from other fields."""

OpenStage = Callable[[BoundStage, int | None], BoundStage]
"""Opens a stage in this process, for a source at this position; see `StageContext`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What every task has, and what every kind of work declares."""

    kind: ClassVar[str]
    version: ClassVar[int]  # of the bytes that it writes
    # keys of the mixture that its tasks depend on, with all keys below them, beside stages and inputs. SOURCE
    # stands for the source of the step.
    options: ClassVar[tuple[str, ...]] = ()
    libraries: ClassVar[tuple[str, ...]] = ()  # whose versions decide its outputs, beside those of its stages
    # whether runs with a tokenizer have it (True), those without one (False), or all (None)
    of_tokens: ClassVar[bool | None] = None
    is_exchange: ClassVar[bool] = False  # whether it exchanges rows, and counts no documents
    # megabytes of text a second on one core; 0 where the time does not follow from the text alone, or is short
    mb_per_s: ClassVar[float] = 0.0
    metrics_type: ClassVar[type[Summed] | None] = None  # `TaskMetrics.own` of its tasks, where these can be added up

    step: str = field(metadata=LEFT_OUT)  # the id of its step
    fingerprint: str = field(default="", metadata=LEFT_OUT)  # 64 hex digits
    # of `libraries_used` here, as in `Record.versions`. They enter the second half of the fingerprint.
    versions: str = field(default="", metadata=LEFT_OUT)
    source: str = ""  # empty where the task serves several
    seed: int
    # Ray's: num_cpus, num_gpus, memory in bytes
    resources: tuple[tuple[str, float], ...] = field(default=(), metadata=LEFT_OUT)

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        """Writes the outputs below `folder`."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        return f"{self.step} ({self.fingerprint[:12]})"

    @property
    def input_files(self) -> Mapping[str, InputFile]:
        """The input files that the task reads, by URL."""
        return {}

    @property
    def input_bytes(self) -> float:
        """About how many bytes the task reads, for comparisons with tasks of the same step."""
        return sum(file.bytes for file in self.read_files)

    @property
    def read_files(self) -> Iterator[OutputFile]:
        """The committed files that the task reads."""
        for each in fields(self):
            yield from _files_in(getattr(self, each.name))

    @property
    def stages_run(self) -> tuple[BoundStage, ...]:
        return ()

    @property
    def libraries_used(self) -> tuple[str, ...]:
        """The libraries whose versions decide what the task writes."""
        return self.libraries

    def noted(self) -> Task:
        """What is asked for of a task that is committed. A plan of very many tasks has no room for the files that all read."""
        names = [each.name for each in fields(Task)]
        return Task(**{name: getattr(self, name) for name in names})

    def with_open_stages(self, open_stage: OpenStage) -> Self:
        """The task with opened stages."""
        return self

    def is_doubtful(self, metrics: TaskMetrics) -> bool:
        """Whether another reading of the input may find less damage."""
        return False

    @classmethod
    def release(cls) -> None:
        """Frees what the process keeps for the next task of this kind."""

    @classmethod
    def plan(cls, planning: Planning) -> None:
        """Adds the steps that serve all sources, or that the steps of all sources need."""

    @classmethod
    def plan_source(cls, planning: Planning, source: str) -> None:
        """Adds the steps that follow the last segment of a source."""

    @classmethod
    def cost(cls, plan: Plan, step: Step, texts: Texts) -> Iterator[StepCost]:
        """The costs of parts of a step. By default the step reads all text of its source once."""
        if cls.mb_per_s:
            text, written = texts.cleaned[step.source], texts.token_bytes if cls.of_tokens else DOCUMENTS
            yield StepCost(text * written, seconds_of(text, cls.mb_per_s))

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        """Adds a step to a run of another size. By default it has a task for each of those that cleaned the source."""
        if step.source:
            growth.add(step, growth.sources[step.source].tasks, growth.documents(step.source))
        else:
            growth.add(step, step.tasks)

    @classmethod
    def options_of(cls, step: Step) -> tuple[str, ...]:
        """The options that the tasks of a step depend on."""
        return cls.options

    @classmethod
    def stages_of(cls, plan: Plan, step: Step, source: str) -> Iterable[BoundStage]:
        """The stages that a step runs on the documents of a source."""
        return ()


def _files_in(value: Any) -> Iterator[OutputFile]:
    """The files in the value of a field: one file, a tuple of files, or tables of them."""
    if isinstance(value, OutputFile):
        yield value
    elif isinstance(value, tuple):
        yield from (file for file in value if isinstance(file, OutputFile))
    elif isinstance(value, Mapping):
        yield from (file for files in value.values() for file in _files_in(files))


StepKind = type[Task]  # A kind of work: the class of its tasks
T = TypeVar("T", bound=Task)
Own = TypeVar("Own")


def fingerprinted(task: T) -> T:
    """Sets the fingerprint of a new task: of its fields, of the code that it runs, and of the versions of its libraries."""
    content = {"kind": task.kind, "code": code_of(type(task))}
    entered = {name: part(getattr(task, name)) for name, part in _parts(type(task))}
    content |= {name: value for name, value in entered.items() if value is not _ABSENT}
    versions = versions_of(task.libraries_used)
    object.__setattr__(task, "versions", versions)  # a copy would cost as much as the rest
    object.__setattr__(task, "fingerprint", fingerprint_of(content, versions))
    return task


@lru_cache(maxsize=32)
def _parts(kind: StepKind) -> list[tuple[str, Callable[[Any], Any]]]:
    """The fields of a kind that enter the fingerprint, each with the function of its value that enters."""
    return [(each.name, part) for each in fields(kind) if (part := each.metadata.get(_ENTERS, lambda value: value)) is not None]


def code_of(kind: StepKind) -> str:
    """The code of a kind in fingerprints."""
    return f"version={kind.version}"


def checksums(files: Iterable[ExchangeFile]) -> list[str]:
    """The identity of a set of exchange files, whose readers sort."""
    return sorted(file.checksum + (" reference" if file.is_reference else "") for file in files)


def table_checksums(tables: Tables) -> dict[str, list[str]]:
    return {name: checksums(files) for name, files in sorted(tables.items())}


def file_checksums(files: Iterable[OutputFile]) -> list[str]:
    """The identity of files whose order counts."""
    return [file.checksum for file in files]


Fields = dict[str, Any]  # Fields of a task
LookUp = Callable[[str], Record | None]  # the committed record of a fingerprint, or None
ARROW = " → "  # Between the stages that a step runs one after the other, in its label


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Tasks of one kind."""

    id: str  # unique in the run: "web/read", "dedup.minhash/compare"
    work: StepKind
    label: str  # for people: "read → filter.length → filter.url"
    source: str = ""  # empty where the step serves several
    tasks: tuple[Task, ...] | None = None  # None while the steps that it needs are not committed
    records: tuple[Record, ...] = ()  # of the committed tasks, in task order; `Records`

    def __post_init__(self) -> None:
        if not isinstance(self.records, Records):
            object.__setattr__(self, "records", Records(self.records))

    @property
    def kind(self) -> str:
        return self.work.kind

    @property
    def title(self) -> str:
        """The label in short, with the source: "web: read → filter", "dedup.minhash: compare"."""
        if not self.source:
            return self.label
        parts = (part if " " in part else part.partition(".")[0] for part in self.label.split(ARROW))
        return f"{self.source}: {ARROW.join(dict.fromkeys(parts))}"

    @property
    def is_committed(self) -> bool:
        return self.tasks is not None and len(self.records) == len(self.tasks)

    def outputs(self, kind: str, file_type: type[F] = OutputFile) -> tuple[F, ...]:
        return typed(cast(Records, self.records).outputs(kind), file_type)

    def numbers(self, kind: type[Own]) -> Iterator[Own]:
        """The metrics of its kind of work, of each committed task."""
        return (record.metrics.of(kind) for record in self.records)

    @property
    def totals(self) -> Totals:
        """The sums over its committed tasks."""
        return cast(Records, self.records).totals(self.work.metrics_type)

    def own(self, kind: type[Own]) -> Own:
        """The sums of the metrics of its kind of work."""
        own = self.totals.own
        assert isinstance(own, kind), f"{self.id}: {type(own).__name__}, expected {kind.__name__}"
        return own

    def joined(self, later: Step) -> Step:
        """This step, which is committed, and the same step of files that are added, as one."""
        known = {record.fingerprint for record in self.records}
        fresh = [task for task in later.tasks or () if task.fingerprint not in known]
        tasks = None if later.tasks is None else (*(self.tasks or ()), *fresh)
        records = Records((*self.records, *(record for record in later.records if record.fingerprint not in known)))
        return replace(later, tasks=tasks, records=records.growing(cast(Records, self.records)))

    def pending(self) -> list[Task]:
        done = {record.fingerprint for record in self.records}
        return [task for task in self.tasks or () if task.fingerprint not in done]


@dataclass(slots=True)
class Plan:
    """Steps, each after the steps that it needs."""

    pipeline: Pipeline
    steps: list[Step] = field(default_factory=list)
    earlier: Sequence[Step] = ()  # the committed steps of the snapshot that the files are added to
    # by source, its inputs as the tasks read them: files that cannot be cut are whole
    inputs: dict[str, PlannedSource] = field(default_factory=dict)
    # by source, the paths of the files that cannot be cut, each with the fingerprint of the task that found it
    read_whole: dict[str, dict[str, str]] = field(default_factory=dict)
    # by source, the source with the types that reading has found, and the fingerprints of the tasks that found them
    widened: dict[str, tuple[PlannedSource, tuple[str, ...]]] = field(default_factory=dict)
    # committed tasks that run again, since a later one reads files of theirs that were freed
    again: set[str] = field(default_factory=set)

    @property
    def is_committed(self) -> bool:
        return all(step.is_committed for step in self.steps)

    def with_earlier(self) -> Plan:
        """This plan, whose steps also have the tasks and records of the earlier ones."""
        own = {step.id: step for step in self.steps}
        joined = [step.joined(own.pop(step.id)) if step.id in own else step for step in self.earlier]
        return replace(self, steps=[*joined, *own.values()], earlier=())

    def pending(self) -> list[Task]:
        """Tasks that can run now and have no record, in plan order."""
        return [task for step in self.steps for task in step.pending()]

    @property
    def tokenizer(self) -> TokenizerFile | None:
        """The tokenizer's file, which may be that of an earlier step, or None while it is not committed."""
        steps = self.of_kind("train") or [step for step in self.earlier if step.kind == "train"]
        return next((file for step in steps for file in step.outputs("tokenizer", TokenizerFile)), None)

    def of_kind(self, kind: str, source: str | None = None) -> list[Step]:
        return [step for step in self.steps if step.kind == kind and source in (None, step.source)]


class Planning:
    """A plan in the making; `known` are its steps by id. Tasks follow from committed records, which
    stay, so tasks of an earlier plan of the request (`before`) are taken from it."""

    def __init__(self, request: Request, look_up: LookUp, before: Plan) -> None:
        self.request, self.mixture, self.before = request, request.mixture, before
        self.plan, self.known = Plan(pipeline=before.pipeline, earlier=before.earlier), dict[str, Step]()
        self._look_up, self._before = look_up, {step.id: step for step in before.steps}
        self.bucket_bytes = request.mixture.execution.bucket_bytes

    def add(
        self, kind: StepKind, step_id: str, label: str, own: Iterable[Fields] | None, uses: Sequence[str] = (), **common: Any
    ) -> Step:
        """Adds a step. A new task takes 0.1 ms, so those of the earlier plan are used again. `own`
        are the fields of each task, None while they are not known; `common` are those of all;
        `uses` are names of stages or kinds, by which the mixture gives resources."""
        step = self._before.get(step_id)
        if step is None or step.tasks is None or own is None:
            step = Step(id=step_id, work=kind, label=label, source=common.get("source", ""))
            if own is not None:
                common |= {"seed": self.mixture.seed, "resources": self.mixture.execution.resources_for(uses)}
                step = replace(step, tasks=tuple(fingerprinted(kind(step=step_id, **common, **each)) for each in own))
        if step.tasks is not None and not step.is_committed:
            assert len({task.fingerprint for task in step.tasks}) == len(step.tasks), f"{step_id}: equal tasks"
            records = Records(self._records(step.tasks))
            if len(records) < len(step.tasks):  # else it is summed in the order of its tasks
                records = records.growing(cast(Records, step.records))
            step = replace(step, records=records)
            if step.is_committed:
                step = replace(step, tasks=tuple(task.noted() for task in step.tasks or ()))
        self.known[step_id] = step
        self.plan.steps.append(step)
        return step

    def _records(self, tasks: Iterable[Task]) -> Iterator[Record]:
        """The records of tasks. A task whose record was made with other versions of libraries, and is kept, gets its name."""
        for task in tasks:
            record = self._look_up(task.fingerprint)
            if record is not None:
                if record.fingerprint != task.fingerprint:
                    object.__setattr__(task, "fingerprint", record.fingerprint)
                yield record

    def withdraw(self, step: Step) -> None:
        """Removes the step that was added last, and its tasks."""
        self.plan.steps.pop()
        self._before.pop(step.id, None)

    def cleaned(self, source: str) -> Step:
        pipeline = self.plan.pipeline
        return self.known[pipeline.map_step(source, len(pipeline.segments[source]) - 1)]


def documents_of(record: Record) -> Fields:
    """The fields of a task that reads what the task of a record wrote."""
    return {"before": record.fingerprint, "documents": record.of("documents", TableFile)}
