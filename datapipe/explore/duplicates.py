"""Clusters of duplicates to look at: the surviving document beside those that were dropped for it, with their texts.

    drops, 1st pass  ─▶  the first `count` clusters, by keyed hash or by lowest similarity  ─┐
    drops, 2nd pass  ─▶  for each: how many were dropped, and the members to show  ◀─────────┘  ─▶  texts, cluster by cluster

A cluster is what one stage dropped in favour of one document. Memory holds one batch of the drops, the members to show and the
texts of one cluster, whatever the size of the output. The hash is of the survivor's key: the same query returns the same
clusters each time, and a larger sample contains the smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from datapipe import catalogue
from datapipe.columns import KEY_TYPE, compute, key_halves, key_matrix, make_keys, numbers
from datapipe.config.stage_use import StageUse
from datapipe.errors import UserError, suggest
from datapipe.exchange.partitions import read_table
from datapipe.explore.documents import Inspector, matches_reason, stage_alias, stage_of
from datapipe.explore.located import LocatedDocument
from datapipe.ledger.names import RUN
from datapipe.plan.outputs import TableFile
from datapipe.plan.work import Record
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import drops_for_others
from datapipe.storage import Root

ALL = "all"
_SEED = seed_for(0, "inspect")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterQuery:
    """Which clusters to find.

    Attributes:
        stage: a stage, "stage:rule", or "all".
        source: clusters that lost documents of this source; empty for all sources.
        count: at most so many clusters.
        members: at most so many dropped documents of each cluster.
        least_alike: whether clusters and members come in the order of their similarity, lowest first and unmeasured last.
            Otherwise both are keyed samples.
    """

    stage: str
    source: str = ""
    count: int = 5
    members: int = 3
    least_alike: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A dropped document, and the similarity that the stage measured; None where it measured none."""

    document: LocatedDocument
    similarity: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The documents that a stage dropped in favour of one document.

    Attributes:
        dropped_later_by: "stage:rule" of a later stage that dropped the survivor; "" when none did.
        members: the dropped documents to show.
        dropped: number of dropped documents in all.
        similarity: least and greatest of all dropped documents; None where none was measured.
        shingles: size and unit of the n-grams that the stage compares, as `Global.shingles` returns them.
        no_text: why the survivor has no text; "" when it has one.
    """

    stage: str
    survivor: LocatedDocument
    dropped_later_by: str
    members: tuple[Member, ...]
    dropped: int
    similarity: tuple[float, float] | None
    shingles: tuple[int, Literal["word", "char"]]
    no_text: str

    def to_json(self) -> dict[str, Any]:
        """The cluster as plain data."""
        return {
            "stage": self.stage,
            "survivor": {**self.survivor.to_json(), "dropped_later_by": self.dropped_later_by or None},
            "dropped": self.dropped,
            "similarity": None if self.similarity is None else {"min": self.similarity[0], "max": self.similarity[1]},
            "members": [{**member.document.to_json(), "similarity": member.similarity} for member in self.members],
        }


def find_clusters(inspector: Inspector, query: ClusterQuery) -> Iterator[Cluster]:
    """The clusters that match a query, read one after the other. Raises UserError at once when there are none."""
    sources = inspector.select_sources(query.source)
    reasons = [reason for reason in _reasons(inspector, sources) if query.stage == ALL or matches_reason(query.stage, reason)]
    selected = _select(inspector, query, sources, reasons)
    if not selected:
        raise _no_clusters(inspector, query, sources)
    _collect_members(inspector, query, selected, reasons)
    return (_cluster(inspector, cluster) for cluster in selected)


@dataclass(slots=True)
class _SelectedCluster:
    """A cluster while its drops are counted.

    Attributes:
        source: a source that the stage dropped documents of.
        dropped_later_by: as in `Cluster`.
        members: (order, keyed hash, key, similarity) of the members to show, ascending.
    """

    reason: str
    survivor: bytes
    source: str = ""
    dropped_later_by: str = ""
    dropped: int = 0
    similarity: tuple[float, float] = (np.inf, -np.inf)
    members: list[tuple[float, int, bytes, float]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drops:
    """Drops of a batch, (num_drops,) each.

    Attributes:
        keys, survivors: key columns.
        reasons: int64 indices into the requested reasons.
        values: float64 measured similarities; NaN where none was measured.
    """

    source: str
    keys: pa.Array
    survivors: pa.Array
    reasons: np.ndarray
    values: np.ndarray


def _reasons(inspector: Inspector, sources: Iterable[str]) -> list[str]:
    """Every "stage:rule" that dropped documents of these sources."""
    records = (record for name in sources for step in inspector.map_steps(name) for record in step.records)
    return sorted({reason for record in records for reason in record.metrics.document_counts.dropped})


def _batches(inspector: Inspector, record: Record) -> Iterator[pa.RecordBatch]:
    for output in record.of("drops", TableFile):
        if output.rows:
            yield from read_table(inspector.root, output)


def _drops(inspector: Inspector, sources: Iterable[str], reasons: Sequence[str]) -> Iterator[_Drops]:
    """The documents that were dropped in favour of another one, for these reasons."""
    for source in sources:
        for record in (record for step in inspector.map_steps(source) for record in step.records):
            if any(record.metrics.document_counts.dropped.get(reason) for reason in reasons):
                for batch in _batches(inspector, record):
                    yield _drops_with_survivor(source, batch, reasons)


def _drops_with_survivor(source: str, batch: pa.RecordBatch, reasons: Sequence[str]) -> _Drops:
    reason_column = compute.binary_join_element_wise(batch.column("stage"), batch.column("rule"), ":")
    indices = compute.index_in(reason_column, value_set=pa.array(reasons, pa.string()))
    selected = compute.and_(indices.is_valid(), batch.column("survivor").is_valid())
    rows = batch.filter(selected)
    return _Drops(
        source=source,
        keys=rows.column("key"),
        survivors=rows.column("survivor"),
        reasons=numbers(indices.filter(selected)).astype(np.int64),
        values=numbers(rows.column("value")),
    )


# ------------------------------------------------------------------------------------------------ selecting clusters


def _select(
    inspector: Inspector, query: ClusterQuery, sources: Sequence[str], reasons: Sequence[str]
) -> list[_SelectedCluster]:
    """The first pass."""
    best = [np.zeros(0), *(np.zeros(0, np.uint64) for _ in range(4))]
    for drops in _drops(inspector, sources, reasons):
        halves = key_halves(drops.survivors)
        order = _order(drops.values, query)
        rows = (order, keyed_hash(halves, _SEED), *halves, drops.reasons.astype(np.uint64))
        best = _first_clusters([np.concatenate(columns) for columns in zip(best, rows)], query.count)
    survivors = key_matrix(make_keys(best[2], best[3]))
    return [
        _SelectedCluster(reason=reasons[int(reason_index)], survivor=survivor.tobytes())
        for survivor, reason_index in zip(survivors, best[4])
    ]


def _order(values: np.ndarray, query: ClusterQuery) -> np.ndarray:
    """(num_drops,) float64 sort keys that precede the keyed hash. NaN, a similarity that was not measured, sorts last."""
    return np.where(np.isnan(values), np.inf, values) if query.least_alike else np.zeros(len(values))


def _first_clusters(columns: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """The first row of each of the first `count` clusters.

    Args:
        columns: order, keyed hash, two halves of the survivor's key, reason; (num_rows,) each.
    """
    order = np.lexsort(columns[::-1])
    _, firsts = np.unique(np.column_stack([column[order] for column in columns[2:]]), axis=0, return_index=True)
    rows = order[np.sort(firsts)[:count]]
    return [column[rows] for column in columns]


# ------------------------------------------------------------------------------------------------ why there are none


def _no_clusters(inspector: Inspector, query: ClusterQuery, sources: Sequence[str]) -> UserError:
    """The error for a query that matches no cluster."""
    option, of_source = f"--clusters {query.stage}", f" of source '{query.source}'" if query.source else ""
    used = {use.alias: use for source in sources for use in inspector.mixture.stages_of(source)}
    makers = [name for name, use in used.items() if _makes_clusters(use)]
    where = f"source '{query.source}'" if query.source else "this output"
    listed = f"Stages of {where} that drop duplicates: {', '.join(makers) or '(none)'}"
    name = _alias_in(query.stage, used)
    if query.stage == ALL or name in makers:
        return _nothing_dropped(inspector, option, of_source, sources, listed)
    if name:
        is_global = isinstance(catalogue.build_stage(used[name]), Global)
        does = "cuts spans out of texts" if is_global else "examines each document by itself"
        return UserError(
            f"{option}: {name} {does} and drops no document in favour of another, so it has no clusters. "
            f"Show the documents that it dropped with --dropped {name}. {listed}"
        )
    owners = [source for source in inspector.sources if _alias_in(query.stage, _aliases(inspector, source))]
    if owners:
        return UserError(f"{option}: '{query.stage}' is no stage{of_source}. It is a stage of {', '.join(owners)}. {listed}")
    return UserError(f"{option}: no stage '{query.stage}' in this output.{suggest(query.stage, makers)} {listed}")


def _aliases(inspector: Inspector, source: str) -> list[str]:
    return [use.alias for use in inspector.mixture.stages_of(source)]


def _alias_in(requested: str, aliases: Iterable[str]) -> str:
    """The alias that "stage", "stage@digest" or "stage:rule" names; "" when it names none of them."""
    names = [name.partition("@")[0] for name in (requested, stage_of(requested))]
    return next((alias for alias in aliases if alias in names), "")


def _nothing_dropped(inspector: Inspector, option: str, of_source: str, sources: Sequence[str], listed: str) -> UserError:
    ended = {step.source for step in inspector.steps if step.kind in ("tokenize", "write") and step.records}
    is_complete = ended.issuperset(sources)  # these steps begin once every stage has decided on the documents
    so_far = "" if is_complete else " yet; the run is not complete"
    return UserError(f"{option}: no document{of_source} was dropped in favour of another{so_far}. {listed}")


def _makes_clusters(use: StageUse) -> bool:
    stage = catalogue.build_stage(use)
    return isinstance(stage, Global) and drops_for_others(stage.exchanges())


# ------------------------------------------------------------------------------------------------ their members


def _collect_members(
    inspector: Inspector, query: ClusterQuery, selected: Sequence[_SelectedCluster], reasons: Sequence[str]
) -> None:
    """The second pass: members from all sources, and the later stages that dropped survivors."""
    survivors = list(dict.fromkeys(cluster.survivor for cluster in selected))
    survivor_keys = pa.array(survivors, KEY_TYPE)
    indices = {(cluster.survivor, cluster.reason): index for index, cluster in enumerate(selected)}
    # cluster_of: (num_survivors, num_reasons) int64, the cluster of both, -1 where it is not selected
    cluster_of = np.array([[indices.get((key, reason), -1) for reason in reasons] for key in survivors], np.int64)
    for drops in _drops(inspector, inspector.sources, reasons):
        survivor_index = numbers(compute.index_in(drops.survivors, value_set=survivor_keys).fill_null(-1))
        clusters = np.where(survivor_index >= 0, cluster_of[survivor_index, drops.reasons], -1)
        for index in np.unique(clusters[clusters >= 0]).tolist():
            _add_drops(selected[index], drops, np.flatnonzero(clusters == index), query)
    dropped_later = _reasons_of_drops(inspector, survivor_keys)
    for cluster in selected:
        cluster.dropped_later_by = dropped_later.get(cluster.survivor, "")


def _add_drops(cluster: _SelectedCluster, drops: _Drops, rows: np.ndarray, query: ClusterQuery) -> None:
    """Adds rows of drops to their cluster."""
    values, keys = drops.values[rows], drops.keys.take(pa.array(rows))
    hashes = keyed_hash(key_halves(keys), _SEED)
    order = _order(values, query)
    first = np.lexsort((hashes, order))[: query.members]
    members = zip(order[first].tolist(), hashes[first].tolist(), keys.take(pa.array(first)).to_pylist(), values[first].tolist())
    cluster.source = cluster.source or drops.source
    cluster.dropped += len(rows)
    least, greatest = cluster.similarity
    measured = values[~np.isnan(values)]
    cluster.similarity = float(measured.min(initial=least)), float(measured.max(initial=greatest))
    cluster.members = sorted([*cluster.members, *members])[: query.members]


def _reasons_of_drops(inspector: Inspector, keys: pa.Array) -> dict[bytes, str]:
    """By key the "stage:rule" that dropped each of these documents; documents that were kept are absent."""
    reasons: dict[bytes, str] = {}
    for source in inspector.sources:
        for record in (record for step in inspector.map_steps(source) for record in step.records):
            for batch in _batches(inspector, record):
                rows = batch.filter(compute.index_in(batch.column("key"), value_set=keys).is_valid())
                reasons |= {row["key"]: f"{row['stage']}:{row['rule']}" for row in rows.to_pylist()}
    return reasons


def _cluster(inspector: Inspector, selected: _SelectedCluster) -> Cluster:
    """The cluster with its texts."""
    uses = {use.alias: use for use in inspector.mixture.stages_of(selected.source)}
    stage = catalogue.build_stage(uses[stage_alias(selected.reason)])
    assert isinstance(stage, Global), selected.reason
    members = [
        Member(document=inspector.locator.locate(key), similarity=None if np.isnan(value) else value)
        for _, _, key, value in selected.members
    ]
    survivor = inspector.locator.locate(selected.survivor)
    return Cluster(
        stage=stage_of(selected.reason),
        survivor=survivor,
        dropped_later_by=selected.dropped_later_by,
        members=tuple(members),
        dropped=selected.dropped,
        similarity=selected.similarity if np.isfinite(selected.similarity).all() else None,
        shingles=stage.shingles(),
        no_text="" if survivor.text is not None else _why_no_text(survivor),
    )


def _why_no_text(document: LocatedDocument) -> str:
    is_of_index = document.run and not Root(document.run).exists(RUN)
    return "an index holds no texts" if is_of_index else "its file is missing or has changed"
