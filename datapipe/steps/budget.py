"""The budgets of a source, `max_tokens`, and of its cells, `split.max_tokens`: documents in the order of their shuffle, as
long as their tokens fit.

    token rows ─▶ size, a task of tokenize each ─▶ hash and tokens of each document ─▶ stops, … (`stops.py`) ─▶ a hash
    sizes, facts of the kept documents, stops ─▶ limit ─▶ drops: tokenize:over_max_tokens
    token rows below the stops ─▶ pack

A document comes before another one if its shuffle hash is smaller, so a budget is a stop in the space of hashes: the greatest
prefix of documents whose tokens are at most `max_tokens`. Documents of one hash stay together. The prefix of a smaller budget
is part of it. Where files are added, the stop falls: of the documents before, a prefix of the prefix is left. Documents held
out for validation, which are in a table of their own, are not limited. Nothing here runs where all tokens fit.

Token rows of a source that is split are ordered by cell, and within a cell by their shuffle. The budget of the source is one
stop in all cells, so every cell keeps about the same share; a cell that exceeds its budget has a separate stop.

No task before packing depends on a budget but the search, so another budget repeats that, and what follows. Files that are
added to a snapshot, of which nothing is removed, get what the shards of their source, or cell, leave of the budget.

Memory: the sizes of the documents of one tokenize task.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
import pyarrow as pa

from datapipe.cell_names import chosen_values
from datapipe.columns import KEY_TYPE, full_schema, key_matrix, numbers, take_rows
from datapipe.columns import compute as pc
from datapipe.dataclass import dataclass, field
from datapipe.exchange.ranges import HASH_SPACE, read_blocks
from datapipe.exchange.tables import TableWriter, read_table
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, Outputs, Record, TableFile
from datapipe.shards import schemas
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.licenses import codes_of_documents
from datapipe.steps.costs import StepCost, Texts, seconds_of
from datapipe.steps.decisions import Drops, sortable
from datapipe.steps.grid import CellSizesMetrics, CellsMetrics, names_of
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.kind import LEFT_OUT, WHERE_GIVEN, Fields, Plan, Planning, Step, Task, entering, file_checksums
from datapipe.steps.stops import SIZES, BudgetOf, find_stops, places, read_stops
from datapipe.steps.tokenize import TokenizeMetrics, TokenizeTask, training_parts
from datapipe.storage.root import Root
from datapipe.token_counts import CountsByName

OVER = "over_max_tokens"
OVER_BUDGET = f"{TokenizeTask.kind}:{OVER}"
"""The rule of documents beyond the budget, and their reason, as that of documents that the tokenize step drops."""

_SIZES = full_schema(hash=pa.uint64(), tokens=pa.int64(), key=KEY_TYPE)
_SIZE_MB_PER_S = 150.0  # of text, whose token rows are read


@dataclass(slots=True)
class SizeMetrics:
    tokens: int = 0  # of documents to train on

    def add(self, other: Self) -> None:
        self.tokens += other.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeTask(Task):
    """Writes the hash and the tokens of each document to train on, of the rows of a tokenize task."""

    kind, version, of_tokens, metrics_type = "size", 2, True, SizeMetrics

    before: str  # fingerprint of the task that wrote `rows`
    rows: tuple[ExchangeFile, ...] = field(metadata=LEFT_OUT)

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics, writer = TaskMetrics(own=SizeMetrics()), TableWriter(root, f"{folder}/sizes.arrow")
        with metrics.timed("size documents") as work:
            for file in self.rows:
                for rows in read_blocks(root, file, (0,), (HASH_SPACE,)):
                    work.bytes, work.documents = work.bytes + rows.nbytes, work.documents + rows.num_rows
                    tokens = pc.list_value_length(rows.column("tokens")).cast(pa.int64())
                    writer.add(pa.record_batch([rows.column("hash"), tokens, rows.column("key")], schema=_SIZES))
                    metrics.of(SizeMetrics).tokens += int(pc.sum(tokens).as_py() or 0)
            return {SIZES: writer.finish()}, metrics

    @classmethod
    def plan_source(cls, planning: Planning, source: str) -> None:
        own_source, tokenized = planning.mixture.sources[source], planning.known[f"{source}/tokenize"]
        split, strata, own, budgets = own_source.split, own_source.strata, None, None
        if own_source.max_tokens is None and (split is None or not split.max_tokens):
            return
        budget_of: BudgetOf = "" if split is None else "each" if split.max_tokens else "all"
        if tokenized.is_committed:
            budgets = _short_cells(planning, source) if budget_of == "each" else _short_source(planning, tokenized)
            if budgets == {}:
                return  # all fit, with those that are held out
        if budgets is not None:
            parts = training_parts(strata and strata.bounds).values()
            own = (
                {"before": each.fingerprint, "rows": tuple(file for part in parts for file in each.of(part, ExchangeFile))}
                for each in tokenized.records
            )
        sized = planning.add(cls, f"{source}/size", "count tokens of documents", own, source=source)
        stops = find_stops(planning, source, budgets, budget_of, sized)
        if stops != ():
            LimitTask.plan_after(planning, source, sized, stops, budget_of)

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
    """Drops the documents of a tokenize task that are beyond a budget."""

    kind, version, of_tokens, metrics_type = "limit", 1, True, LimitMetrics
    options = ("sources.SOURCE.max_tokens", "sources.SOURCE.split.max_tokens", "sources.SOURCE.license_field")

    before: str  # fingerprint of the tokenize task, from which what follows does but for the stops
    sizes: tuple[TableFile, ...] = field(metadata=LEFT_OUT)
    kept: tuple[TableFile, ...] = field(metadata=LEFT_OUT)  # facts of the documents that were tokenized
    stops: tuple[TableFile, ...] = field(metadata=entering(file_checksums))
    budget_of: BudgetOf = field(default="", metadata=WHERE_GIVEN)
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
        has_stop, stops = read_stops(root, self.stops)
        for sizes in (rows for file in self.sizes for rows in read_table(root, file)):
            cells, hashes = places(numbers(sizes.column("hash")), self.budget_of)
            over = np.flatnonzero(has_stop[cells] & (hashes >= stops[cells]))
            keys.append(sortable(key_matrix(sizes.column("key"))[over]))
            tokens.append(numbers(sizes.column("tokens"))[over])
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
    def plan_after(
        cls, planning: Planning, source: str, sized: Step, stops: tuple[TableFile, ...] | None, budget_of: BudgetOf
    ) -> None:
        cleaned, tokenized = planning.cleaned(source), planning.known[f"{source}/tokenize"]
        tokenizer, own = planning.plan.tokenizer, None
        if stops is not None and tokenizer is not None:
            own = _limited(zip(sized.records, cleaned.records, tokenized.records, strict=True))
        column = planning.mixture.sources[source].license_field
        about = {"stops": stops, "budget_of": budget_of, "license_column": column}
        about["around"] = 1 + (tokenizer is not None and tokenizer.bos_id is not None)
        planning.add(cls, f"{source}/limit", "drop documents beyond max_tokens", own, source=source, **about)

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        sizes = growth.steps[f"{step.source}/size"].writes.get(SIZES, Files())
        kept = growth.steps[growth.cleaned(step.source)].writes.get("kept", Files())
        growth.add(step, growth.sources[step.source].tasks, Reads.whole(sizes), Reads.whole(kept))


def _limited(records: Iterable[tuple[Record, Record, Record]]) -> Iterator[Fields]:
    """The fields of a limit task for each record of size, of cleaning and of tokenize."""
    for sized, cleaned, tokenized in records:
        counts = tokenized.metrics.document_counts
        files = {"sizes": sized.of(SIZES, TableFile), "kept": cleaned.of("kept", TableFile)}
        yield {"before": tokenized.fingerprint, **files, "num_docs": counts.kept, "text_bytes": counts.kept_bytes}


def _short_source(planning: Planning, tokenized: Step) -> dict[int, int]:
    """The tokens that the source may have, by 0, where it has more with those held out; of files that are added, what those of
    the snapshot leave."""
    source, before = tokenized.source, planning.request.added_to
    shards = () if before is None else before.shards_of(source, "train")
    left = max(0, (planning.mixture.sources[source].max_tokens or 0) - sum(shard.tokens for shard in shards))
    return {0: left} if tokenized.own(TokenizeMetrics).tokens > left else {}


def _short_cells(planning: Planning, source: str) -> dict[int, int] | None:
    """By number, the tokens that cells may have which may have more: by the size of their rows, as for `_short_source`. None
    while the sizes are not known."""
    split, summed, tokenizer = (
        planning.mixture.sources[source].split,
        planning.known[f"{source}/cell-sizes"],
        planning.plan.tokenizer,
    )
    if split is None or tokenizer is None or not summed.is_committed:
        return None
    before, used = planning.request.added_to, Counter[int]()
    for shard in () if before is None else before.shards_of(source, "train"):
        for run in shard.cells or ():
            used[run.cell] += run.tokens
    id_bytes = schemas.token_type(tokenizer.vocab_size).bit_width // 8
    sizes = summed.records[0].metrics.of(CellSizesMetrics).bytes
    budgets = enumerate(chosen_values(split.max_tokens, names_of(planning.plan, source), None))
    left = {cell: max(0, budget - used[cell]) for cell, budget in budgets if budget is not None}
    return {cell: budget for cell, budget in left.items() if sizes[cell] > budget * id_bytes}


def budget_shares(growth: Growth, source: str) -> tuple[float, float]:
    """The share of its tokens that a source has room for, before and at the other size; 1 without budgets, and where no run
    has measured the cells that have some."""
    spec, tokens, factor = (
        growth.mixture.sources[source],
        growth.steps[f"{source}/tokenize"].tokens,
        growth.sources[source].factor,
    )
    sizes, budgets = [1], [spec.max_tokens]
    if spec.split is not None and spec.split.max_tokens:
        listed, summed = (growth.steps[f"{source}/{step}"].metrics for step in ("cells", "cell-sizes"))
        names = () if listed is None else listed.of(CellsMetrics).names
        sizes = () if summed is None else summed.of(CellSizesMetrics).bytes
        budgets = chosen_values(spec.split.max_tokens, names, None)
    num_bytes = sum(sizes)

    def share(tokens: float) -> float:
        parts = (tokens * size / num_bytes for size in sizes)
        kept = sum(part if budget is None else min(part, budget) for part, budget in zip(parts, budgets, strict=True))
        return kept / tokens

    return (share(tokens / factor), share(tokens)) if tokens and num_bytes else (1.0, 1.0)
