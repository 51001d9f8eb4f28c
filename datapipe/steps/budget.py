"""The budget of a source, `max_tokens`: its documents in the order of their shuffle, as long as their tokens fit.

    token rows ─▶ size, a task of tokenize each ─▶ scores (hash, tokens) ─▶ rank, narrow, … (`rank.py`) ─▶ the cut
    sizes, facts of the kept documents, the cut ─▶ limit ─▶ drops: tokenize:over_max_tokens
    token rows below the cut ─▶ pack

A document comes before another one if its shuffle hash is smaller, so the budget is a stop in the space of hashes: the greatest
prefix of documents whose tokens are at most `max_tokens`. Documents of one hash stay together. The prefix of a smaller budget
is part of it. Where files are added, the stop falls: of the documents before, a prefix of the prefix is left. Documents held
out for validation, which are in a table of their own, are not limited. Nothing here runs where all tokens fit.

The cut is that of a share: the budget of all tokens to train on, which `size` counts. Budgets of several ranges of hashes would
be several cuts of the same order: of each range the share of the tokens before it and its budget.

Token rows of a source that is split are ordered by cell, and within a cell by their shuffle. Its budget is one stop in all
cells, so every cell keeps about the same share.

No task before packing depends on the budget, so another budget repeats `narrow`, perhaps a round of `rank`, and what follows.
Files that are added to a snapshot, of which nothing is removed, get what the shards of their source leave of the budget.

Memory: the sizes of the documents of one tokenize task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Self

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_TYPE, key_matrix, numbers, take_rows
from datapipe.columns import compute as pc
from datapipe.exchange.ranges import HASH_SPACE, read_blocks
from datapipe.exchange.tables import TableWriter, read_table
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, Outputs, Record, TableFile
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.licenses import codes_of_documents
from datapipe.steps.cells import CELL_SHIFT
from datapipe.steps.costs import StepCost, Texts, seconds_of
from datapipe.steps.cut import SCORES_SCHEMA, Cut, is_kept
from datapipe.steps.decisions import Drops, sortable
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.kind import LEFT_OUT, WHERE_GIVEN, Fields, Plan, Planning, Step, Task, entering
from datapipe.steps.rank import BUDGET, find_cuts, found_cuts, scores_of
from datapipe.steps.tokenize import TokenizeMetrics, TokenizeTask, training_parts
from datapipe.storage.root import Root
from datapipe.token_counts import CountsByName

OVER = "over_max_tokens"
OVER_BUDGET = f"{TokenizeTask.kind}:{OVER}"
"""The rule of documents beyond the budget, and their reason, as that of documents that the tokenize step drops."""

_SIZES = pa.schema([*SCORES_SCHEMA, pa.field("key", KEY_TYPE, nullable=False)])
_CELL_BITS = 64 - CELL_SHIFT
_SIZE_MB_PER_S = 150.0  # of text, whose token rows are read


@dataclass(slots=True)
class SizeMetrics:
    tokens: int = 0  # of documents to train on

    def add(self, other: Self) -> None:
        self.tokens += other.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeTask(Task):
    """Writes the tokens of each document to train on, of the rows of a tokenize task, as scores: the lowest hash is highest."""

    kind, version, of_tokens, metrics_type = "size", 1, True, SizeMetrics

    name: str  # of the cut, by which its scores go
    before: str  # fingerprint of the task that wrote `rows`
    rows: tuple[ExchangeFile, ...] = field(metadata=LEFT_OUT)
    has_cells: bool = field(default=False, metadata=WHERE_GIVEN)  # then the first bits of a hash are the number of a cell

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics, writer = TaskMetrics(own=SizeMetrics()), TableWriter(root, f"{folder}/sizes.arrow")
        with metrics.timed("size documents") as work:
            for file in self.rows:
                for rows in read_blocks(root, file, (0,), (HASH_SPACE,)):
                    work.bytes, work.documents = work.bytes + rows.nbytes, work.documents + rows.num_rows
                    tokens = pc.list_value_length(rows.column("tokens")).cast(pa.int64())
                    hashes = numbers(rows.column("hash")) << np.uint64(_CELL_BITS if self.has_cells else 0)
                    scores, ties = pa.array(~hashes), pa.repeat(pa.scalar(0, pa.uint64()), rows.num_rows)
                    writer.add(pa.record_batch([scores, ties, tokens, rows.column("key")], schema=_SIZES))
                    metrics.of(SizeMetrics).tokens += int(pc.sum(tokens).as_py() or 0)
            return {scores_of(self.name): writer.finish()}, metrics

    @classmethod
    def plan_source(cls, planning: Planning, source: str) -> None:
        budget = _left_of_budget(planning, source)
        tokenized = planning.known[f"{source}/tokenize"]
        if budget is None or (tokenized.is_committed and tokenized.own(TokenizeMetrics).tokens <= budget):
            return  # all fit, with those that are held out
        strata, own = planning.mixture.sources[source].strata, None
        if tokenized.is_committed:
            parts = training_parts(strata and strata.bounds).values()
            own = (
                {"before": each.fingerprint, "rows": tuple(file for part in parts for file in each.of(part, ExchangeFile))}
                for each in tokenized.records
            )
        name = _name(planning)
        common = {"source": source, "name": name, "has_cells": planning.mixture.sources[source].split is not None}
        sized = planning.add(cls, f"{source}/size", "count tokens of documents", own, **common)
        tokens = sized.own(SizeMetrics).tokens
        share = Fraction(min(budget, tokens), tokens or 1)  # exact, so that of all tokens it is the budget
        cuts = find_cuts(planning, source, name, [share], sized)
        LimitTask.plan_after(planning, source, sized, None if cuts is None else cuts[0], budget)

    @classmethod
    def cost(cls, plan: Plan, step: Step, texts: Texts) -> Iterator[StepCost]:
        yield StepCost(seconds=seconds_of(texts.cleaned[step.source], _SIZE_MB_PER_S))

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        written = growth.steps[f"{step.source}/tokenize"].writes
        strata = growth.mixture.sources[step.source].strata
        parts = [written.get(name, Files()) for name in training_parts(strata and strata.bounds).values()]
        growth.add(step, growth.sources[step.source].tasks, *map(Reads.whole, parts))


@dataclass(slots=True)
class LimitMetrics:
    """Of the documents that a limit task drops: their tokens, and their counts by licence as those of `TokenizeMetrics`."""

    tokens: int = 0
    licenses: CountsByName = field(default_factory=CountsByName)

    def add(self, other: Self) -> None:
        self.tokens += other.tokens
        self.licenses.add(other.licenses)


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitTask(Task):
    """Drops the documents of a tokenize task that are beyond the budget."""

    kind, version, of_tokens, metrics_type = "limit", 1, True, LimitMetrics
    options = (f"sources.SOURCE.{BUDGET}", "sources.SOURCE.license_field")

    before: str  # fingerprint of the tokenize task, from which what follows does but for the cut
    sizes: tuple[TableFile, ...] = field(metadata=LEFT_OUT)
    kept: tuple[TableFile, ...] = field(metadata=LEFT_OUT)  # facts of the documents that were tokenized
    cut: Cut = field(metadata=entering(lambda cut: cut.kept and asdict(cut.kept)))
    # num_docs, text_bytes: of the documents that the tokenize task has kept
    num_docs: int = field(metadata=LEFT_OUT)
    text_bytes: int = field(metadata=LEFT_OUT)
    license_column: str | None = None  # as that of `TokenizeTask`
    around: int = 0  # tokens that begin and end a document, which counts by licence leave out

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics = TaskMetrics(own=LimitMetrics())
        counts, own = metrics.document_counts, metrics.of(LimitMetrics)
        counts.read, counts.read_bytes, counts.kept_bytes = self.num_docs, self.text_bytes, self.text_bytes
        drops = Drops(root, folder, self.source, counts)
        with metrics.timed("limit tokens", num_docs=self.num_docs):
            keys, tokens = self._beyond(root)
            for facts in read_table(root, self.kept[0], self._columns) if self.kept and len(keys) else ():
                known = sortable(key_matrix(facts.column("key")))
                places = np.minimum(np.searchsorted(keys, known), len(keys) - 1)
                rows = np.flatnonzero(keys[places] == known)
                if len(rows):
                    over = take_rows(facts, rows)
                    self._drop(over, tokens[places[rows]], drops, own)
        counts.kept = counts.read - counts.dropped.total()
        assert counts.dropped.total() == len(keys), "documents without facts"
        return drops.finish(), metrics

    def _beyond(self, root: Root) -> tuple[np.ndarray, np.ndarray]:
        """The documents beyond the budget: their keys as byte strings, ascending, and their tokens, (num_docs,) int64."""
        keys, tokens = [np.empty(0, "S16")], [np.empty(0, np.int64)]
        for sizes in (rows for file in self.sizes for rows in read_table(root, file)):
            scores, ties = (numbers(sizes.column(name)) for name in ("score", "tie"))
            over = np.flatnonzero(~is_kept(self.cut, scores, ties))
            keys.append(sortable(key_matrix(sizes.column("key"))[over]))
            tokens.append(numbers(sizes.column("weight"))[over])
        order = np.argsort(joined := np.concatenate(keys))
        return joined[order], np.concatenate(tokens)[order]

    @property
    def _columns(self) -> list[str]:
        return ["key", "id", "bytes", *([] if self.license_column is None else [self.license_column])]

    def _drop(self, facts: pa.RecordBatch, tokens: np.ndarray, drops: Drops, own: LimitMetrics) -> None:
        """Drops the documents of some facts, which have `tokens` (num_docs,) int64."""
        number, lengths = len(tokens), numbers(facts.column("bytes"))
        nothing = pa.nulls(number, pa.float64())
        rows, rules = np.arange(number), pa.repeat(OVER, number)
        drops.drop(DocumentBatch(facts), rows, TokenizeTask.kind, rules, tokens.astype(np.float64), nothing)
        drops.counts.kept_bytes -= int(lengths.sum())
        own.tokens += int(tokens.sum())
        if self.license_column is not None:
            ones = np.ones_like(tokens)
            counted = np.stack([ones, lengths, np.zeros_like(tokens), tokens - self.around], axis=1)
            own.licenses.count(*codes_of_documents(facts, self.license_column), counted)

    @classmethod
    def plan_after(cls, planning: Planning, source: str, sized: Step, cut: Cut | None, budget: int) -> None:
        cleaned, tokenized = planning.cleaned(source), planning.known[f"{source}/tokenize"]
        tokenizer, own = planning.plan.tokenizer, None
        if cut is not None and tokenizer is not None:
            own = _limited(_name(planning), cut, zip(sized.records, cleaned.records, tokenized.records, strict=True))
        about = f"drop documents beyond {budget:,} tokens"
        column = planning.mixture.sources[source].license_field
        around = 1 + (tokenizer is not None and tokenizer.bos_id is not None)
        planning.add(cls, f"{source}/limit", about, own, source=source, license_column=column, around=around)

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        sizes = growth.steps[f"{step.source}/size"].writes.get(scores_of(BUDGET), Files())
        kept = growth.steps[growth.cleaned(step.source)].writes.get("kept", Files())
        growth.add(step, growth.sources[step.source].tasks, Reads.whole(sizes), Reads.whole(kept))


def _limited(name: str, cut: Cut, records: Iterable[tuple[Record, Record, Record]]) -> Iterator[Fields]:
    """The fields of a limit task for each record of size, of cleaning and of tokenize."""
    for sized, cleaned, tokenized in records:
        counts = tokenized.metrics.document_counts
        files = {"sizes": sized.of(scores_of(name), TableFile), "kept": cleaned.of("kept", TableFile)}
        yield {"before": tokenized.fingerprint, **files, "cut": cut, "num_docs": counts.kept, "text_bytes": counts.kept_bytes}


def _left_of_budget(planning: Planning, source: str) -> int | None:
    """The tokens that the source may have; of files that are added, what those of the snapshot leave. None: no limit."""
    budget, before = planning.mixture.sources[source].max_tokens, planning.request.added_to
    if budget is None or before is None:
        return budget
    own = (shard for shard in before.shards if (shard.source, shard.split) == (source, "train"))
    return max(0, budget - sum(shard.tokens for shard in own))


def _name(planning: Planning) -> str:
    """The name of the cut: of files that are added, another one for each generation."""
    part = planning.request.part
    return BUDGET if part is None else f"{BUDGET}+{part}"


def budget_stop(planning: Planning, source: str) -> int | None:
    """The shuffle hash before which documents to train on are packed: `HASH_SPACE` for all; None while it is not known."""
    if f"{source}/size" not in planning.known:
        return HASH_SPACE
    cuts = found_cuts(planning.plan.steps, source, _name(planning))
    if cuts is None or cuts[0].kept_documents == cuts[0].documents:
        return None if cuts is None else HASH_SPACE
    return 0 if cuts[0].kept is None else HASH_SPACE - cuts[0].kept.score


def budget_shares(growth: Growth, source: str) -> tuple[float, float]:
    """The share of its tokens that a source has room for, before and at the other size; 1 without a budget."""
    budget, tokens = growth.mixture.sources[source].max_tokens, growth.steps[f"{source}/tokenize"].tokens
    if budget is None or not tokens:
        return 1.0, 1.0
    return min(1.0, budget * growth.sources[source].factor / tokens), min(1.0, budget / tokens)
