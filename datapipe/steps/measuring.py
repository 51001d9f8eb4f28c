"""What a map task measures beside its documents: a `Measurement` each, which `MEASUREMENTS` lists.

    results of filters  ─▶  histograms of fixed bins  ─▶ measured      a row for each rule, part and bin
                        ─▶  nearest the threshold     ─▶ borderline    at most 50 documents on each side of a rule
                        ─▶  items of searched lists   ─▶ findings      see `stage/findings.py`
    batches             ─▶  lengths                   ─▶ measured
    dropped duplicates  ─▶  a sample of survivors     ─▶ survivors     each with the number of documents dropped for it

Histograms of tasks add up, and the documents nearest a threshold are among those nearest in their
task, so the result does not depend on how a source was cut into tasks. What the rules are stands in
the schema's metadata, for readers that have no stages. Measuring takes 1 % of the time of a map
task with the filters of FineWeb, 3 % where documents have 24 words. The report shows it as a step.

A survivor is in the sample where its keyed hash is below 2^64 / 2^halvings. The bound is halved
whenever the sample holds more than it may. So the sample holds every cluster until there are many,
and then a uniform share of them with whole counts. What a task leaves out is left out of the sample
of all tasks, which therefore does not depend on the tasks.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_TYPE, first_of_group, full_schema, is_first, key_halves, make_keys, numbers, text_buffers
from datapipe.dataclass import dataclass, field
from datapipe.exchange.tables import FactWriter, TableWriter, read_table
from datapipe.kernels.distributions import LAST_BIN, NUM_BINS, Decided, NearestOut, bins_of, decided, measure, nothing_near
from datapipe.records.outputs import Outputs, TableFile
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.base import BELOW_SHARE, Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.findings import FINDINGS, MOST_OF_DOCUMENT
from datapipe.steps.kind import Step
from datapipe.steps.pipeline import BoundStage
from datapipe.storage.root import Root

MEASURED = full_schema(
    stage=pa.string(), rule=pa.string(), part=pa.string(), bin=pa.int16(), documents=pa.int64(), bytes=pa.int64()
)
"""Documents and their bytes of text by bin (`kernels/distributions.py`). A rule has the parts "passed", "failed", and
"not_a_number", whose bin is 0. Lengths have the empty stage, the rule "length" and the parts "read" and "kept"."""

BORDERLINE = full_schema(
    stage=pa.string(), rule=pa.string(), is_dropped=pa.bool_(), key=KEY_TYPE, value=pa.float64(), threshold=pa.float64()
)
"""Documents nearest the threshold of a rule: kept by the filter, or dropped for this rule. Later stages may drop kept ones."""

SURVIVORS = full_schema(stage=pa.string(), survivor=KEY_TYPE, dropped=pa.int64(), halvings=pa.int64())
"""A sample of survivors, with the documents of a task that a stage dropped for each. All rows of a stage have its halvings."""

RULES = b"rules"
"""The key of the metadata: stage → rule → {option, side, threshold, mode}, as JSON. The threshold is null where it differs by
document."""

LENGTH = "length"
COLUMNS = {"passed": 0, "failed": 1, "read": 0, "kept": 1}
"""Columns of documents in the counts of bins, by part. Those of bytes are two further on."""

MOST_OF_TASK = 4096  # Survivors in the sample of a task and stage: at most 130 kB
_SIDES = {"min": -1, "max": 1, "other": 0}
_SEED = seed_for(0, "clusters")


@dataclass()
class Measurement:
    """One of the things that every map task measures and writes to files. Methods that are not overridden do nothing."""

    root: Root
    folder: str
    source: str

    def documents(self, part: Literal["read", "kept"], batch: DocumentBatch) -> None:
        """Adds documents as the input has them, or as they leave the task."""

    def decided(self, bound: BoundStage, batch: DocumentBatch, result: FilterResult, *, of_cut: bool = False) -> None:
        """Adds the decisions of a filter, or of its cut alone, which is its last rule."""

    def dropped(self, stage: str, survivors: pa.Array) -> None:
        """Adds documents that a global stage drops, each by the key of the one that stays in its place."""

    def finish(self) -> Outputs:
        raise NotImplementedError


_Part = tuple[tuple[Any, ...], list[np.ndarray]]  # labels, and columns of numbers; those of a key are its halves


@dataclass()
class _Distribution:
    """The measured values of one rule."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros((NUM_BINS, 4), np.int64))
    nearest: NearestOut = field(default_factory=nothing_near)
    num_nan: int = 0


@dataclass()
class Distributions(Measurement):
    """Of what the rules of filters measured, and of lengths. A filter that returns no measured values has none."""

    _rules: dict[tuple[str, str], _Distribution] = field(default_factory=lambda: defaultdict(_Distribution))
    _facts: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def decided(self, bound: BoundStage, batch: DocumentBatch, result: FilterResult, *, of_cut: bool = False) -> None:
        rules = cast(Filter, bound.stage).rules()
        if len(result.measured) == len(rules) and batch.num_docs:
            last = len(rules) - 1
            documents = decided(result.rule, _lengths(batch), key_halves(batch.keys))
            for index in range(last if of_cut else 0, last if bound.is_scored else len(rules)):
                self._add_rule(bound, index, rules[index], documents, result)

    def _add_rule(self, bound: BoundStage, index: int, rule: Rule, documents: Decided, result: FilterResult) -> None:
        limits = _limits(bound, index, rule, result)
        threshold = float(limits[0]) if np.isfinite(limits[0]) else None
        facts = {"option": rule.option, "side": rule.side, "threshold": threshold, "mode": cast(Filter, bound.stage).mode}
        known = self._facts.setdefault(bound.name, {}).setdefault(rule.name, facts)
        differing = limits if result.limits else limits[result.rule == index] if len(limits) > 1 else limits[:0]
        if (differing != known["threshold"]).any():
            known["threshold"] = None
        distribution = self._rules[bound.name, rule.name]
        values = np.ascontiguousarray(result.measured[index], np.float64)
        side = _SIDES[rule.side]
        distribution.num_nan += measure(values, limits, documents, index, side, distribution.counts, distribution.nearest)

    def documents(self, part: Literal["read", "kept"], batch: DocumentBatch) -> None:
        lengths = _lengths(batch)
        bins, counts = bins_of(lengths), self._rules["", LENGTH].counts[LAST_BIN:, COLUMNS[part] :: 2]
        counts[:, 0] += np.bincount(bins, minlength=LAST_BIN + 1)
        counts[:, 1] += np.bincount(bins, lengths, LAST_BIN + 1).astype(np.int64)  # exact below 2**53 bytes

    def finish(self) -> Outputs:
        metadata = {RULES: json.dumps(self._facts, ensure_ascii=False, allow_nan=False)}
        measured = TableWriter(self.root, f"{self.folder}/measured.arrow")
        measured.add(_rows(MEASURED, self._measured()).replace_schema_metadata(metadata))
        borderline = FactWriter(self.root, f"{self.folder}/borderline.parquet", source=self.source)
        sides = (_nearest(names, distribution, side) for names, distribution in self._rules.items() for side in (0, 1))
        borderline.add(_rows(BORDERLINE, sides))
        return {"measured": measured.finish(), "borderline": borderline.finish()}

    def _measured(self) -> Iterator[_Part]:
        for (stage, rule), distribution in sorted(self._rules.items(), key=lambda item: not item[0][0]):  # lengths last
            for part in ("passed", "failed") if stage else ("read", "kept"):
                counts = distribution.counts[:, COLUMNS[part] :: 2]
                found = np.flatnonzero(counts[:, 0])
                yield (stage, rule, part), [found - LAST_BIN, *counts[found].T]
            if distribution.num_nan:
                yield (stage, rule, "not_a_number"), [np.zeros(1), np.array([distribution.num_nan]), np.zeros(1)]


def _rows(schema: pa.Schema, parts: Iterable[_Part]) -> pa.RecordBatch:
    """One batch of the rows of some parts, which may be none. All rows of a part have its labels."""
    listed = [part for part in parts if len(part[1][0])]
    if not listed:
        return pa.RecordBatch.from_pylist([], schema=schema)
    labels, numbers_of = zip(*listed)
    part_of = pa.array(np.repeat(np.arange(len(labels)), [len(columns[0]) for columns in numbers_of]))
    columns = [np.concatenate(each) for each in zip(*numbers_of)]
    if KEY_TYPE in schema.types:
        columns[:2] = [make_keys(*columns[:2])]
    named = [pa.array(each).take(part_of) for each in zip(*labels)]
    arrays = zip([*named, *map(pa.array, columns)], schema.types)
    return pa.record_batch([array.cast(kind) for array, kind in arrays], schema=schema)


def _limits(bound: BoundStage, index: int, rule: Rule, result: FilterResult) -> np.ndarray:
    """The thresholds of a rule, (1,) or (num_docs,) float64. Where thresholds that differ by document are known only of the
    documents that the rule drops, others are compared with the rule's own."""
    if rule.name == BELOW_SHARE and bound.cut is not None:
        return np.array([bound.cut.threshold])
    if rule.side == "other" and not rule.option:  # the stage decides by itself, and its limit means nothing
        return np.array([np.nan])
    if result.limits:
        return np.ascontiguousarray(result.limits[index], np.float64)
    if result.limit is None:
        return np.array([float(rule.limit)])
    return np.where(result.rule == index, result.limit, rule.limit).astype(np.float64)


def _lengths(batch: DocumentBatch) -> np.ndarray:
    """Bytes of the texts, of the pages before extraction: (num_docs,) int64."""
    return np.diff(batch.buffers[0] if batch.has_text else text_buffers(batch.html)[0])


def _nearest(names: tuple[str, str], distribution: _Distribution, side: int) -> _Part:
    near = distribution.nearest
    columns = near.file_hashes, near.positions, near.values, near.limits
    return (*names, side == 1), [column[side, : int(near.sizes[side])] for column in columns]


def searched(stages: Iterable[BoundStage]) -> dict[str, dict[str, list[int]]]:
    """By stage and list, the number of entries, and of those that cannot be found."""
    return {
        bound.name: {each.name: [each.entries, len(each.undetectable)] for each in lists}
        for bound in stages
        if isinstance(bound.stage, Filter) and (lists := bound.stage.searched_lists())
    }


@dataclass()
class Findings(Measurement):
    """Items of searched lists: at most `MOST_OF_DOCUMENT` of a document, and beyond those the first of each entry."""

    _known: set[tuple[str, str, str]] = field(default_factory=set)  # stage, list, entry

    def __post_init__(self) -> None:
        self._writer = FactWriter(self.root, f"{self.folder}/findings.parquet", source=self.source)

    def decided(self, bound: BoundStage, batch: DocumentBatch, result: FilterResult, *, of_cut: bool = False) -> None:
        name, is_tag, found = bound.name, cast(Filter, bound.stage).mode == "tag", result.findings
        if found is None or not found.num_rows:
            return
        rows = numbers(found.column("row"))
        ranks = np.arange(len(rows)) - first_of_group(rows)
        entries = zip(found.column("list").to_pylist(), found.column("entry").to_pylist())
        is_new: list[bool] = []
        for entry in entries:
            is_new.append((name, *entry) not in self._known)
            self._known.add((name, *entry))
        chosen = np.flatnonzero((ranks < MOST_OF_DOCUMENT) | is_new)
        documents, found = pa.array(rows[chosen]), found.take(pa.array(chosen))
        kept = "tagged" if is_tag else "cut" if "text" in result.columns else "kept"
        outcomes = np.where(result.keep[rows[chosen]] | is_tag, kept, "dropped")
        about = [batch.keys.take(documents), batch.record.column("id").take(documents), pa.array([name] * len(chosen))]
        arrays = [*about, pa.array(outcomes.tolist(), pa.string()), *found.columns[1:]]
        self._writer.add(pa.RecordBatch.from_arrays(arrays, schema=FINDINGS))

    def finish(self) -> Outputs:
        return {"findings": self._writer.finish()}


@dataclass()
class ClusterSample:
    """A sample of the clusters of one stage: a share of 2^-halvings of them."""

    _most: int
    _rows: list[np.ndarray] = field(default_factory=list)  # (n, 3) uint64 each: the halves of a survivor's key, and documents
    _held: int = 0
    halvings: int = 0

    def add(self, keys: pa.Array, dropped: np.ndarray, halvings: int = 0) -> None:
        """Adds documents that were dropped for survivors: (n,) keys, of which one may occur several times, and (n,) numbers of
        documents. `halvings`: of the sample that the survivors are of."""
        rows = np.column_stack([*key_halves(keys), dropped.astype(np.uint64)])
        self.halvings = max(self.halvings, halvings)
        self._rows.append(self._sampled(rows))
        self._held += len(self._rows[-1])
        if self._held > 2 * self._most:
            self._shrink()

    def clusters(self) -> tuple[pa.Array, np.ndarray]:
        """Survivors of the sample in the order of their keys, and the documents dropped for each, (n,) int64."""
        rows = self._shrink()
        return make_keys(rows[:, 0], rows[:, 1]), rows[:, 2].astype(np.int64)

    def rows(self, stage: str) -> pa.RecordBatch:
        """The clusters in the columns of `SURVIVORS`."""
        keys, dropped = self.clusters()
        halvings = pa.repeat(pa.scalar(self.halvings, pa.int64()), len(keys))
        return pa.record_batch([pa.repeat(stage, len(keys)), keys, pa.array(dropped), halvings], schema=SURVIVORS)

    def _sampled(self, rows: np.ndarray) -> np.ndarray:
        if not self.halvings:
            return rows
        hashes = keyed_hash((rows[:, 0], rows[:, 1]), _SEED)
        return rows[hashes >> np.uint64(64 - self.halvings) == 0]

    def _shrink(self) -> np.ndarray:
        rows = self._sampled(_summed(np.concatenate([np.zeros((0, 3), np.uint64), *self._rows])))
        while len(rows) > self._most:
            self.halvings += 1
            rows = self._sampled(rows)
        self._rows, self._held = [rows], len(rows)
        return rows


def _summed(rows: np.ndarray) -> np.ndarray:
    """Rows of one key as one row, in the order of keys: (m, 3) uint64 of (n, 3)."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    starts = np.flatnonzero(is_first(rows[:, 0], rows[:, 1]))
    sums = np.add.reduceat(rows[:, 2], starts) if len(starts) else rows[:, 2]
    return np.column_stack([rows[starts, :2], sums])


@dataclass()
class Survivors(Measurement):
    """A sample of the clusters of each stage that drops documents in favour of others."""

    _stages: dict[str, ClusterSample] = field(default_factory=dict)

    def dropped(self, stage: str, survivors: pa.Array) -> None:
        sample = self._stages.setdefault(stage, ClusterSample(MOST_OF_TASK))
        sample.add(survivors, np.ones(len(survivors), np.int64))

    def finish(self) -> Outputs:
        writer = TableWriter(self.root, f"{self.folder}/survivors.arrow")
        for stage, sample in self._stages.items():
            writer.add(sample.rows(stage))
        return {"survivors": writer.finish()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What committed map tasks measured."""

    root: Root
    steps: Sequence[Step]  # of the kind `map`; those of a source in the order in which its documents pass them
    name_of: Callable[[bytes], str]  # the name of a document by its key
    # the files that hold what the tasks of a step wrote of a kind, fewer than there are tasks
    files_of: Callable[[Step, str], Sequence[TableFile]] = lambda step, name: step.outputs(name, TableFile)

    def rows(self, name: str, steps: Iterable[Step]) -> Iterator[pa.RecordBatch]:
        """The rows that the tasks of these steps wrote of a kind."""
        files = (file for step in steps for file in self.files_of(step, name))
        return (rows for file in files for rows in read_table(self.root, file))


def samples_of(measured: Measured, most: int) -> dict[str, ClusterSample]:
    """By stage the sample of all tasks, with at most `most` clusters."""
    samples: dict[str, ClusterSample] = {}
    for batch in measured.rows("survivors", measured.steps):
        add_clusters(samples, batch, most)
    return samples


def add_clusters(samples: dict[str, ClusterSample], batch: pa.RecordBatch, most: int) -> None:
    """Adds rows of `SURVIVORS` to the samples of their stages, with at most `most` clusters each."""
    stages = batch.column("stage").dictionary_encode()
    codes, dropped, halvings = numbers(stages.indices), numbers(batch.column("dropped")), numbers(batch.column("halvings"))
    for code, stage in enumerate(stages.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        keys = batch.column("survivor").take(pa.array(rows))
        samples.setdefault(stage, ClusterSample(most)).add(keys, dropped[rows], int(halvings[rows[0]]))


MEASUREMENTS: tuple[type[Measurement], ...] = (Findings, Distributions, Survivors)
