"""Clusters of duplicates to look at: the document that stays, beside those dropped for it, read again from the source.

    drops, 1st pass  ─▶  `count` clusters: those of least keyed hash, or of least likeness  ─┐
    drops, 2nd pass  ─▶  of each, how many were dropped, and the few that are shown  ◀───────┘  ─▶  texts, cluster by cluster

A cluster is what one stage dropped in favour of one document. Both passes hold a batch of the drops and what is to be shown,
whatever the size of the output, and the texts of one cluster at a time. The hash is of the survivor's key, so looking twice
shows the same clusters, and a larger sample holds the smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from datapipe import catalogue
from datapipe.columns import KEY_TYPE, compute, key_halves, key_matrix, make_keys, numbers
from datapipe.config.stage_use import StageUse
from datapipe.errors import UserError, suggest
from datapipe.exchange.partitions import read_table
from datapipe.inspect.documents import Looker, alias_of, is_asked, stage_of
from datapipe.inspect.originals import Original
from datapipe.ledger.names import RUN
from datapipe.plan.outputs import TableFile
from datapipe.plan.work import Record
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import drops_for_others
from datapipe.storage import Root

ALL = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedClusters:
    """What to look for.

    Attributes:
        stage: a stage, "stage:rule", or "all".
        source: clusters that lost documents of this source; of any where it is empty.
        count: of clusters; members: of documents shown of each.
        least_alike: those of least measured likeness first, of clusters and of their members, without a measure last; else a
            keyed sample of both.
    """

    stage: str
    source: str = ""
    count: int = 5
    members: int = 3
    least_alike: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A document that was dropped, and the likeness that the stage measured; None where it measured none."""

    document: Original
    likeness: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What a stage dropped in favour of one document.

    Attributes:
        later: the reason for which a stage behind this one dropped the survivor; "" where none did.
        members: those to show.
        dropped: how many there are in all.
        likeness: the least and the greatest of all of them; None where none was measured.
        shingles: what the stage tells likeness by, as `Global.shingles` has it.
        no_text: why there is no text of the survivor; "" where there is.
    """

    stage: str
    survivor: Original
    later: str
    members: tuple[Member, ...]
    dropped: int
    likeness: tuple[float, float] | None
    shingles: tuple[int, Literal["word", "char"]]
    no_text: str


def find_clusters(looker: Looker, wanted: WantedClusters) -> Iterator[Cluster]:
    """At most `count` clusters, one after the other. Raises UserError where there are none, before the first."""
    sources = looker.chosen(wanted.source)
    reasons = [one for one in _reasons(looker, sources) if wanted.stage == ALL or is_asked(wanted.stage, one)]
    chosen = _choose(looker, wanted, sources, reasons)
    if not chosen:
        raise _nothing(looker, wanted, sources)
    _collect(looker, wanted, chosen, reasons)
    return (_cluster(looker, one) for one in chosen)


@dataclass(slots=True)
class _Chosen:
    """A cluster while its drops are counted.

    Attributes:
        source: one that the stage dropped documents of.
        later: as in the result.
        shown: (order, keyed hash, key, likeness) of those to show, ascending.
    """

    reason: str
    survivor: bytes
    source: str = ""
    later: str = ""
    dropped: int = 0
    likeness: tuple[float, float] = (np.inf, -np.inf)
    shown: list[tuple[float, int, bytes, float]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drops:
    """Drops of a batch: (num_drops,) each; `reasons` are numbers of what was asked for, `survivors` a key column."""

    source: str
    keys: pa.Array
    survivors: pa.Array
    reasons: np.ndarray
    values: np.ndarray


def _reasons(looker: Looker, sources: Iterable[str]) -> list[str]:
    """Every "stage:rule" that documents of these sources were dropped for."""
    records = (record for name in sources for step in looker.cleaning(name) for record in step.records)
    return sorted({reason for record in records for reason in record.metrics.document_counts.dropped})


def _batches(looker: Looker, record: Record) -> Iterator[pa.RecordBatch]:
    for output in record.of("drops", TableFile):
        if output.rows:
            yield from read_table(looker.root, output)


def _drops(looker: Looker, sources: Iterable[str], reasons: Sequence[str]) -> Iterator[_Drops]:
    """What was dropped in favour of others, for these reasons."""
    for source in sources:
        for record in (record for step in looker.cleaning(source) for record in step.records):
            if any(record.metrics.document_counts.dropped.get(reason) for reason in reasons):
                for batch in _batches(looker, record):
                    yield _for_others(source, batch, reasons)


def _for_others(source: str, batch: pa.RecordBatch, reasons: Sequence[str]) -> _Drops:
    found = compute.binary_join_element_wise(batch.column("stage"), batch.column("rule"), ":")
    asked = compute.index_in(found, value_set=pa.array(reasons, pa.string()))
    shown = compute.and_(asked.is_valid(), batch.column("survivor").is_valid())
    rows = batch.filter(shown)
    return _Drops(
        source=source,
        keys=rows.column("key"),
        survivors=rows.column("survivor"),
        reasons=numbers(asked.filter(shown)).astype(np.int64),
        values=numbers(rows.column("value")),
    )


# ------------------------------------------------------------------------------------------------ which clusters


def _choose(looker: Looker, wanted: WantedClusters, sources: Sequence[str], reasons: Sequence[str]) -> list[_Chosen]:
    """The first pass."""
    best = [np.zeros(0), *(np.zeros(0, np.uint64) for _ in range(4))]
    for drops in _drops(looker, sources, reasons):
        halves = key_halves(drops.survivors)
        order = _order(drops.values, wanted)
        rows = (order, keyed_hash(halves, _SEED), *halves, drops.reasons.astype(np.uint64))
        best = _first_clusters([np.concatenate(both) for both in zip(best, rows)], wanted.count)
    survivors = key_matrix(make_keys(best[2], best[3]))
    return [_Chosen(reason=reasons[int(number)], survivor=one.tobytes()) for one, number in zip(survivors, best[4])]


_SEED = seed_for(0, "inspect")


def _order(values: np.ndarray, wanted: WantedClusters) -> np.ndarray:
    """What comes first, before the keyed hash; NaN, which is not measured, comes last."""
    return np.where(np.isnan(values), np.inf, values) if wanted.least_alike else np.zeros(len(values))


def _first_clusters(rows: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """The first row of each of the first `count` clusters, of rows (order, keyed hash, survivor's halves, reason)."""
    order = np.lexsort(rows[::-1])
    _, firsts = np.unique(np.column_stack([one[order] for one in rows[2:]]), axis=0, return_index=True)
    chosen = order[np.sort(firsts)[:count]]
    return [one[chosen] for one in rows]


def _nothing(looker: Looker, wanted: WantedClusters, sources: Sequence[str]) -> UserError:
    """Why there are no clusters to show."""
    asked, whose = f"--clusters {wanted.stage}", f" of source '{wanted.source}'" if wanted.source else ""
    used = {use.alias: use for source in sources for use in looker.mixture.stages_of(source)}
    makers = [name for name, use in used.items() if _makes_clusters(use)]
    where = "there" if wanted.source else "here"
    told = f"Stages that drop documents in favour of others {where}: {', '.join(makers) or '(there is none)'}"
    if wanted.stage == ALL:
        return _none_dropped(looker, asked, whose, sources, told)
    name = _named(wanted.stage, used)
    if name in makers:
        return _none_dropped(looker, asked, whose, sources, told)
    if name:
        does = (
            "cuts spans out of texts" if isinstance(catalogue.build_stage(used[name]), Global) else "judges each document alone"
        )
        return UserError(
            f"{asked}: {name} {does}, and drops none in favour of another, so it has no clusters. "
            f"What it dropped: --dropped {name}. {told}"
        )
    users = [one for one in looker.sources if _named(wanted.stage, [use.alias for use in looker.mixture.stages_of(one)])]
    if users:
        others = f"It is one of {', '.join(users)}"
        return UserError(f"{asked}: '{wanted.stage}' is no stage{whose}. {others}. {told}")
    return UserError(f"{asked}: no stage '{wanted.stage}' in this output.{suggest(wanted.stage, makers)} {told}")


def _named(asked: str, aliases: Iterable[str]) -> str:
    """The alias that was asked for, by itself, by the name that a run gives it, or with a rule; "" where none of them was."""
    names = [one.partition("@")[0] for one in (asked, stage_of(asked))]
    return next((alias for alias in aliases if alias in names), "")


def _none_dropped(looker: Looker, asked: str, whose: str, sources: Sequence[str], told: str) -> UserError:
    tokenized = {step.source for step in looker.steps if step.kind == "tokenize" and step.records}
    is_judged = tokenized.issuperset(sources)  # a source is tokenized once all of its documents are judged
    so_far = "" if is_judged else ", as far as the run has come"
    return UserError(f"{asked}: no document{whose} was dropped in favour of another{so_far}. {told}")


def _makes_clusters(use: StageUse) -> bool:
    stage = catalogue.build_stage(use)
    return isinstance(stage, Global) and drops_for_others(stage.exchanges())


# ------------------------------------------------------------------------------------------------ what is in them


def _collect(looker: Looker, wanted: WantedClusters, chosen: Sequence[_Chosen], reasons: Sequence[str]) -> None:
    """The second pass: members from all sources, and what became of the survivors behind the stage."""
    survivors = list(dict.fromkeys(one.survivor for one in chosen))
    wanted_keys = pa.array(survivors, KEY_TYPE)
    places = {(one.survivor, one.reason): number for number, one in enumerate(chosen)}
    # numbers: (num_survivors, num_reasons) the cluster of both, -1 where it is not shown
    cluster_of = np.array([[places.get((key, reason), -1) for reason in reasons] for key in survivors], np.int64)
    for drops in _drops(looker, looker.sources, reasons):
        at = numbers(compute.index_in(drops.survivors, value_set=wanted_keys).fill_null(-1))
        clusters = np.where(at >= 0, cluster_of[at, drops.reasons], -1)
        for number in np.unique(clusters[clusters >= 0]).tolist():
            _add(chosen[number], drops, np.flatnonzero(clusters == number), wanted)
    later = _fates(looker, wanted_keys)
    for one in chosen:
        one.later = later.get(one.survivor, "")


def _add(cluster: _Chosen, drops: _Drops, rows: np.ndarray, wanted: WantedClusters) -> None:
    """Adds rows of drops to their cluster."""
    values, keys = drops.values[rows], drops.keys.take(pa.array(rows))
    hashes = keyed_hash(key_halves(keys), _SEED)
    order = _order(values, wanted)
    first = np.lexsort((hashes, order))[: wanted.members]
    found = zip(order[first].tolist(), hashes[first].tolist(), keys.take(pa.array(first)).to_pylist(), values[first].tolist())
    cluster.source = cluster.source or drops.source
    cluster.dropped += len(rows)
    least, greatest = cluster.likeness
    measured = values[~np.isnan(values)]
    cluster.likeness = float(measured.min(initial=least)), float(measured.max(initial=greatest))
    cluster.shown = sorted([*cluster.shown, *found])[: wanted.members]


def _fates(looker: Looker, keys: pa.Array) -> dict[bytes, str]:
    """For what reason each of these documents was dropped, of those that were."""
    found: dict[bytes, str] = {}
    for source in looker.sources:
        for record in (record for step in looker.cleaning(source) for record in step.records):
            for batch in _batches(looker, record):
                rows = batch.filter(compute.index_in(batch.column("key"), value_set=keys).is_valid())
                found |= {row["key"]: f"{row['stage']}:{row['rule']}" for row in rows.to_pylist()}
    return found


def _cluster(looker: Looker, chosen: _Chosen) -> Cluster:
    """The cluster with its texts."""
    uses = {use.alias: use for use in looker.mixture.stages_of(chosen.source)}
    stage = catalogue.build_stage(uses[alias_of(chosen.reason)])
    assert isinstance(stage, Global), chosen.reason
    members = [
        Member(document=looker.originals.find(key), likeness=None if np.isnan(value) else value)
        for _, _, key, value in chosen.shown
    ]
    survivor = looker.originals.find(chosen.survivor)
    return Cluster(
        stage=stage_of(chosen.reason),
        survivor=survivor,
        later=chosen.later,
        members=tuple(members),
        dropped=chosen.dropped,
        likeness=chosen.likeness if np.isfinite(chosen.likeness).all() else None,
        shingles=stage.shingles(),
        no_text="" if survivor.text is not None else _why_no_text(survivor),
    )


def _why_no_text(document: Original) -> str:
    is_of_index = document.run and not Root(document.run).exists(RUN)
    return "an index holds no texts" if is_of_index else "its file is gone or has changed"
