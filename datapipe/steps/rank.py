"""Keeping a share of a source: the scores that map tasks write, the tasks that find the cut, and its application.

    map ─▶ documents with the column STAGE.below_share, and a file of scores
    scores of all map tasks ─▶ rank, some files each ─▶ summaries ─▶ narrow, one task ─▶ an interval ─▶ rank ─▶ … ─▶ the cut
    documents, the cut ─▶ map

`cut.py` narrows the interval. The result of `narrow` stands in its record, so the plan knows it without reading a file.
Several cuts, as the quantiles of a split are, are found in the same rounds: each has its interval."""

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, cast

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.columns import key_halves, numbers, ordered, text_lengths
from datapipe.dataclass import asdict, dataclass, field, replace
from datapipe.exchange.tables import TableWriter, read_table
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import Outputs, TableFile
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.base import BELOW_SHARE, Filter, FilterResult
from datapipe.stage.documents import DocumentBatch
from datapipe.steps.cut import SCORES_SCHEMA, Cut, Ranked, is_kept, narrowed
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.kind import Plan, Planning, Step, Task, entering, file_checksums
from datapipe.steps.measuring import Measurement
from datapipe.steps.pipeline import BoundStage, RankingStep
from datapipe.storage.root import Root

_SPLIT = "split."


@dataclass(frozen=True, kw_only=True, slots=True)
class _OfFilter(Task):
    """A task that finds cuts. `stage`: the name of the filter in the run, or of what else they are of. `interval`: holds the
    cut; of several cuts an interval each."""

    stage: str
    interval: tuple[Cut, ...] = field(metadata=entering(lambda cuts: _alone([asdict(cut) for cut in cuts])))

    @classmethod
    def stages_of(cls, plan: Plan, step: Step, source: str) -> Iterable[BoundStage]:
        return [bound for bound in chain(*plan.pipeline.segments[source]) if bound.name == _filter_of(step.id)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTask(_OfFilter):
    """Summarises the scores of some map tasks in intervals: a batch of `SUMMARY_SCHEMA` for each."""

    kind, version = "rank", 1

    scores: tuple[TableFile, ...] = field(metadata=entering(file_checksums))

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics, all_ranked = TaskMetrics(), [Ranked(interval, len(self.interval)) for interval in self.interval]
        with metrics.timed(f"{self.stage}: summarise scores") as work:
            for file in self.scores:
                for rows in read_table(root, file):
                    work.bytes += rows.nbytes
                    for ranked in all_ranked:
                        ranked.add(rows)
            writer = TableWriter(root, f"{folder}/summary.arrow")
            while all_ranked:
                writer.add(all_ranked.pop(0).summary())
        return {"summary": writer.finish()}, metrics

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        kind = scores_of(_filter_of(step.id))
        written = (each.writes.get(kind) for each in growth.steps.values() if each.source == step.source)
        scores = next(filter(None, written), Files())
        a_task = max(1, growth.bucket_bytes // 4 * scores.number // (scores.row_bytes or 1))
        growth.add(step, math.ceil(scores.number / a_task), Reads.whole(scores))


@dataclass(frozen=True, slots=True)
class NarrowMetrics:
    """Intervals or cuts. They are so small that they stand in the record, and a narrow task writes no file."""

    cut: Cut = field(default_factory=Cut)
    further: tuple[Cut, ...] = ()  # where there are several

    @property
    def cuts(self) -> tuple[Cut, ...]:
        return (self.cut, *self.further)


@dataclass(frozen=True, kw_only=True, slots=True)
class NarrowTask(_OfFilter):
    """Narrows the intervals by the summaries of a source, down to the cuts. Cuts that are found stay."""

    kind, version = "narrow", 1

    summaries: tuple[TableFile, ...] = field(metadata=entering(file_checksums))
    share: tuple[Fraction, ...] = field(metadata=entering(lambda shares: _alone([str(share) for share in shares])))

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics = TaskMetrics()
        with metrics.timed(f"{self.stage}: find the cut") as work:
            sought = sought_in(self.interval)
            files = [[*read_table(root, file)] for file in self.summaries] or [[Ranked(Cut()).summary()] * len(sought)]
            work.bytes = sum(summary.nbytes for summaries in files for summary in summaries)
            of_interval = dict(zip(sought, zip(*files, strict=True), strict=True))
            cuts = [
                cut if cut.is_found else narrowed(of_interval[bounds_of(cut)], cut, share)
                for cut, share in zip(self.interval, self.share, strict=True)
            ]
            metrics.own = NarrowMetrics(cuts[0], tuple(cuts[1:]))
        return {}, metrics

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        ranked = growth.steps[step.id.replace("/narrow-", "/rank-")]
        growth.add(step, 1, *map(Reads.whole, ranked.writes.values()))


def bounds_of(interval: Cut) -> Cut:
    """What a summary of an interval depends on."""
    return Cut(kept=interval.kept, dropped=interval.dropped)


def sought_in(intervals: Iterable[Cut]) -> tuple[Cut, ...]:
    """The intervals to summarise: of those whose cut is not found, each once."""
    return tuple(dict.fromkeys(bounds_of(interval) for interval in intervals if not interval.is_found))


def _alone(values: list[Any]) -> Any:
    """A single value by itself."""
    return values[0] if len(values) == 1 else values


def name_in_split(column: str) -> str:
    """The name under which the scores of a column by which a source is split are ranked."""
    return f"{_SPLIT}{column}"


def scores_of(stage: str) -> str:
    return f"scores.{stage}"


def find_cut(planning: Planning, source: str, ending: RankingStep, scored: Step) -> BoundStage | None:
    """The filter with the cut of its share, or None while that is not committed. Files that are added
    have the cut that an earlier step found."""
    assert ending.stage.share is not None
    cuts = find_cuts(planning, source, ending.stage.name, [ending.stage.share.share], scored)
    return None if cuts is None else replace(ending.stage, cut=cuts[0])


def find_cuts(planning: Planning, source: str, name: str, shares: Sequence[Fraction], scored: Step) -> tuple[Cut, ...] | None:
    """The cuts that keep shares of the scores that a step wrote under a name. Otherwise as `find_cut`."""
    known = found_cuts(planning.plan.earlier, source, name)
    if known is not None:
        return known
    scores = scored.outputs(scores_of(name), TableFile) if scored.is_committed else ()
    cuts, number, what = (Cut(),) * len(shares), 0, "cuts" if len(shares) > 1 else "cut"
    while not all(cut.is_found for cut in cuts):
        number += 1
        common = {"source": source, "stage": name}
        groups = ({"scores": files, "interval": sought_in(cuts)} for files in file_groups(scores, planning.bucket_bytes // 4))
        step_id, label = f"{source}/rank-{name}-{number}", f"{name}: summarise scores, round {number}"
        ranked = planning.add(RankTask, step_id, label, groups if scored.is_committed else None, **common)
        step_id, label = f"{source}/narrow-{name}-{number}", f"{name}: find the {what}, round {number}"
        own = [{"summaries": ranked.outputs("summary", TableFile), "share": tuple(shares), "interval": cuts}]
        narrowed = planning.add(NarrowTask, step_id, label, own if ranked.is_committed else None, **common)
        if not narrowed.is_committed:
            return None
        cuts = narrowed.records[0].metrics.of(NarrowMetrics).cuts
    return cuts


def file_groups(files: Sequence[TableFile], group_bytes: int) -> Iterator[tuple[TableFile, ...]]:
    """Files with rows, together about `group_bytes` in memory."""
    group: list[TableFile] = []
    for file in files:
        if group and sum(each.row_bytes for each in group) + file.row_bytes > group_bytes:
            yield tuple(group)
            group = []
        if file.rows:
            group.append(file)
    if group:
        yield tuple(group)


def filters_with_cuts(plan: Plan) -> dict[str, dict[str, BoundStage]]:
    """By source and name, the filters that keep a share, with their cuts: found by this run, or taken from an earlier one."""
    filters: dict[str, dict[str, BoundStage]] = {}
    for source, segments in plan.pipeline.segments.items():
        for bound in chain(*segments):
            found = found_cuts(plan.steps, source, bound.name) if bound.is_scored else None
            cut = bound.cut if found is None else found[0]
            if cut is not None:
                filters.setdefault(source, {})[bound.name] = replace(bound, cut=cut)
    return filters


def found_cuts(steps: Iterable[Step], source: str, name: str) -> tuple[Cut, ...] | None:
    """The cuts that steps have found under a name, or None."""
    narrow = (step for step in steps if (step.kind, step.source) == (NarrowTask.kind, source) and _filter_of(step.id) == name)
    found = (own.cuts for step in narrow for own in step.numbers(NarrowMetrics))
    return next((cuts for cuts in found if all(cut.is_found for cut in cuts)), None)


def _filter_of(step_id: str) -> str:
    return step_id.partition("/")[2].partition("-")[2].rpartition("-")[0]


class Scores(Measurement):
    """The scores of documents that pass the other rules of a filter."""

    def __init__(self, root: Root, folder: str, bound: BoundStage, seed: int) -> None:
        assert bound.share is not None
        self._name, self._of, self._seed = bound.name, bound.share.of, tie_seed(bound, seed)
        self._table = TableWriter(root, f"{folder}/scores.arrow")

    def decided(self, bound: BoundStage, batch: DocumentBatch, result: FilterResult, *, of_cut: bool = False) -> None:
        if of_cut or bound.name != self._name:
            return
        scores = measured_scores(cast(Filter, bound.stage), result)
        weights = text_lengths(batch.texts) if self._of == "bytes" else np.ones(batch.num_docs, np.int64)
        arrays = [ordered(scores), keyed_hash(key_halves(batch.keys), self._seed), weights.astype(np.int64)]
        passed = result.rule < 0
        self._table.add(pa.record_batch([pa.array(array[passed]) for array in arrays], schema=SCORES_SCHEMA))

    def finish(self) -> Outputs:
        return {scores_of(self._name): self._table.finish()}


def tie_seed(bound: BoundStage, seed: int) -> int:
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
    keep, measured = np.ones(batch.num_docs, np.bool_), (scores,) * len(stage.rules())
    return with_cut(bound, seed, batch, FilterResult(keep=keep, rule=rule, value=scores, measured=measured))


def tagged(bound: BoundStage, batch: DocumentBatch, result: FilterResult) -> DocumentBatch:
    """The documents with their tags, where `mode: tag` keeps those below the cut."""
    below, record = pa.array(~result.keep), batch.record
    rules = record.column(f"{bound.name}.rule")
    rules = pc.if_else(below, pa.scalar(BELOW_SHARE, rules.type), rules)
    values = pc.if_else(below, record.column(score_column(bound.name)), record.column(f"{bound.name}.value"))
    return batch.with_columns({f"{bound.name}.rule": rules, f"{bound.name}.value": values})
