"""What the committed map tasks of a run measured and found, for its report.

    measured, borderline and survivors  ─▶  sums by source, stage and rule  ─▶  `measured`, `lengths`, `clusters`
    findings of filters that search     ─▶  entries of evaluation sets      ─▶  `contamination`

One table is in memory at a time, beside the sums: 80 kB for each source and rule, and a sample of the clusters of each stage.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.columns import numbers
from datapipe.exchange.tables import read_table
from datapipe.kernels.distributions import BINS_AN_OCTAVE, LAST_BIN, NUM_BINS, bin_edges
from datapipe.metrics import total_counts
from datapipe.records.outputs import TableFile
from datapipe.report.report import Borderline, Clusters, LengthBin, NearDocument, Rule, SearchedSet, SizeBin
from datapipe.steps.kind import Step
from datapipe.steps.measuring import LENGTH, ClusterSample, read_samples, rules_of
from datapipe.steps.read_batches import MapMetrics
from datapipe.storage.root import Root

NameOf = Callable[[bytes], str]  # the name of a document by its key
SHOWN_BINS = 64  # Bins of a distribution in the report, unless it has more octaves
SHOWN_BORDERLINE = 10
"""Documents on each side of a threshold that the report names; the table of each task has 50."""

MOST_CLUSTERS = 1 << 17  # Clusters of a stage that are counted exactly; beyond them a sample is
_PARTS = {"passed": 0, "failed": 1}


@dataclass(slots=True)
class _Sums:
    """Sums of a rule over the tasks of one source. counts: (NUM_BINS, 4) int64, documents that pass
    and that fail, and their bytes; nearest: by outcome, (distance, key, value, threshold), nearest
    first."""

    facts: dict[str, Any]
    counts: np.ndarray = field(default_factory=lambda: np.zeros((NUM_BINS, 4), np.int64))
    not_a_number: int = 0
    nearest: dict[str, list[tuple[float, bytes, float, float]]] = field(default_factory=lambda: {"kept": [], "dropped": []})

    def rule(self, dropped: int, name_of: NameOf) -> Rule:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Distributions:
    measured: dict[str, dict[str, dict[str, Rule]]]
    lengths: dict[str, dict[str, tuple[LengthBin, ...]]]
    clusters: dict[str, Clusters]


def distributions(root: Root, steps: Iterable[Step], name_of: NameOf) -> Distributions:
    by_source: dict[str, list[Step]] = {}
    for step in steps:
        if step.kind == "map":
            by_source.setdefault(step.source, []).append(step)
    samples: dict[str, ClusterSample] = {}
    measured: dict[str, dict[str, dict[str, Rule]]] = {}
    lengths: dict[str, dict[str, tuple[LengthBin, ...]]] = {}
    for source, of_source in by_source.items():
        rules, by_part = _of_source(root, of_source)
        dropped = total_counts(record.metrics.document_counts for step in of_source for record in step.records).dropped
        for (stage, rule), sums in rules.items():
            by_stage = measured.setdefault(source, {}).setdefault(stage, {})
            by_stage[rule] = sums.rule(dropped[f"{stage}:{rule}"], name_of)
        lengths[source] = {part: _bins(counts) for part, counts in by_part.items()}
        for step in of_source:
            for output in step.outputs("survivors", TableFile):
                read_samples(read_table(root, output), samples, MOST_CLUSTERS)
    clusters = {stage: _sizes(each) for stage, each in samples.items()}
    return Distributions(measured=measured, lengths=lengths, clusters=clusters)


def _of_source(root: Root, steps: list[Step]) -> tuple[dict[tuple[str, str], _Sums], dict[str, np.ndarray]]:
    """The rules of a source, and its lengths by part, (NUM_BINS, 2) int64 each. Kept are the documents of the last step."""
    rules: dict[tuple[str, str], _Sums] = {}
    lengths = {part: np.zeros((NUM_BINS, 2), np.int64) for part in ("read", "kept")}
    for step in steps:
        for output in step.outputs("measured", TableFile):
            for batch in read_table(root, output):
                _add_measured(batch, rules, lengths, step is steps[-1])
        for output in step.outputs("borderline", TableFile):
            for row in (row for batch in read_table(root, output) for row in batch.to_pylist()):
                outcome, near = "dropped" if row["is_dropped"] else "kept", rules[row["stage"], row["rule"]].nearest
                entry = (abs(row["value"] - row["threshold"]), row["key"], row["value"], row["threshold"])
                near[outcome] = heapq.nsmallest(SHOWN_BORDERLINE, [*near[outcome], entry])
    return rules, lengths


def _add_measured(
    batch: pa.RecordBatch, rules: dict[tuple[str, str], _Sums], lengths: Mapping[str, np.ndarray], is_last: bool
) -> None:
    facts = rules_of(batch.schema)
    stages, names, parts = (batch.column(name).to_pylist() for name in ("stage", "rule", "part"))
    bins, documents, sizes = (numbers(batch.column(name)) for name in ("bin", "documents", "bytes"))
    stop = 0
    for (stage, name, part), group in groupby(zip(stages, names, parts)):
        start, stop = stop, stop + sum(1 for _ in group)
        rows = bins[start:stop].astype(np.int64) + LAST_BIN
        if not stage and name == LENGTH:
            if part == "read" or is_last:
                lengths[part][rows] += np.column_stack([documents[start:stop], sizes[start:stop]])
            continue
        known = facts[stage][name]
        rule = rules.setdefault((stage, name), _Sums(facts=dict(known)))
        if known["threshold"] != rule.facts["threshold"]:
            rule.facts["threshold"] = None
        if part not in _PARTS:
            rule.not_a_number += int(documents[start:stop].sum())
            continue
        column = _PARTS[part]
        rule.counts[rows, column] += documents[start:stop]
        rule.counts[rows, column + 2] += sizes[start:stop]


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


FoundEntry = tuple[str, str, str]  # Stage, list and entry


def list_counts(root: Root, steps: Iterable[Step]) -> list[SearchedSet]:
    """The lists that filters of the map steps searched for. Entries are contaminated where
    some document holds them, undetectable where they cannot be found, and clean otherwise."""
    known = [step for step in steps if step.kind == "map"]
    searched: dict[str, dict[str, list[int]]] = {}
    for own in (own for step in known for own in step.numbers(MapMetrics)):
        for stage, lists in own.searched.items():
            searched.setdefault(stage, {}).update(lists)
    files = [file for step in known for file in step.outputs("findings", TableFile)] if searched else []
    found = {entry for file in files for rows in read_table(root, file) for entry in entries_of(rows)}
    return counts_of(searched, found)


def counts_of(searched: Mapping[str, Mapping[str, Sequence[int]]], found: Iterable[FoundEntry]) -> list[SearchedSet]:
    """As `list_counts`, of the numbers of entries by list that `searched` gives, and of the entries that were found."""
    by_list, sets = Counter((stage, name) for stage, name, _ in found), list[SearchedSet]()
    for stage, lists in searched.items():
        for name, (entries, lost) in lists.items():
            hit = by_list[stage, name]
            kinds = {"contaminated": hit, "undetectable": lost, "clean": entries - hit - lost}
            sets.append(SearchedSet(stage=stage, name=name, entries=entries, **kinds))
    return sets


def entries_of(rows: pa.RecordBatch) -> Iterator[FoundEntry]:
    return zip(*(rows.column(name).to_pylist() for name in ("stage", "list", "entry")))
