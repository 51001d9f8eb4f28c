"""What must run: the mixture, its inputs and what is committed, compiled into steps of tasks. Pure.

    inputs ─▶ clean-0 ─▶ (merge ─▶) exchange ─▶ … ─▶ verdicts ─▶ clean-1 ─▶ … ─▶ sample ─▶ train ─▶ tokenize ─▶ pack

A step is expanded into tasks as soon as the records of the step before are there; until then it is known by name alone.
So the plan is compiled again whenever a step ends, and a resumed run walks through the committed ones at once. What the
tasks of a step are is decided in `expand.py`; this file decides which step needs which. How often an exchange is repeated
is known from what its last round wrote, and from nothing else; whether files are merged before they meet, from how many sorted
runs they lie in (`runs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from datapipe.errors import DatapipeError
from datapipe.plan import expand, runs
from datapipe.plan.request import Request
from datapipe.plan.steps import GlobalStep, Pipeline, lay_out
from datapipe.plan.work import Decisions, OutputRef, Record, Task, train_rows
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS, OPEN, Exchange

EXCHANGES = ("reduce", "merge", "gather")
"""Kinds of steps that exchange rows: they have no documents to count."""

LookUp = Callable[[str], Record | None]
"""The committed record of a fingerprint, or None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Tasks of one kind.

    Attributes:
        id: unique in the run: "web/clean-0".
        label: what it does, for people.
        source: empty where it serves several.
        tasks: None while what it needs is not committed.
        records: as many as are committed, in task order.
    """

    id: str
    kind: str
    label: str
    source: str = ""
    tasks: tuple[Task, ...] | None = None
    records: tuple[Record, ...] = ()

    @property
    def is_committed(self) -> bool:
        return self.tasks is not None and len(self.records) == len(self.tasks)

    def outputs(self, kind: str) -> tuple[OutputRef, ...]:
        """All outputs of a kind, in task order."""
        return tuple(output for record in self.records for output in record.of(kind))

    def pending(self) -> list[Task]:
        done = {record.fingerprint for record in self.records}
        return [task for task in self.tasks or () if task.fingerprint not in done]


@dataclass(slots=True)
class Plan:
    """Steps in an order in which they can run."""

    pipeline: Pipeline
    steps: list[Step] = field(default_factory=list)

    @property
    def is_committed(self) -> bool:
        return all(step.is_committed for step in self.steps)

    def pending(self) -> list[Task]:
        """Tasks that are ready to run and have no record, in plan order."""
        return [task for step in self.steps for task in step.pending()]

    def of_kind(self, kind: str, source: str | None = None) -> list[Step]:
        return [step for step in self.steps if step.kind == kind and source in (None, step.source)]


_Tables = dict[str, tuple[OutputRef, ...]]


def _files(steps: Sequence[Step], kind: str) -> tuple[OutputRef, ...]:
    """The outputs of a kind that have rows."""
    return tuple(output for step in steps for output in step.outputs(kind) if output.rows)


def compile_plan(request: Request, look_up: LookUp) -> Plan:
    """The plan of a run at this moment. Raises UserError where the mixture cannot be laid out."""
    pipeline = lay_out({name: source.stages for name, source in request.sources.items()})
    compilation = _Compilation(request, look_up, Plan(pipeline=pipeline))
    cleaned = [compilation.segment(name, len(pipeline.segments[name]) - 1) for name in request.sources]
    tokenizer = compilation.tokenizer(cleaned)
    for step in cleaned:
        tokenized = compilation.tokenize(step, tokenizer)
        for length in request.mixture.pack.sequence_length:
            compilation.pack(tokenized, tokenizer, length)
    return compilation.plan


class _Compilation:
    """One compilation at work. Each method adds a step after those it needs, and returns it."""

    def __init__(self, request: Request, look_up: LookUp, plan: Plan) -> None:
        self.request, self.look_up, self.plan = request, look_up, plan
        self.expander = expand.Expander(request.mixture)
        self.known: dict[str, Step] = {}

    def add(self, step_id: str, kind: str, label: str, source: str, tasks: Sequence[Task] | None) -> Step:
        if tasks is not None and len({task.fingerprint for task in tasks}) != len(tasks):
            raise DatapipeError(f"{step_id}: two tasks have one fingerprint; this is a defect of datapipe, please report it")
        found = [self.look_up(task.fingerprint) for task in tasks or ()]
        step = Step(
            id=step_id,
            kind=kind,
            label=label,
            source=source,
            tasks=None if tasks is None else tuple(tasks),
            records=tuple(record for record in found if record is not None),
        )
        self.known[step_id] = step
        self.plan.steps.append(step)
        return step

    def segment(self, name: str, number: int) -> Step:
        """Segment `number` of a source, with all that comes before it."""
        step_id = f"{name}/clean-{number}"
        if step_id in self.known:
            return self.known[step_id]
        stages = self.plan.pipeline.segments[name][number]
        global_step = self.plan.pipeline.after[name][number]
        emit = global_step.stage if global_step else None
        labels = [stage.name for stage in stages]
        if number == 0:
            planned = self.request.sources[name]
            tasks = self.expander.read_tasks(step_id, name, planned, stages, emit, self.request.limit)
            return self.add(step_id, "map", " → ".join(["read", *labels]), name, tasks)
        before = self.segment(name, number - 1)
        ending = self.plan.pipeline.after[name][number - 1]
        assert ending is not None
        decisions = self.decisions(ending)
        later = None
        if before.is_committed and decisions is not None:
            planned = self.request.sources[name]
            later = self.expander.later_tasks(step_id, name, planned, before.records, decisions, stages, emit)
        return self.add(step_id, "map", " → ".join([f"apply {ending.id}", *labels]), name, later)

    def decisions(self, global_step: GlobalStep) -> Decisions | None:
        """The verdicts of a global stage, or None while they are not committed."""
        step_id = f"{global_step.id}/verdicts"
        step = self.known.get(step_id) or self.gather(step_id, global_step)
        if not step.is_committed:
            return None
        stage = cast(Global, global_step.stage.stage)
        made = {*stage.emits(), *(name for one in stage.exchanges() for name in one.outputs)}
        names = made if stage.size_column is not None else made - {"sizes"}
        return Decisions(
            name=global_step.id,
            rule=global_step.rule,
            tables={name: step.outputs(name) for name in FINAL_SCHEMAS if name in names},
            size_column=stage.size_column,
            cluster_column=stage.cluster_column,
            removed_share=stage.removed_share_limit(),
        )

    def gather(self, step_id: str, global_step: GlobalStep) -> Step:
        """The exchanges of a global stage one after the other, and its verdicts by document."""
        stage = cast(Global, global_step.stage.stage)
        emitting = [self.segment(name, number) for name, number in global_step.sources]
        tables: _Tables | None = None
        if all(step.is_committed for step in emitting):
            reference_rows = self.request.reference_rows.get((global_step.stage.name, global_step.stage.digest), {})
            tables = {name: _files(emitting, f"emitted.{name}") + reference_rows.get(name, ()) for name in stage.emits()}
        for exchange in stage.exchanges():
            tables = self.exchange(global_step, exchange, tables)
        final = None if tables is None else {name: tables[name] for name in FINAL_SCHEMAS if name in tables}
        if final is not None and not self.expander.is_met_in_one_task(final):
            final = self.merged(step_id, global_step, final)
        gathers = None if final is None else self.expander.gather_tasks(step_id, global_step.stage, final)
        return self.add(step_id, "gather", f"{global_step.id}: verdicts by document", "", gathers)

    def exchange(self, global_step: GlobalStep, exchange: Exchange, tables: _Tables | None) -> _Tables | None:
        """The tables there are after an exchange, or None while they are not known."""
        name = f"{global_step.id}/{exchange.name}"
        for number in range(1, exchange.rounds + 1):
            step_id = name if exchange.rounds == 1 else f"{name}-{number}"
            met = None
            own = None if tables is None else {one: tables.get(one, ()) for one in exchange.inputs}
            if own is not None and not self.expander.is_met_in_one_task(own, exchange):
                own = self.merged(step_id, global_step, own)
            if tables is not None and own is not None:
                tables = {**tables, **own}
                met = self.expander.reduce_tasks(step_id, global_step.stage, exchange, own)
            label = f"{global_step.id}: {exchange.name}" + (f", round {number}" if exchange.rounds > 1 else "")
            step = self.add(step_id, "reduce", label, "", met)
            if tables is None or met is None or not step.is_committed:
                return None
            written = {one: _files([step], one) for one in exchange.outputs}
            kept = {one: () if one in exchange.outputs and one in exchange.inputs else tables[one] for one in tables}
            tables = {one: kept.get(one, ()) + written.get(one, ()) for one in {**kept, **written}}
            if not tables.pop(OPEN, ()):
                return tables
        if exchange.rounds == 1:
            return tables
        raise DatapipeError(
            f"{name}: not finished after {exchange.rounds} rounds. This is a defect of datapipe or of a stage of yours: "
            "each round must bring the end nearer."
        )

    def merged(self, before: str, global_step: GlobalStep, tables: _Tables) -> _Tables | None:
        """Tables of which no hash is in more sorted runs than a bucket should read, or None while they are not made."""
        found, level = {name: runs.placed(files) for name, files in tables.items()}, 1
        while wide := [name for name in tables if runs.fan_in([one.file for one in found[name]]) > runs.MOST_RUNS]:
            step_id = f"{before}.merge-{level}"
            tasks: list[Task] = []
            places: dict[str, int] = {}
            for name in wide:
                groups, found[name] = runs.merge_groups(found[name])
                for group in groups:
                    merging = self.expander.merge_tasks(step_id, global_step.stage, name, group.files)
                    places |= {task.fingerprint: group.place for task in merging}
                    tasks += merging
            step = self.add(step_id, "merge", f"{global_step.id}: merge files of {', '.join(wide)}", "", tasks)
            if not step.is_committed:
                return None
            for record in step.records:
                for name, files in record.outputs.items():
                    found[name] += [runs.Placed(place=places[record.fingerprint], file=one) for one in files if one.rows]
            level += 1
        return {name: tuple(one.file for one in files) for name, files in found.items()}

    def tokenizer(self, cleaned: Sequence[Step]) -> OutputRef | None:
        """The tokenizer's file, or None while it is not committed."""
        if self.request.tokenizer_content:
            tasks = self.expander.load_task("tokenizer/load", self.request.tokenizer_content)
            loaded = self.add("tokenizer/load", "train", "take the tokenizer into the run", "", tasks)
            return next(iter(loaded.outputs("tokenizer")), None)
        ready = all(step.is_committed for step in cleaned)
        kept = {step.source: sum(record.metrics.document_counts.kept_bytes for record in step.records) for step in cleaned}
        fractions = self.expander.sample_fractions(kept)
        samples: list[Step] = []
        for step in cleaned:
            step_id = f"{step.source}/sample"
            sampling = self.expander.sample_tasks(step_id, step.source, step.records, fractions[step.source]) if ready else None
            samples.append(self.add(step_id, "sample", "sample text for the tokenizer", step.source, sampling))
        sampled = [output for step in samples for output in step.outputs("sample")]
        known = all(step.is_committed for step in samples)
        training = self.expander.train_task("tokenizer/train", sampled) if known else None
        trained = self.add("tokenizer/train", "train", "train the tokenizer", "", training)
        return next(iter(trained.outputs("tokenizer")), None)

    def tokenize(self, cleaned: Step, tokenizer: OutputRef | None) -> Step:
        step_id = f"{cleaned.source}/tokenize"
        tasks = None
        if tokenizer is not None and cleaned.is_committed:
            tasks = self.expander.tokenize_tasks(step_id, cleaned.source, cleaned.records, tokenizer)
        return self.add(step_id, "tokenize", "tokenize and shuffle", cleaned.source, tasks)

    def pack(self, tokenized: Step, tokenizer: OutputRef | None, sequence_length: int) -> Step:
        """The rows of one length: `web/pack` of the first, which is in the output itself, `web/pack-8192` of another."""
        is_first = sequence_length == self.request.mixture.pack.sequence_length[0]
        step_id = f"{tokenized.source}/pack" + ("" if is_first else f"-{sequence_length}")
        tasks = None
        if tokenizer is not None and tokenized.is_committed:
            strata = self.request.mixture.sources[tokenized.source].strata
            numbers = [None] if strata is None else list(range(strata.count))
            rows: dict[expand.Part, Sequence[OutputRef]] = {
                ("train", one): tokenized.outputs(train_rows(one)) for one in numbers
            }
            rows["validation", None] = tokenized.outputs("validation")
            tasks = self.expander.pack_tasks(step_id, tokenized.source, rows, tokenizer, sequence_length)
        return self.add(step_id, "pack", f"pack into rows of {sequence_length}", tokenized.source, tasks)
