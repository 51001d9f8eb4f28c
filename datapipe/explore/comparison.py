"""Two outputs side by side: documents that only one of them keeps, and why the other does not.

    keys of both, kept, dropped and quarantined  ─▶  buckets by hash, in a temporary folder  ─▶  bucket by bucket: only in one,
                                                                                                 with the other's reason
    reports of both                              ─▶  numbers of sources, rules side by side

Documents are the same where source, file and position are: two mixtures over the same data. Memory holds one bucket, so it does
not grow with the outputs; the folder takes 24 bytes a document.
"""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from datapipe.columns import key_halves
from datapipe.exchange.partitions import read_table
from datapipe.explore.documents import Inspector, Outcome
from datapipe.plan.outputs import TableFile
from datapipe.rng import keyed_hash, seed_for

BUCKET_ROWS = 1 << 21
"""Documents of both outputs in a bucket, about: 150 MB at work."""

MOST_BUCKETS = 256
NOT_READ = "not read"
"""The reason of documents that the other output never read."""

_SEED = seed_for(0, "compare")
_ROW = np.dtype([("file_hash", np.uint64), ("position", np.uint64), ("reason", np.int64)])
_OUTCOMES: Sequence[Outcome] = ("kept", "dropped", "quarantined")
_KEPT = -1
"""The reason of kept documents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OneSided:
    """Documents that one output keeps and the other does not.

    Attributes:
        documents: how many.
        reasons: why the other does not, "stage:rule", "quarantined: stage" or `NOT_READ` → documents; the most frequent first.
        sample: names of documents, a keyed sample, by reason.
    """

    documents: int
    reasons: Mapping[str, int]
    sample: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """The documents of two outputs.

    Attributes:
        both: documents that both keep.
        only: for the first and the second output, what it alone keeps.
    """

    both: int
    only: tuple[OneSided, OneSided]

    def to_json(self) -> dict[str, Any]:
        return {"both": self.both, "only_first": asdict(self.only[0]), "only_second": asdict(self.only[1])}


def membership(first: Inspector, second: Inspector, count: int = 3) -> Membership:
    """Which documents only one of two outputs keeps.

    Args:
        count: documents of each reason in the samples.
    """
    inspectors = (first, second)
    num_rows = sum(output.rows for inspector in inspectors for _, _, output in _tables(inspector))
    num_buckets = min(MOST_BUCKETS, 1 << (num_rows // BUCKET_ROWS).bit_length())
    reasons: list[str] = []
    both, sides = 0, (_Side(), _Side())
    with tempfile.TemporaryDirectory(prefix="datapipe-compare-") as folder:
        for number, inspector in enumerate(inspectors):
            _write_buckets(inspector, Path(folder), number, num_buckets, reasons)
        for bucket in range(num_buckets):
            rows = [_read_bucket(Path(folder), number, bucket) for number in (0, 1)]
            matched = _matched(rows[0], rows[1])
            both += int(((rows[0]["reason"] == _KEPT) & (_reasons(rows[1], matched) == _KEPT)).sum())
            sides[0].add(rows[0], _reasons(rows[1], matched), reasons, count)
            sides[1].add(rows[1], _reasons(rows[0], _matched(rows[1], rows[0])), reasons, count)
    return Membership(both=both, only=(sides[0].of(first), sides[1].of(second)))


_MISSING = -2
"""Stands for the reason of a document that the other output does not have."""


@dataclass(slots=True)
class _Side:
    """What one output alone keeps."""

    reasons: Counter[str] = field(default_factory=Counter)
    sample: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)

    def add(self, rows: np.ndarray, others: np.ndarray, names: Sequence[str], count: int) -> None:
        """Adds a bucket: documents of this output, and the reason that the other has for each."""
        is_alone = (rows["reason"] == _KEPT) & (others != _KEPT)
        alone, why = rows[is_alone], others[is_alone]
        hashes = keyed_hash((alone["file_hash"], alone["position"]), _SEED)
        for reason in np.unique(why):
            chosen = why == reason
            name = NOT_READ if reason == _MISSING else names[int(reason)]
            self.reasons[name] += int(chosen.sum())
            first = np.argsort(hashes[chosen], kind="stable")[:count]
            found = zip(hashes[chosen][first].tolist(), (_key(row) for row in alone[chosen][first]))
            self.sample[name] = heapq.nsmallest(count, [*self.sample.get(name, ()), *found])

    def of(self, inspector: Inspector) -> OneSided:
        reasons = dict(sorted(self.reasons.items(), key=lambda each: (-each[1], each[0])))
        sample = {
            reason: tuple(inspector.locator.locate(key, text=False).label for _, key in self.sample[reason])
            for reason in reasons
        }
        return OneSided(documents=self.reasons.total(), reasons=reasons, sample=sample)


def _key(row: Any) -> bytes:
    return int(row["file_hash"]).to_bytes(8, "big") + int(row["position"]).to_bytes(8, "big")


# ------------------------------------------------------------------------------------------------ buckets


def _tables(inspector: Inspector) -> Iterator[tuple[Outcome, str, TableFile]]:
    for outcome in _OUTCOMES:
        for source in inspector.sources:
            for _, output in inspector.tables(outcome, source):
                yield outcome, source, output


def _write_buckets(inspector: Inspector, folder: Path, number: int, num_buckets: int, reasons: list[str]) -> None:
    """Writes the documents of an output to a file for each bucket.

    Args:
        number: of the output.
        reasons: known reasons, to which new ones are added; rows have their index.
    """
    known = {reason: index for index, reason in enumerate(reasons)}
    files: list[BinaryIO] = [open(_bucket_file(folder, number, bucket), "wb") for bucket in range(num_buckets)]  # noqa: SIM115
    try:
        for outcome, _, output in _tables(inspector):
            names = {"kept": ["key"], "dropped": ["key", "stage", "rule"], "quarantined": ["key", "stage"]}[outcome]
            for batch in read_table(inspector.root, output, names):
                rows = np.empty(batch.num_rows, _ROW)
                rows["file_hash"], rows["position"] = key_halves(batch.column("key"))
                rows["reason"] = _KEPT if outcome == "kept" else _coded(outcome, batch, known)
                buckets = keyed_hash((rows["file_hash"], rows["position"]), _SEED) % np.uint64(num_buckets)
                for bucket in np.unique(buckets).tolist():
                    files[bucket].write(rows[buckets == bucket].tobytes())
    finally:
        for file in files:
            file.close()
    reasons[:] = known


def _coded(outcome: Outcome, batch: Any, known: dict[str, int]) -> np.ndarray:
    """The index of the reason of each row, (n,) int64."""
    if outcome == "quarantined":
        names = [f"quarantined: {stage}" for stage in batch.column("stage").to_pylist()]
    else:
        names = [f"{stage}:{rule}" for stage, rule in zip(*(batch.column(name).to_pylist() for name in ("stage", "rule")))]
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)


def _bucket_file(folder: Path, number: int, bucket: int) -> Path:
    return folder / f"{number}-{bucket:03d}"


def _read_bucket(folder: Path, number: int, bucket: int) -> np.ndarray:
    """The rows of a bucket in the order of their keys. A document with several rows has its first: a file that was read whole
    after a part of it leaves two of a damaged record."""
    rows = np.fromfile(_bucket_file(folder, number, bucket), _ROW)
    rows = rows[np.lexsort((rows["reason"], rows["position"], rows["file_hash"]))]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (rows["file_hash"][1:] != rows["file_hash"][:-1]) | (rows["position"][1:] != rows["position"][:-1])
    return rows[is_first]


def _matched(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The index in `others` of each document, -1 where it has none: (n,) int64. Both are in the order of their keys."""
    joined = np.concatenate([others, rows])
    order = np.lexsort((np.arange(len(joined)), joined["position"], joined["file_hash"]))
    ordered = joined[order]
    same = (ordered["file_hash"][1:] == ordered["file_hash"][:-1]) & (ordered["position"][1:] == ordered["position"][:-1])
    result = np.full(len(rows), -1, np.int64)
    result[order[1:][same] - len(others)] = order[:-1][same]
    return result


def _reasons(others: np.ndarray, matched: np.ndarray) -> np.ndarray:
    """The reason that the other output has for each document: (n,) int64."""
    with_missing = np.append(others["reason"], _MISSING)
    return with_missing[matched]


# ------------------------------------------------------------------------------------------------ reports side by side


class RuleChange(NamedTuple):
    """What a rule measured in two outputs.

    Attributes:
        thresholds: of the first and the second output; None where it differs by document, or there is no such rule.
        failed: shares of the measured documents that fail the rule; None where there is no such rule.
        medians: of the measured values, within a bin; None where nothing was measured.
    """

    source: str
    stage: str
    rule: str
    thresholds: tuple[float | None, float | None]
    failed: tuple[float | None, float | None]
    medians: tuple[float | None, float | None]


def rule_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[RuleChange]:
    """The rules of two reports that measured different values or have different thresholds, largest change of the failing share
    first. A rule that one of them lacks counts as passed by all."""
    measured = [report.get("measured") or {} for report in (first, second)]
    names = dict.fromkeys(name for entry in measured for name in _rule_names(entry))
    changes = []
    for source, stage, rule in names:
        rules = [entry.get(source, {}).get(stage, {}).get(rule) for entry in measured]
        one, other = (_facts(each) for each in rules)
        if one != other:
            changes.append(RuleChange(source, stage, rule, *zip(one, other)))
    return sorted(changes, key=lambda change: -abs((change.failed[0] or 0.0) - (change.failed[1] or 0.0)))


def _rule_names(measured: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    return ((source, stage, rule) for source, stages in measured.items() for stage, rules in stages.items() for rule in rules)


def _facts(rule: Mapping[str, Any] | None) -> tuple[float | None, float | None, float | None]:
    """Threshold, failing share and median."""
    if rule is None:
        return None, None, None
    counted = rule["passed"] + rule["failed"]
    return rule["threshold"], rule["failed"] / counted if counted else None, _median(rule["bins"])


def _median(bins: Sequence[Sequence[float]]) -> float | None:
    """The median of a histogram, at its place between the edges of its bin."""
    counts = [passed + failed for _, _, passed, failed in bins]
    left = sum(counts) / 2
    for (low, high, _, _), count in zip(bins, counts):
        if count and left <= count:
            return low + (high - low) * left / count
        left -= count
    return None
