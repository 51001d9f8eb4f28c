"""Keeping a share of a source: the scores that map tasks write, the tasks that find the cut, and its application.

map ─▶ documents with the column STAGE.below_share, and a file of scores ─▶ rank ─▶ narrow ─▶ … ─▶ the cut ─▶ map
"""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.columns import key_halves, numbers, ordered, text_lengths
from datapipe.exchange.partitions import TableWriter, read_table
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import OutputFile, Outputs
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.base import BELOW_SHARE, Filter, FilterResult, KeptShare
from datapipe.stage.documents import DocumentBatch
from datapipe.steps.cut import SCORES_SCHEMA, Cut, Ranked, is_kept, narrowed
from datapipe.steps.rank_plan import NarrowTask, RankTask, scores_of
from datapipe.steps.work import BoundStage
from datapipe.storage.root import Root


def run_rank(task: RankTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """The summary of some files of scores in an interval."""
    metrics, ranked = TaskMetrics(), Ranked(task.interval)
    with metrics.timed(f"{task.stage}: summarise scores") as work:
        for file in task.scores:
            for rows in read_table(root, file):
                ranked.add(rows)
                work.bytes += rows.nbytes
        writer = TableWriter(root, f"{folder}/summary.arrow")
        writer.add(ranked.summary())
    return {"summary": writer.finish()}, metrics


def run_narrow(task: NarrowTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """The narrower interval, or the cut. It is small, so it stands in the record and there is no file."""
    metrics = TaskMetrics()
    with metrics.timed(f"{task.stage}: find the cut") as work:
        summaries = [rows for file in task.summaries for rows in read_table(root, file)] or [_EMPTY]
        work.bytes = sum(summary.nbytes for summary in summaries)
        metrics.cut = asdict(narrowed(summaries, task.interval, task.share.share))
    return {}, metrics


_EMPTY = Ranked(Cut()).summary()


class ScoreWriter:
    """Writes the scores of a map task's documents, for a filter whose cut is not known yet."""

    def __init__(self, root: Root, folder: str, bound: BoundStage, share: KeptShare, seed: int) -> None:
        self.name, self._of, self._seed = bound.name, share.of, tie_seed(bound, seed)
        self._table = TableWriter(root, f"{folder}/scores.arrow")

    def with_scores(self, stage: Filter, batch: DocumentBatch, result: FilterResult) -> FilterResult:
        """Writes the scores of the documents that pass the other rules, and adds the column of scores to all."""
        scores = measured_scores(stage, result)
        weights = text_lengths(batch.texts) if self._of == "bytes" else np.ones(batch.num_docs, np.int64)
        arrays = [ordered(scores), keyed_hash(key_halves(batch.keys), self._seed), weights.astype(np.int64)]
        passed = result.rule < 0
        self._table.add(pa.record_batch([pa.array(array[passed]) for array in arrays], schema=SCORES_SCHEMA))
        return replace(result, columns={**result.columns, score_column(self.name): pa.array(scores)})

    def finish(self) -> dict[str, tuple[OutputFile, ...]]:
        return {scores_of(self.name): self._table.finish()}


def tie_seed(bound: BoundStage, seed: int) -> int:
    """The seed of the keyed hash that orders documents of one score."""
    return seed_for(seed, bound.name, BELOW_SHARE)


def measured_scores(stage: Filter, result: FilterResult) -> np.ndarray:
    """What the last rule of a filter that keeps a share measured: (num_docs,) float64."""
    return np.asarray(result.measured[len(stage.rules()) - 1], np.float64)


def score_column(name: str) -> str:
    """The column that carries the scores of a filter to the step that applies its cut; in `mode: tag` it stays."""
    return f"{name}.{BELOW_SHARE}"


def with_cut(bound: BoundStage, seed: int, batch: DocumentBatch, result: FilterResult) -> FilterResult:
    """The decisions of a filter with those of its cut, which is known: documents below it fail the last rule."""
    stage, cut = bound.stage, bound.cut
    assert isinstance(stage, Filter)
    assert cut is not None
    rules, scores = stage.rules(), measured_scores(stage, result)
    ties = keyed_hash(key_halves(batch.keys), tie_seed(bound, seed))
    failed = (result.rule < 0) & ~is_kept(cut, ordered(scores), ties)
    limits = np.array([rule.limit for rule in rules])[result.rule] if result.limit is None else result.limit
    return replace(
        result,
        keep=result.keep & ~failed,
        rule=np.where(failed, len(rules) - 1, result.rule).astype(np.int16),
        value=np.where(failed, scores, result.value),
        limit=np.where(failed, cut.threshold, limits),
    )


def of_scored(bound: BoundStage, seed: int, batch: DocumentBatch) -> FilterResult:
    """The decisions of a cut on documents that the step before has scored. Those that it tagged fail no other rule."""
    stage, names = bound.stage, batch.record.schema.names
    assert isinstance(stage, Filter)
    scores, tag = numbers(batch.record.column(score_column(bound.name))), f"{bound.name}.rule"
    is_tagged = numbers(batch.record.column(tag).is_valid()) if tag in names else np.zeros(batch.num_docs, np.bool_)
    rule = np.where(is_tagged, 0, -1).astype(np.int16)
    keep = np.ones(batch.num_docs, np.bool_)
    scored = FilterResult(keep=keep, rule=rule, value=scores, measured=(scores,) * len(stage.rules()))
    return with_cut(bound, seed, batch, scored)


def tagged(bound: BoundStage, batch: DocumentBatch, result: FilterResult) -> DocumentBatch:
    """The documents with their tags, where `mode: tag` keeps those below the cut."""
    below = pa.array(~result.keep)
    tags = {name: f"{bound.name}.{name}" for name in ("rule", "value")}
    rules, values = (batch.record.column(name) for name in tags.values())
    scores = batch.record.column(score_column(bound.name))
    return batch.with_columns(
        {
            tags["rule"]: pc.if_else(below, pa.scalar(BELOW_SHARE, rules.type), rules),
            tags["value"]: pc.if_else(below, scores, values),
        }
    )
