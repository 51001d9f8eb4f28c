"""Distributions: of what the rules of filters measured, of lengths, and of clusters of duplicates by their size.

    measured, borderline and survivors of map tasks  ─▶  sums by source, stage and rule  ─▶  records  ─▶  sections

One table is in memory at a time, beside the sums: 80 kB for each rule of one source, and a sample of clusters for each stage.
"""

import heapq
import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.columns import numbers
from datapipe.dataclass import dataclass, field, replace
from datapipe.kernels.distributions import BINS_AN_OCTAVE, LAST_BIN, NUM_BINS, bin_edges
from datapipe.metrics import total_counts
from datapipe.quantities import counted
from datapipe.report.cells import Cell, Dropped, Section, Share, Table
from datapipe.report.drawing import Bars, Bin, Histogram, cut, short
from datapipe.report.records import BY_SOURCE, Record, Summary
from datapipe.steps.kind import Step
from datapipe.steps.measuring import COLUMNS, LENGTH, RULES, ClusterSample, Measured, samples_of

RuleBin = tuple[float, float, int, int]  # low, high, passed, failed; half open
LengthBin = tuple[float, float, int, int]  # low, high, documents, bytes; half open
SizeBin = tuple[int, int, int, int]  # low, high, clusters, documents; both bounds included
SHOWN_BINS = 64  # Bins of a distribution in the report, unless it has more octaves
SHOWN_BORDERLINE = 10
"""Documents on each side of a threshold that the report names; the table of each task has 50."""

MOST_CLUSTERS = 1 << 17  # Clusters of a stage that are counted exactly; beyond them a sample is


class NearDocument(Record):
    document: str
    key: str
    value: float
    threshold: float


class Borderline(Record):
    kept: tuple[NearDocument, ...] = ()
    dropped: tuple[NearDocument, ...] = ()


class Rule(Record):
    """What one rule of a filter measured, summed over the tasks of one source."""

    option: str
    side: Literal["min", "max", "other"]
    threshold: float | None
    mode: str
    documents: int
    not_a_number: int
    passed: int
    failed: int
    passed_bytes: int
    failed_bytes: int
    dropped: int
    bins: tuple[RuleBin, ...]
    borderline: Borderline

    @property
    def failed_share(self) -> float | None:
        measured = self.passed + self.failed
        return self.failed / measured if measured else None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRule:
    """A rule with the source and the stage that have it."""

    source: str
    stage: str
    name: str
    rule: Rule

    @property
    def label(self) -> str:
        return f"{self.source}: {self.stage}:{self.name}"


class Clusters(Record):
    """Clusters of a stage by size; the numbers are estimates where `sampled` is below 1."""

    clusters: int
    dropped: int
    sampled: float
    sizes: tuple[SizeBin, ...]


class WithDistributions(Summary):
    measured: Annotated[dict[str, dict[str, dict[str, Rule]]], BY_SOURCE] = Field(default={})
    lengths: Annotated[dict[str, dict[str, tuple[LengthBin, ...]]], BY_SOURCE] = Field(default={})
    clusters: dict[str, Clusters] = Field(default={})

    def rules(self) -> list[MeasuredRule]:
        return [
            MeasuredRule(source=source, stage=stage, name=name, rule=rule)
            for source, stages in self.measured.items()
            for stage, rules in stages.items()
            for name, rule in rules.items()
        ]


def distributions(measured: Measured) -> dict[str, Any]:
    """The fields of `WithDistributions`."""
    rules: dict[str, dict[str, dict[str, Rule]]] = {}
    lengths: dict[str, dict[str, tuple[LengthBin, ...]]] = {}
    for source in dict.fromkeys(step.source for step in measured.steps):
        steps = [step for step in measured.steps if step.source == source]
        of_source = _of_source(measured, steps)
        of_lengths = of_source.pop(("", LENGTH), _Sums(facts={})).counts
        lengths[source] = {part: _bins(of_lengths[:, COLUMNS[part] :: 2]) for part in ("read", "kept")}
        dropped = total_counts(step.totals.documents for step in steps).dropped
        for (stage, rule), sums in of_source.items():
            by_stage = rules.setdefault(source, {}).setdefault(stage, {})
            by_stage[rule] = sums.rule(dropped[f"{stage}:{rule}"], measured.name_of)
    clusters = {stage: _sizes(sample) for stage, sample in samples_of(measured, MOST_CLUSTERS).items()}
    return {"measured": rules, "lengths": lengths, "clusters": clusters}


@dataclass(slots=True)
class _Sums:
    """Sums of a rule over the tasks of one source. counts: (NUM_BINS, 4) int64, documents that pass
    and that fail, and their bytes; nearest: by outcome, (distance, key, value, threshold), nearest
    first."""

    facts: dict[str, Any]
    counts: np.ndarray = field(default_factory=lambda: np.zeros((NUM_BINS, 4), np.int64))
    not_a_number: int = 0
    nearest: dict[str, list[tuple[float, bytes, float, float]]] = field(default_factory=lambda: {"kept": [], "dropped": []})

    def rule(self, dropped: int, name_of: Callable[[bytes], str]) -> Rule:
        sums = dict(zip(("passed", "failed", "passed_bytes", "failed_bytes"), self.counts.sum(axis=0).tolist()))
        nearest = {
            outcome: tuple(
                NearDocument(document=name_of(key), key=key.hex(), value=value, threshold=threshold)
                for _, key, value, threshold in documents
            )
            for outcome, documents in self.nearest.items()
        }
        return Rule(
            **self.facts,
            **sums,
            documents=sums["passed"] + sums["failed"] + self.not_a_number,
            not_a_number=self.not_a_number,
            dropped=dropped,
            bins=_bins(self.counts),
            borderline=Borderline(**nearest),
        )


def _of_source(measured: Measured, steps: list[Step]) -> dict[tuple[str, str], _Sums]:
    """The rules of a source, and its lengths: of documents as they are read, and of those that the last step keeps."""
    rules: dict[tuple[str, str], _Sums] = {}
    for step in steps:
        for batch in measured.rows("measured", [step]):
            _add_measured(batch, rules, step is steps[-1])
        for batch in measured.rows("borderline", [step]):
            _add_borderline(batch, rules)
    return rules


def _add_measured(batch: pa.RecordBatch, rules: dict[tuple[str, str], _Sums], is_last: bool) -> None:
    facts = json.loads((batch.schema.metadata or {}).get(RULES, b"{}"))
    stages, names, parts = (batch.column(name).to_pylist() for name in ("stage", "rule", "part"))
    bins, documents, sizes = (numbers(batch.column(name)) for name in ("bin", "documents", "bytes"))
    stop = 0
    for (stage, name, part), group in groupby(zip(stages, names, parts)):
        start, stop = stop, stop + sum(1 for _ in group)
        known = facts[stage][name] if stage else {}
        rule = rules.setdefault((stage, name), _Sums(facts=dict(known)))
        if known.get("threshold") != rule.facts.get("threshold"):
            rule.facts["threshold"] = None
        if part == "not_a_number":
            rule.not_a_number += int(documents[start:stop].sum())
        elif part != "kept" or is_last:
            rows = bins[start:stop].astype(np.int64) + LAST_BIN
            rule.counts[rows, COLUMNS[part] :: 2] += np.column_stack([documents[start:stop], sizes[start:stop]])


def _add_borderline(batch: pa.RecordBatch, rules: dict[tuple[str, str], _Sums]) -> None:
    added: dict[tuple[str, str, str], list[tuple[float, bytes, float, float]]] = {}
    names = ("stage", "rule", "is_dropped", "key", "value", "threshold")
    for stage, rule, is_dropped, key, value, threshold in zip(*(batch.column(name).to_pylist() for name in names)):
        entry = abs(value - threshold), key, value, threshold
        added.setdefault((stage, rule, "dropped" if is_dropped else "kept"), []).append(entry)
    for (stage, rule, outcome), entries in added.items():
        nearest = rules[stage, rule].nearest
        nearest[outcome] = heapq.nsmallest(SHOWN_BORDERLINE, [*nearest[outcome], *entries])


def _bins(counts: np.ndarray) -> tuple[tuple[float, float, int, int], ...]:
    """[low, high, number of each of the first two columns] of each bin that is not empty, ascending. Where more than
    `SHOWN_BINS` are not empty, neighbours within an octave are joined, two, four, up to all sixteen."""
    filled = np.flatnonzero(counts[:, :2].any(axis=1)) - LAST_BIN  # numbers of bins
    joined, groups = 1, filled
    while len(np.unique(groups)) > SHOWN_BINS and joined < BINS_AN_OCTAVE:
        joined *= 2
        groups = np.sign(filled) * ((np.abs(filled) - 1) // joined + 1)
    rows: list[tuple[float, float, int, int]] = []
    for group in np.unique(groups).tolist():
        first = int(np.sign(group)) * ((abs(group) - 1) * joined + 1)
        edges = (*bin_edges(first), *bin_edges(group * joined))
        one, other = counts[filled[groups == group] + LAST_BIN, :2].sum(axis=0).tolist()
        rows.append((min(edges), max(edges), one, other))
    return tuple(rows)


def _sizes(sample: ClusterSample) -> Clusters:
    """Clusters by size, the documents that stay included; sizes above 16 in octaves."""
    _, dropped = sample.clusters()
    sizes = dropped + 1
    rows: list[SizeBin] = []
    low = 2
    while len(sizes) and low <= sizes.max():
        high = low if low < BINS_AN_OCTAVE else 2 * low - 1
        chosen = sizes[(sizes >= low) & (sizes <= high)]
        if len(chosen):
            rows.append((low, high, len(chosen), int(chosen.sum())))
        low = high + 1
    share = 2.0**-sample.halvings
    return Clusters(
        clusters=round(len(sizes) / share), dropped=round(int(dropped.sum()) / share), sampled=share, sizes=tuple(rows)
    )


def filters(report: WithDistributions) -> Section:
    rules = sorted(report.rules(), key=lambda each: (-each.rule.dropped, -each.rule.failed))
    rows: list[list[Cell]] = []
    for each in rules:
        rule = each.rule
        bins = _drawn_bins(rule)
        bounds = [bins[0].low, _highest(bins[-1], is_whole=_is_whole(bins))] if bins else [None, None]
        failed = None if rule.failed_share is None else Share(rule.failed_share)
        rows.append([each.label, rule.failed, failed, rule.dropped, *bounds, condition(rule)])
    headings = ["rule", "fail", "share", "dropped", "measured from", "to", "keeps"]
    table = Table(title="Documents that fail a rule, whatever other rules decide", headings=headings, rows=rows)
    figures = [rule_figure(each) for each in rules if each.rule.dropped or (each.rule.failed and each.rule.mode == "tag")]
    return Section(anchor="filters", title="What the filters measured", tables=[table], figures=figures, noun="rule")


def condition(rule: Rule) -> str:
    """The option and threshold of a rule: "min_words at least 50"; empty where no option holds a threshold."""
    side = {"min": "at least ", "max": "at most "}.get(rule.side, "")
    if not rule.option or rule.threshold is None:
        return f"{rule.option} differs by document" if rule.option else ""
    return f"{rule.option} {side}{rule.threshold:,.12g}"


def rule_figure(each: MeasuredRule) -> Table:
    rule = each.rule
    bins = _drawn_bins(rule)
    drawing, is_whole = Histogram.of(bins, rule.threshold) if bins else None, _is_whole(bins)
    rows = [[_range(bar, is_whole=is_whole), bar.passed, bar.failed] for bar in (drawing.bins if drawing else ())]
    return Table(
        title=f"{cut(each.label, 90)}: {rule.failed_share or 0.0:.1%} of {rule.passed + rule.failed:,} documents fail",
        headings=["measured", "pass", "fail"],
        rows=[*rows, ["all", rule.passed, rule.failed]],
        drawing=drawing,
        note=" ".join(_notes(rule)),
    )


def _drawn_bins(rule: Rule) -> list[Bin]:
    """The bins of a rule. The last one ends at its lower edge where that is its only whole number: a share of 1 is in the bin
    from 1 to 1.0625, and no share is above 1."""
    bins = [Bin(low=low, high=high, passed=passed, failed=failed) for low, high, passed, failed in rule.bins]
    if bins and not _is_whole(bins) and bins[-1].low.is_integer() and bins[-1].high - bins[-1].low <= 1:
        bins[-1] = replace(bins[-1], high=bins[-1].low)
    return bins


def _is_whole(bins: Sequence[Bin]) -> bool:
    """Whether values seem to be counts: each bin begins with a whole number, also where bins are narrower than 1."""
    return all(each.low >= 0 and each.low.is_integer() for each in bins) and any(0 < each.low < 16 for each in bins)


def _highest(each: Bin, *, is_whole: bool) -> float:
    """The greatest value that a bin may hold."""
    return max(each.low, math.ceil(each.high) - 1.0) if is_whole else each.high


def _notes(rule: Rule) -> Iterator[str]:
    if words := condition(rule):
        yield f"{words}."
    if rule.mode == "tag":
        yield "mode: tag, so nothing is dropped."
    elif rule.dropped != rule.failed:
        yield f"{rule.dropped:,} are dropped for it; the others fail another rule first."
    if rule.not_a_number:
        yield f"{rule.not_a_number:,} documents have no value."
    for words, nearest in (("Just passes", rule.borderline.kept), ("Just fails", rule.borderline.dropped)):
        for document in nearest[:1]:
            yield f"{words}: {document.document} with {document.value:.4g}."


def length_figure(source: str, part: str, bins: Sequence[LengthBin]) -> Table:
    drawing = Histogram.of((Bin(low=low, high=high, passed=documents) for low, high, documents, _ in bins), is_log=True)
    total, size = sum(row[2] for row in bins), sum(row[3] for row in bins)
    return Table(
        title=f"{source}, as {part}: {total:,.0f} documents of {short(size / total)} bytes on average",
        headings=["bytes", "documents"],
        rows=[[_range(bar), bar.passed] for bar in drawing.bins],
        drawing=drawing,
    )


def _range(each: Bin, *, is_whole: bool = False) -> str:
    low, high = (f"{value:.4g}" for value in (each.low, _highest(each, is_whole=is_whole)))
    return low if low == high or (each.low == 0 and each.high < 1e-9) else f"{low} to {high}"


def lengths(report: WithDistributions) -> Section:
    order = sorted(report.lengths, key=lambda name: -report.sources[name].bytes if name in report.sources else 0)
    figures = [
        length_figure(name, part, bins) for name in order for part in ("read", "kept") if (bins := report.lengths[name][part])
    ]
    return Section(anchor="lengths", title="Lengths of documents", figures=figures, noun="distribution")


def duplicates(report: WithDistributions) -> Section:
    figures: list[Table] = []
    rows: list[list[Cell]] = []
    for stage, found in report.clusters.items():
        names = ["" if low == high else f"{low:,} to " for low, high, *_ in found.sizes]
        sizes = [[f"{name}{row[1]:,} documents", *row[2:]] for name, row in zip(names, found.sizes)]
        rows.append([stage, found.clusters, Dropped(found.dropped), found.sizes[-1][1] if sizes else 0])
        title = f"{stage}: {counted(found.dropped, 'document')} dropped in favour of {found.clusters:,}"
        sample = f"Clusters counted: a keyed sample of {found.sampled:.3%}; the title estimates all."
        note = "" if found.sampled == 1 else sample
        headings = ["size of the cluster", "clusters", "documents"]
        figures += [Table(title=title, headings=headings, rows=sizes, drawing=Bars(), note=note)] if sizes else []
    headings = ["stage", "clusters", "dropped", "largest cluster"]
    table = Table(title="Documents dropped as duplicates", headings=headings, rows=rows)
    is_sampled = any(found.sampled < 1 for found in report.clusters.values())
    return Section(
        anchor="duplicates",
        title="Duplicates by size of their cluster",
        tables=[table],
        figures=figures,
        notes=["Numbers of clusters are estimates from a sample."] if is_sampled else [],
        noun="stage",
    )
