"""Compiles the mixture, its inputs and the committed records into steps of tasks. Pure.

    inputs ─▶ read ─▶ (merge ─▶) match ─▶ compare ─▶ … ─▶ decisions ─▶ apply ─▶ … ─▶ sample ─▶ train ─▶ tokenize ─▶ pack
                                                                                └▶ write, without a tokenizer

A step gets its tasks once the records of the step before are committed; until then only its name is known. So the driver
compiles the plan again whenever a step ends, and a resumed run passes the committed steps at once. A task that finds that its
file cannot be cut at its range commits this alone; the next plan then has one task for the file instead of those of its ranges.
Since the fact is a record, a run that was killed goes on with it. This module decides which
step needs which, `expand.py` makes their tasks. An exchange is repeated as long as its last round asks for another one. Files
are merged before they are reduced where they hold too many sorted runs (`runs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from datapipe.errors import DatapipeError
from datapipe.plan import expand, ranking, runs
from datapipe.plan.outputs import ExchangeFile, F, OutputFile, TableFile, TokenizerFile, train_rows
from datapipe.plan.request import PlannedSource, Request
from datapipe.plan.steps import GlobalStep, Pipeline, RankingStep, lay_out
from datapipe.plan.work import BoundStage, Decisions, GatherTask, MergeTask, Record, Task
from datapipe.stage.base import Filter
from datapipe.stage.global_stage import Global
from datapipe.stage.ranking import Cut, Interval
from datapipe.stage.tables import FINAL_SCHEMAS, OPEN, Exchange

EXCHANGES = ("reduce", "merge", "gather")
"""Kinds of steps that exchange rows and count no documents."""

ARROW = " → "
"""Between the stages that a step runs one after the other, in its label."""

LookUp = Callable[[str], Record | None]
"""The committed record of a fingerprint, or None."""

MakeTasks = Callable[[], Sequence[Task]]
"""Makes the tasks of a step, which takes 0.1 ms each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Tasks of one kind.

    Attributes:
        id: unique in the run: "web/read", "dedup.minhash/compare".
        label: what it does, in full, for people: "read → filter.length → filter.url".
        source: empty where the step serves several.
        tasks: None while the steps that it needs are not committed.
        records: of the committed tasks, in task order.
    """

    id: str
    kind: str
    label: str
    source: str = ""
    tasks: tuple[Task, ...] | None = None
    records: tuple[Record, ...] = ()

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
        """All outputs of a kind, which are files of one type, in task order."""
        return tuple(output for record in self.records for output in record.of(kind, file_type))

    def pending(self) -> list[Task]:
        done = {record.fingerprint for record in self.records}
        return [task for task in self.tasks or () if task.fingerprint not in done]


@dataclass(slots=True)
class Plan:
    """Steps, each after the steps that it needs.

    Attributes:
        inputs: by source, its inputs as the tasks read them: files that cannot be cut are whole.
        read_whole: by source, the paths of the files that cannot be cut, each with the fingerprint of the record that says so.
        widened: by source, the source with the types that reading has found, and the fingerprints of the records that say so.
    """

    pipeline: Pipeline
    steps: list[Step] = field(default_factory=list)
    inputs: dict[str, PlannedSource] = field(default_factory=dict)
    read_whole: dict[str, dict[str, str]] = field(default_factory=dict)
    widened: dict[str, tuple[PlannedSource, tuple[str, ...]]] = field(default_factory=dict)

    @property
    def is_committed(self) -> bool:
        return all(step.is_committed for step in self.steps)

    def pending(self) -> list[Task]:
        """Tasks that can run now and have no record, in plan order."""
        return [task for step in self.steps for task in step.pending()]

    @property
    def tokenizer(self) -> TokenizerFile | None:
        """The tokenizer's file, or None while it is not committed."""
        return next((file for step in self.of_kind("train") for file in step.outputs("tokenizer", TokenizerFile)), None)

    def of_kind(self, kind: str, source: str | None = None) -> list[Step]:
        return [step for step in self.steps if step.kind == kind and source in (None, step.source)]


_Tables = dict[str, tuple[ExchangeFile, ...]]


def _files(steps: Sequence[Step], kind: str) -> tuple[ExchangeFile, ...]:
    """The outputs of a kind that have rows."""
    return tuple(output for step in steps for output in step.outputs(kind, ExchangeFile) if output.rows)


def compile_plan(request: Request, look_up: LookUp, before: Plan | None = None) -> Plan:
    """The plan of a run as of now. Raises UserError where the order of global stages is contradictory.

    Args:
        before: an earlier plan of the same request, from fewer records. Tasks follow from committed records, which stay, so
            what it has of tasks is taken from it.
    """
    pipeline = lay_out({name: source.stages for name, source in request.sources.items()})
    compilation = _Compilation(request, look_up, Plan(pipeline=pipeline), before)
    cleaned = [compilation.segment(name, len(pipeline.segments[name]) - 1) for name in request.sources]
    if request.mixture.tokenizer.is_none:
        for step in cleaned:
            compilation.write(step)
        return compilation.plan
    tokenizer = compilation.tokenizer(cleaned)
    for step in cleaned:
        tokenized = compilation.tokenize(step, tokenizer)
        for length in request.mixture.pack.sequence_length:
            compilation.pack(tokenized, tokenizer, length)
    return compilation.plan


class _Compilation:
    """State of one compilation. Each method adds a step after the steps it needs, and returns it."""

    def __init__(self, request: Request, look_up: LookUp, plan: Plan, before: Plan | None) -> None:
        self.request, self.look_up, self.plan = request, look_up, plan
        self.before = {step.id: step for step in before.steps} if before is not None else {}
        self.read_whole = before.read_whole if before is not None else {}
        self.widened = before.widened if before is not None else {}
        self.expander = expand.Expander(request.mixture)
        self.known: dict[str, Step] = {}

    def add(self, step_id: str, kind: str, label: str, source: str, make: MakeTasks | None) -> Step:
        """Adds a step.

        Args:
            make: makes its tasks; None while they are not known.
        """
        before = self.before.get(step_id)
        if before is not None and before.tasks is not None and make is not None:
            step = self.with_records(before)
        else:
            step = self.made(step_id, kind, label, source, make and make())
        self.known[step_id] = step
        self.plan.steps.append(step)
        return step

    def with_records(self, step: Step) -> Step:
        """A step of the plan before, with the records of its tasks that there are now."""
        if step.is_committed:
            return step
        records = (self.look_up(task.fingerprint) for task in step.tasks or ())
        return replace(step, records=tuple(record for record in records if record is not None))

    def made(self, step_id: str, kind: str, label: str, source: str, tasks: Sequence[Task] | None) -> Step:
        if tasks is not None and len({task.fingerprint for task in tasks}) != len(tasks):
            raise DatapipeError(
                f"{step_id}: two tasks have the same fingerprint. This is a defect of datapipe, please report it"
            )
        records = [self.look_up(task.fingerprint) for task in tasks or ()]
        return Step(
            id=step_id,
            kind=kind,
            label=label,
            source=source,
            tasks=None if tasks is None else tuple(tasks),
            records=tuple(record for record in records if record is not None),
        )

    def segment(self, name: str, number: int) -> Step:
        """Segment `number` of a source, after all the steps that it needs."""
        step_id = self.plan.pipeline.map_step(name, number)
        if step_id in self.known:
            return self.known[step_id]
        stages = self.plan.pipeline.segments[name][number]
        following = self.plan.pipeline.after[name][number]
        emit = following.stage if isinstance(following, GlobalStep) else None
        labels = [stage.name for stage in stages]
        if number == 0:
            return self.read(step_id, ARROW.join(["read", *labels]), name, stages, emit)
        before = self.segment(name, number - 1)
        ending = self.plan.pipeline.after[name][number - 1]
        assert ending is not None
        known = self.cut(name, ending, before) if isinstance(ending, RankingStep) else self.decisions(ending)
        later = None
        if before.is_committed and known is not None:
            planned = self.plan.inputs[name]
            later = partial(self.expander.later_tasks, step_id, name, planned, before.records, known, stages, emit)
        return self.add(step_id, "map", ARROW.join([f"apply {ending.id}", *labels]), name, later)

    def read(self, step_id: str, label: str, name: str, stages: tuple[BoundStage, ...], emit: BoundStage | None) -> Step:
        """The step that reads a source: whole what a record says cannot be cut, and with types that hold all values."""
        limit = self.request.limit
        planned, told = self.widened.get(name, (self.request.sources[name], ()))
        whole = self.read_whole.get(name, {})
        while True:
            now = planned.with_whole(whole) if whole else planned
            make = partial(self.expander.read_tasks, step_id, name, now, stages, emit, limit)
            step = self.add(step_id, "map", label, name, make)
            found = {path: record.fingerprint for record in step.records for path in record.metrics.unsplittable_files}
            wider = {record.fingerprint: record.metrics.wider_types for record in step.records if record.metrics.wider_types}
            if not found.keys() - whole.keys() and not wider:
                self.plan.inputs[name], self.plan.read_whole[name], self.plan.widened[name] = now, whole, (planned, told)
                return step
            self.plan.steps.pop()
            self.before.pop(step_id, None)
            whole, told = {**whole, **found}, (*told, *wider)
            planned = (
                planned.with_wider(wider.values(), self.request.mixture.where("sources", name, "keep")) if wider else planned
            )

    def cut(self, source: str, ending: RankingStep, scored: Step) -> BoundStage | None:
        """The filter with the cut of its share, or None while that is not committed."""
        bound, interval = ending.stage, Interval()
        share = cast(Filter, bound.stage).kept_share()
        assert share is not None
        scores = scored.outputs(ranking.scores_of(bound.name), TableFile)
        for number in range(1, ranking.MOST_ROUNDS + 1):
            ranks, narrow = ranking.step_ids(source, bound.name, number)
            ranking_of = partial(self.expander.rank_tasks, ranks, source, bound.name, scores, interval)
            label = f"{bound.name}: summarise scores, round {number}"
            ranked = self.add(ranks, "rank", label, source, ranking_of if scored.is_committed else None)
            summaries = ranked.outputs("summary", TableFile)
            narrowing = partial(self.expander.narrow_tasks, narrow, source, bound.name, summaries, interval, share)
            label = f"{bound.name}: find the cut, round {number}"
            narrowed = self.add(narrow, "narrow", label, source, narrowing if ranked.is_committed else None)
            if not narrowed.is_committed:
                return None
            found = ranking.found_of(narrowed.records[0])
            if isinstance(found, Cut):
                return replace(bound, cut=found)
            interval = found
        raise DatapipeError(
            f"{source}: {bound.name}: the cut was not found in {ranking.MOST_ROUNDS} rounds. This is a defect of datapipe, "
            "please report it"
        )

    def decisions(self, global_step: GlobalStep) -> Decisions | None:
        """The decisions of a global stage, or None while they are not committed."""
        step_id = f"{global_step.id}/decisions"
        step = self.known.get(step_id) or self.gather(step_id, global_step)
        if not step.is_committed:
            return None
        stage = cast(Global, global_step.stage.stage)
        tables = {*stage.emits(), *(name for exchange in stage.exchanges() for name in exchange.outputs)}
        names = tables if stage.size_column is not None else tables - {"sizes"}
        return Decisions(
            name=global_step.id,
            rule=global_step.rule,
            tables={name: step.outputs(name, ExchangeFile) for name in FINAL_SCHEMAS if name in names},
            size_column=stage.size_column,
            cluster_column=stage.cluster_column,
            removed_share=stage.removed_share_limit(),
        )

    def gather(self, step_id: str, global_step: GlobalStep) -> Step:
        """The exchanges of a global stage one after the other, and its decisions by document."""
        stage = cast(Global, global_step.stage.stage)
        emitting = [self.segment(name, number) for name, number in global_step.sources]
        tables: _Tables | None = None
        if all(step.is_committed for step in emitting):
            reference_rows = self.request.reference_rows.get((global_step.stage.name, global_step.stage.digest), {})
            tables = {name: _files(emitting, f"emitted.{name}") + reference_rows.get(name, ()) for name in stage.emits()}
        for exchange in stage.exchanges():
            tables = self.exchange(global_step, exchange, tables)
        final = None if tables is None else {name: tables[name] for name in FINAL_SCHEMAS if name in tables}
        if final is not None and not self.expander.is_reduced_in_one_task(final):
            final = self.merged(step_id, global_step, final)
        gathers = None if final is None else partial(self.expander.range_tasks, GatherTask, step_id, global_step.stage, final)
        return self.add(step_id, "gather", f"{global_step.id}: collect decisions by document", "", gathers)

    def exchange(self, global_step: GlobalStep, exchange: Exchange, tables: _Tables | None) -> _Tables | None:
        """The tables after an exchange, or None while they are not known."""
        name = f"{global_step.id}/{exchange.name}"
        for number in range(1, exchange.rounds + 1):
            step_id = name if exchange.rounds == 1 else f"{name}-{number}"
            tasks = None
            own = None if tables is None else {table: tables.get(table, ()) for table in exchange.inputs}
            if own is not None and not self.expander.is_reduced_in_one_task(own, exchange):
                own = self.merged(step_id, global_step, own)
            if tables is not None and own is not None:
                tables = {**tables, **own}
                tasks = partial(self.expander.reduce_tasks, step_id, global_step.stage, exchange, own)
            label = f"{global_step.id}: {exchange.label}" + (f", round {number}" if exchange.rounds > 1 else "")
            step = self.add(step_id, "reduce", label, "", tasks)
            if tables is None or tasks is None or not step.is_committed:
                return None
            written = {table: _files([step], table) for table in exchange.outputs}
            replaced = set(exchange.outputs) & set(exchange.inputs)
            kept = {table: () if table in replaced else files for table, files in tables.items()}
            tables = {table: kept.get(table, ()) + written.get(table, ()) for table in {**kept, **written}}
            if not tables.pop(OPEN, ()):
                return tables
        if exchange.rounds == 1:
            return tables
        raise DatapipeError(
            f"{name}: not finished after {exchange.rounds} rounds. This is a defect of datapipe or of a stage of yours: "
            "the exchange must stop asking for rounds."
        )

    def merged(self, before: str, global_step: GlobalStep, tables: _Tables) -> _Tables | None:
        """The tables with no hash in more sorted runs than a bucket should read, or None while they are not merged."""
        merged, level = {name: runs.with_group_keys(files) for name, files in tables.items()}, 1
        while wide := [name for name in tables if runs.fan_in([keyed.file for keyed in merged[name]]) > runs.MOST_RUNS]:
            step_id = f"{before}.merge-{level}"
            tasks: list[Task] = []
            group_keys: dict[str, int] = {}
            for name in wide:
                groups, merged[name] = runs.merge_groups(merged[name])
                for group in groups:
                    merging = self.expander.range_tasks(MergeTask, step_id, global_step.stage, {name: group.files})
                    group_keys |= {task.fingerprint: group.group_key for task in merging}
                    tasks += merging
            label = f"{global_step.id}: merge sorted runs of {', '.join(wide)}"
            step = self.add(step_id, "merge", label, "", partial(list, tasks))
            if not step.is_committed:
                return None
            for record in step.records:
                for name in record.outputs:
                    files = record.of(name, ExchangeFile)
                    merged[name] += [
                        runs.KeyedFile(group_key=group_keys[record.fingerprint], file=file) for file in files if file.rows
                    ]
            level += 1
        return {name: tuple(keyed.file for keyed in files) for name, files in merged.items()}

    def tokenizer(self, cleaned: Sequence[Step]) -> TokenizerFile | None:
        """The tokenizer's file, or None while it is not committed."""
        if self.request.tokenizer_content:
            tasks = partial(self.expander.load_tasks, "tokenizer/load", self.request.tokenizer_content)
            loaded = self.add("tokenizer/load", "train", "load the tokenizer", "", tasks)
            return next(iter(loaded.outputs("tokenizer", TokenizerFile)), None)
        ready = all(step.is_committed for step in cleaned)
        kept = {step.source: sum(record.metrics.document_counts.kept_bytes for record in step.records) for step in cleaned}
        fractions = self.expander.sample_fractions(kept)
        samples: list[Step] = []
        for step in cleaned:
            step_id = f"{step.source}/sample"
            sampling = partial(self.expander.sample_tasks, step_id, step.source, step.records, fractions[step.source])
            label = "sample text for the tokenizer"
            samples.append(self.add(step_id, "sample", label, step.source, sampling if ready else None))
        sampled = [output for step in samples for output in step.outputs("sample", TableFile)]
        known = all(step.is_committed for step in samples)
        training = partial(self.expander.train_tasks, "tokenizer/train", sampled) if known else None
        trained = self.add("tokenizer/train", "train", "train the tokenizer", "", training)
        return next(iter(trained.outputs("tokenizer", TokenizerFile)), None)

    def tokenize(self, cleaned: Step, tokenizer: TokenizerFile | None) -> Step:
        step_id = f"{cleaned.source}/tokenize"
        tasks = None
        if tokenizer is not None and cleaned.is_committed:
            tasks = partial(self.expander.tokenize_tasks, step_id, cleaned.source, cleaned.records, tokenizer)
        return self.add(step_id, "tokenize", "tokenize and shuffle", cleaned.source, tasks)

    def pack(self, tokenized: Step, tokenizer: TokenizerFile | None, sequence_length: int) -> Step:
        """Packs rows of one length: `web/pack` for the first, which the output itself holds, `web/pack-8192` for another."""
        is_first = sequence_length == self.request.mixture.pack.sequence_length[0]
        step_id = f"{tokenized.source}/pack" + ("" if is_first else f"-{sequence_length}")
        tasks = None
        if tokenizer is not None and tokenized.is_committed:
            strata = self.request.mixture.sources[tokenized.source].strata
            numbers = [None] if strata is None else list(range(strata.count))
            rows: dict[expand.Part, Sequence[ExchangeFile]] = {
                ("train", stratum): tokenized.outputs(train_rows(stratum), ExchangeFile) for stratum in numbers
            }
            rows["validation", None] = tokenized.outputs("validation", ExchangeFile)
            tasks = partial(self.expander.pack_tasks, step_id, tokenized.source, rows, tokenizer, sequence_length)
        return self.add(step_id, "pack", f"pack into rows of {sequence_length}", tokenized.source, tasks)

    def write(self, cleaned: Step) -> Step:
        step_id = f"{cleaned.source}/write"
        tasks = partial(self.expander.write_tasks, step_id, cleaned.source, cleaned.records)
        return self.add(step_id, "write", "write documents", cleaned.source, tasks if cleaned.is_committed else None)
