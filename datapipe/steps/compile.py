"""Compiles the mixture, its inputs and the committed records into steps of tasks. Pure.

    inputs ─▶ read ─▶ (merge ─▶) match ─▶ compare ─▶ … ─▶ decisions ─▶ apply ─▶ … ─▶ sample ─▶ train ─▶ tokenize ─▶ pack
                                                                                └▶ write, without a tokenizer

A step gets its tasks once the records of the step before are committed; until then only its name is known. So the driver
compiles the plan again whenever a step ends, and a resumed run passes the committed steps at once. A task that finds that its
file cannot be cut at its range commits this alone; the next plan then has one task for the file instead of those of its ranges.
Since the fact is a record, a run that was killed goes on with it. This module decides which step needs which, `expand.py` how
the work of a step is cut into tasks. An exchange is repeated as long as its last round asks for another one. Files are merged
before they are reduced where they hold too many sorted runs (`runs.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from datapipe.errors import DatapipeError
from datapipe.records.outputs import ExchangeFile, TableFile, TokenizerFile, train_rows
from datapipe.records.record import Record
from datapipe.stage.base import Filter
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS, OPEN, Exchange
from datapipe.steps import expand, runs
from datapipe.steps import rank_plan as ranking
from datapipe.steps.cut import Cut
from datapipe.steps.request import Request
from datapipe.steps.steps import ARROW, GlobalStep, Plan, RankingStep, Step, lay_out
from datapipe.steps.weighting import BYTES_PER_TOKEN, sample_fractions, shares_of
from datapipe.steps.work import (
    BoundStage,
    Decisions,
    GatherTask,
    MapTask,
    MergeTask,
    PackTask,
    ReduceTask,
    SampleTask,
    Task,
    TokenizeTask,
    TrainTask,
    WriteTask,
    fingerprinted,
)

LookUp = Callable[[str], Record | None]
"""The committed record of a fingerprint, or None."""


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
    compilation = _Compilation(request, look_up, Plan(pipeline=pipeline), before or Plan(pipeline=pipeline))
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

    def __init__(self, request: Request, look_up: LookUp, plan: Plan, earlier: Plan) -> None:
        self.request, self.mixture, self.look_up, self.plan = request, request.mixture, look_up, plan
        self.earlier, self.before = earlier, {step.id: step for step in earlier.steps}
        self.bucket_bytes = request.mixture.execution.bucket_bytes
        self.known: dict[str, Step] = {}

    def add(
        self,
        kind: type[Task],
        step_id: str,
        label: str,
        own: Iterable[expand.Fields] | None,
        uses: Sequence[str] = (),
        **common: Any,
    ) -> Step:
        """Adds a step. To make its tasks takes 0.1 ms each, so those of the plan before are taken from there.

        Args:
            own: fields of each of its tasks; None while they are not known.
            uses: names of what the tasks run, by which the mixture gives resources.
            common: fields of all its tasks.
        """
        step = self.before.get(step_id)
        if step is None or step.tasks is None or own is None:
            step = Step(id=step_id, kind=kind.kind, label=label, source=common.get("source", ""))
            if own is not None:
                common |= {"seed": self.mixture.seed, "resources": self.mixture.execution.resources_for(uses)}
                step = replace(step, tasks=tuple(fingerprinted(kind(step=step_id, **common, **each)) for each in own))
        if step.tasks is not None and not step.is_committed:
            if len({task.fingerprint for task in step.tasks}) != len(step.tasks):
                raise DatapipeError(
                    f"{step_id}: two tasks have the same fingerprint. This is a defect of datapipe, please report it"
                )
            records = map(self.look_up, (task.fingerprint for task in step.tasks))
            step = replace(step, records=tuple(record for record in records if record is not None))
        self.known[step_id] = step
        self.plan.steps.append(step)
        return step

    def segment(self, name: str, number: int) -> Step:
        """Segment `number` of a source, after all the steps that it needs."""
        pipeline = self.plan.pipeline
        step_id = pipeline.map_step(name, number)
        if step_id in self.known:
            return self.known[step_id]
        stages, following = pipeline.segments[name][number], pipeline.after[name][number]
        emit = following.stage if isinstance(following, GlobalStep) else None
        labels = [stage.name for stage in stages]
        common = {"uses": [*labels, *([emit.name] if emit else [])], "source": name, "stages": stages, "emit": emit}
        common["source_position"] = expand.source_position(self.mixture, name, emit)
        if number == 0:
            return self.read(step_id, ARROW.join(["read", *labels]), common)
        before = self.segment(name, number - 1)
        ending = pipeline.after[name][number - 1]
        assert ending is not None
        known = self.cut(name, ending, before) if isinstance(ending, RankingStep) else self.decisions(ending)
        later = None
        if before.is_committed and known is not None:
            later = expand.of_later_segment(name, self.plan.inputs[name], before.records, known)
        return self.add(MapTask, step_id, ARROW.join([f"apply {ending.id}", *labels]), later, **common)

    def read(self, step_id: str, label: str, common: expand.Fields) -> Step:
        """The step that reads a source: whole what a record says cannot be cut, and with types that hold all values."""
        name, limit = common["source"], self.request.limit
        planned, told = self.earlier.widened.get(name, (self.request.sources[name], ()))
        whole = self.earlier.read_whole.get(name, {})
        while True:
            now = planned.with_whole(whole) if whole else planned
            fields = now.field_names(self.mixture.sources[name])
            step = self.add(MapTask, step_id, label, expand.of_inputs(now, limit), fields=fields, limit=limit, **common)
            found = {path: record.fingerprint for record in step.records for path in record.metrics.unsplittable_files}
            wider = {record.fingerprint: record.metrics.wider_types for record in step.records if record.metrics.wider_types}
            if not found.keys() - whole.keys() and not wider:
                self.plan.inputs[name], self.plan.read_whole[name], self.plan.widened[name] = now, whole, (planned, told)
                return step
            self.plan.steps.pop()
            self.before.pop(step_id, None)
            whole, told = {**whole, **found}, (*told, *wider)
            planned = planned.with_wider(wider.values(), self.mixture.where("sources", name, "keep")) if wider else planned

    def cut(self, source: str, ending: RankingStep, scored: Step) -> BoundStage | None:
        """The filter with the cut of its share, or None while that is not committed."""
        bound, interval = ending.stage, Cut()
        share = cast(Filter, bound.stage).kept_share()
        assert share is not None
        scores = scored.outputs(ranking.scores_of(bound.name), TableFile)
        for number in range(1, ranking.MOST_ROUNDS + 1):
            ranks, narrow = ranking.step_ids(source, bound.name, number)
            common = {"source": source, "stage": bound.name, "interval": interval}
            groups = ({"scores": files} for files in ranking.file_groups(scores, self.bucket_bytes // 4))
            label = f"{bound.name}: summarise scores, round {number}"
            ranked = self.add(ranking.RankTask, ranks, label, groups if scored.is_committed else None, **common)
            summaries = [{"summaries": ranked.outputs("summary", TableFile), "share": share}]
            label = f"{bound.name}: find the cut, round {number}"
            narrowed = self.add(ranking.NarrowTask, narrow, label, summaries if ranked.is_committed else None, **common)
            if not narrowed.is_committed:
                return None
            interval = ranking.found_of(narrowed.records[0])
            if interval.is_found:
                return replace(bound, cut=interval)
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
        if final is not None and not expand.is_reduced_in_one_task(final, 0, self.bucket_bytes):
            final = self.merged(step_id, global_step, final)
        ranges = None if final is None else expand.by_range(final, self.bucket_bytes)
        label = f"{global_step.id}: collect decisions by document"
        common = {"stage": global_step.stage, "limit_bytes": self.bucket_bytes}
        return self.add(GatherTask, step_id, label, ranges, [global_step.stage.name], **common)

    def exchange(self, global_step: GlobalStep, exchange: Exchange, tables: _Tables | None) -> _Tables | None:
        """The tables after an exchange, or None while they are not known."""
        name = f"{global_step.id}/{exchange.name}"
        for number in range(1, exchange.rounds + 1):
            step_id = name if exchange.rounds == 1 else f"{name}-{number}"
            own = None if tables is None else {table: tables.get(table, ()) for table in exchange.inputs}
            if own is not None and not expand.is_reduced_in_one_task(own, exchange.at_once_bytes, self.bucket_bytes):
                own = self.merged(step_id, global_step, own)
            at_once = own is not None and expand.fits_one_call(own, exchange.at_once_bytes, self.bucket_bytes)
            ranges = None if own is None else expand.by_range(own, None if at_once else self.bucket_bytes)
            common = {"stage": global_step.stage, "limit_bytes": self.bucket_bytes * 5 // 4, "exchange": exchange.name}
            label = f"{global_step.id}: {exchange.label}" + (f", round {number}" if exchange.rounds > 1 else "")
            step = self.add(ReduceTask, step_id, label, ranges, [global_step.stage.name], at_once=at_once, **common)
            if tables is None or own is None or not step.is_committed:
                return None
            replaced = set(exchange.outputs) & set(exchange.inputs)
            tables = {table: () if table in replaced else files for table, files in {**tables, **own}.items()}
            tables |= {table: tables.get(table, ()) + _files([step], table) for table in exchange.outputs}
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
            ranges: list[expand.Fields] = []
            group_keys: list[int] = []  # of the group of each task
            for name in wide:
                groups, merged[name] = runs.merge_groups(merged[name])
                for group in groups:
                    ranges += expand.by_range({name: group.files}, self.bucket_bytes)
                    group_keys += [group.group_key] * (len(ranges) - len(group_keys))
            step_id, label = f"{before}.merge-{level}", f"{global_step.id}: merge sorted runs of {', '.join(wide)}"
            common = {"stage": global_step.stage, "limit_bytes": self.bucket_bytes * 5 // 4}
            step = self.add(MergeTask, step_id, label, ranges, [global_step.stage.name], **common)
            if not step.is_committed:
                return None
            for record, group_key in zip(step.records, group_keys, strict=True):
                for name in record.outputs:
                    files = (file for file in record.of(name, ExchangeFile) if file.rows)
                    merged[name] += [runs.KeyedFile(group_key=group_key, file=file) for file in files]
            level += 1
        return {name: tuple(keyed.file for keyed in files) for name, files in merged.items()}

    def tokenizer(self, cleaned: Sequence[Step]) -> TokenizerFile | None:
        """The tokenizer's file, or None while it is not committed."""
        spec, training = self.mixture.tokenizer, self.mixture.tokenizer.train
        if self.request.tokenizer_content:
            content = {"content": self.request.tokenizer_content, "eos": spec.eos, "bos": spec.bos}
            self.add(TrainTask, "tokenizer/load", "load the tokenizer", [content])
            return self.plan.tokenizer
        assert training is not None
        ready = all(step.is_committed for step in cleaned)
        kept = {step.source: sum(record.metrics.document_counts.kept_bytes for record in step.records) for step in cleaned}
        shares = shares_of(self.mixture, {name: math.ceil(size / BYTES_PER_TOKEN) for name, size in kept.items()})
        fractions = sample_fractions(kept, shares, training.sample_bytes, self.mixture.validation)
        samples: list[Step] = []
        for step in cleaned:
            documents = map(expand.documents_of, step.records) if ready else None
            common = {"source": step.source, "fraction": fractions[step.source], "pattern": training.pattern}
            label = "sample text for the tokenizer"
            validation = self.mixture.validation
            samples.append(self.add(SampleTask, f"{step.source}/sample", label, documents, validation=validation, **common))
        sampled = tuple(output for step in samples for output in step.outputs("sample", TableFile))
        files = [{"samples": sampled}] if all(step.is_committed for step in samples) else None
        common = {"vocab_size": training.vocab_size, "pattern": training.pattern, "eos": training.eos}
        self.add(TrainTask, "tokenizer/train", "train the tokenizer", files, ["tokenizer/train"], **common)
        return self.plan.tokenizer

    def tokenize(self, cleaned: Step, tokenizer: TokenizerFile | None) -> Step:
        source = self.mixture.sources[cleaned.source]
        return self.add(
            TokenizeTask,
            f"{cleaned.source}/tokenize",
            "tokenize and shuffle",
            map(expand.documents_of, cleaned.records) if tokenizer is not None and cleaned.is_committed else None,
            ["tokenize"],
            source=cleaned.source,
            tokenizer=tokenizer,
            validation=self.mixture.validation,
            strata=source.strata and (source.strata.by, source.strata.bounds),
            license_column=source.license_field,
        )

    def pack(self, tokenized: Step, tokenizer: TokenizerFile | None, sequence_length: int) -> Step:
        """Packs rows of one length: `web/pack` for the first, which the output itself holds, `web/pack-8192` for another."""
        pack, shards, strata = self.mixture.pack, self.mixture.shards, self.mixture.sources[tokenized.source].strata
        is_first = sequence_length == pack.sequence_length[0]
        step_id = f"{tokenized.source}/pack" + ("" if is_first else f"-{sequence_length}")
        label = f"pack into rows of {sequence_length}"
        if tokenizer is None or not tokenized.is_committed:
            return self.add(PackTask, step_id, label, None, source=tokenized.source)
        rows: dict[expand.Part, Sequence[ExchangeFile]] = {
            ("train", stratum): tokenized.outputs(train_rows(stratum), ExchangeFile)
            for stratum in ([None] if strata is None else range(strata.count))
        }
        rows["validation", None] = tokenized.outputs("validation", ExchangeFile)
        return self.add(
            PackTask,
            step_id,
            label,
            expand.of_rows(rows, shards.target_bytes),
            ["pack"],
            source=tokenized.source,
            tokenizer_fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
            sequence_length=sequence_length,
            **pack.model_dump(exclude={"sequence_length"}),
            **shards.model_dump(),
        )

    def write(self, cleaned: Step) -> Step:
        """Writes one task per part of about `WRITTEN_BYTES`, and at least one file."""
        spec, name = self.mixture.documents, cleaned.source
        parts = expand.of_documents(cleaned.records, spec.target_bytes) if cleaned.is_committed else None
        common = {"source": name, "license_column": self.mixture.sources[name].license_field, **spec.model_dump()}
        return self.add(WriteTask, f"{name}/write", "write documents", parts, ["write"], **common)
