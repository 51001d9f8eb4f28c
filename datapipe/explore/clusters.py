"""Clusters of duplicates: the surviving document beside those that were dropped for it, with their texts.

    facts with a survivor  ─▶  grouped by stage, rule and survivor  ─▶  the first clusters of an order  ─▶  their members

A cluster is what one rule of a stage dropped in favour of one document. Samples are keyed by the survivor: the same query
returns the same clusters each time, and a larger sample contains the smaller one. Texts are read one cluster at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from datapipe import catalogue
from datapipe.config.stage_use import StageUse
from datapipe.errors import UserError, suggest
from datapipe.explore.database import Database
from datapipe.explore.differences import difference
from datapipe.explore.documents import SAMPLE, Inspector, matching, stage_of
from datapipe.explore.located import LocatedDocument
from datapipe.explore.rows import MOST_LISTED, Rows, check_source
from datapipe.ledger.names import RUN
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import drops_for_others
from datapipe.storage import Root

ALL = "all"
MOST_MEMBERS = 50
_ORDERS = {"size": "dropped desc, ", "least_alike": "least nulls last, ", "sample": ""}
SORTS = tuple(_ORDERS)

_MEMBERS = f"""
with members as (
    select stage, rule, survivor, source, key, case when not isnan(value) then value end as value
    from facts where survivor is not null and {matching("$stage")}
)
"""
_GROUPS = f"""{_MEMBERS}
select stage, rule, survivor, count(*) as dropped, min(value) as least, max(value) as greatest, min(source) as source,
    count(*) over () as total
from members group by stage, rule, survivor having $source = '' or bool_or(source = $source)
order by {{order}} md5(survivor), survivor, stage, rule limit $limit offset $offset
"""
_MEMBERS_OF = f"""{_MEMBERS}
, wanted as (
    select unnest($stages::varchar[]) as stage, unnest($rules::varchar[]) as rule, unnest($survivors::blob[]) as survivor
)
select members.* from members join wanted using (stage, rule, survivor)
qualify row_number() over (partition by stage, rule, survivor order by {{order}} {SAMPLE}) <= $members
order by {{order}} {SAMPLE}
"""


def _groups(database: Database, stage: str, source: str, sort: str, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """The clusters of a stage, or of all stages for ""; `total` is how many there are."""
    options = {"stage": stage, "source": source, "limit": limit, "offset": offset}
    return database.rows(_GROUPS.format(order=_ORDERS[sort]), options)


def _members(database: Database, groups: Sequence[Mapping[str, Any]], count: int, sort: str) -> Iterator[list[dict[str, Any]]]:
    """The first dropped documents of each cluster."""
    names = {name: [group[name[:-1]] for group in groups] for name in ("stages", "rules", "survivors")}
    order = "value nulls last, " if sort == "least_alike" else ""
    found = database.rows(_MEMBERS_OF.format(order=order), {"stage": "", "members": count, **names})
    for group in groups:
        yield [row for row in found if all(row[name] == group[name] for name in ("stage", "rule", "survivor"))]


# ------------------------------------------------------------------------------------------------ for the terminal


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
    stage, sort = "" if query.stage == ALL else query.stage, "least_alike" if query.least_alike else "sample"
    groups = _groups(inspector.database, stage, query.source, sort, query.count)
    if not groups:
        raise _no_clusters(inspector, query, sources)
    members = _members(inspector.database, groups, query.members, sort)
    later = _reasons_of_drops(inspector.database, [group["survivor"] for group in groups])
    return (_cluster(inspector, group, listed, later) for group, listed in zip(groups, members))


def _reasons_of_drops(database: Database, keys: Sequence[bytes]) -> dict[bytes, str]:
    """By key the "stage:rule" that dropped each of these documents; documents that were kept are absent."""
    query = "select key, stage || ':' || rule as reason from facts where fate = 'dropped' and key in (select unnest(?::blob[]))"
    return {row["key"]: row["reason"] for row in database.rows(query, [list(keys)])}


def _cluster(
    inspector: Inspector, group: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], later: Mapping[bytes, str]
) -> Cluster:
    """The cluster with its texts."""
    locate, survivor = inspector.locator.locate, inspector.locator.locate(group["survivor"])
    return Cluster(
        stage=group["stage"],
        survivor=survivor,
        dropped_later_by=later.get(group["survivor"], ""),
        members=tuple(Member(document=locate(row["key"]), similarity=row["value"]) for row in listed),
        dropped=group["dropped"],
        similarity=_similarity(group),
        shingles=_shingles(inspector.use_of(group["source"], group["stage"])),
        no_text="" if survivor.text is not None else _why_no_text(survivor),
    )


def _similarity(group: Mapping[str, Any]) -> tuple[float, float] | None:
    return None if group["least"] is None else (group["least"], group["greatest"])


def _shingles(use: StageUse | None) -> tuple[int, Literal["word", "char"]]:
    stage = None if use is None else catalogue.build_stage(use)
    return stage.shingles() if isinstance(stage, Global) else (5, "word")


def _why_no_text(document: LocatedDocument) -> str:
    is_of_index = document.run and not Root(document.run).exists(RUN)
    return "an index holds no texts" if is_of_index else "its file is missing or has changed"


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


# ------------------------------------------------------------------------------------------------ for the page


class ClusterView:
    """Clusters of an output, as the page shows them."""

    def __init__(self, output: Inspector, rows: Rows, text: Callable[[Mapping[str, Any]], tuple[str, str]]) -> None:
        self._output, self._rows, self._text = output, rows, text

    def listed(self, stage: str, source: str, sort: str, offset: int, limit: int) -> dict[str, Any]:
        """A page of the clusters of a stage. Raises UserError for an order that there is not."""
        if sort not in SORTS or limit > MOST_LISTED:
            raise UserError(f"sort '{sort}', limit {limit}: expected one of {', '.join(SORTS)}, and at most {MOST_LISTED}.")
        check_source(source, self._output.sources)
        groups = _groups(self._output.database, stage, source, sort, limit, offset)
        rows = self._shown([group["survivor"] for group in groups])
        clusters = [
            {"stage": stage, "survivor": rows[group["survivor"]], "dropped": group["dropped"], "similarity": _listed(group)}
            for group in groups
        ]
        return {"total": groups[0]["total"] if groups else 0, "clusters": clusters}

    def cluster(self, key: bytes, stage: str, members: int) -> dict[str, Any]:
        """A cluster with its texts, and what differs between the survivor and each dropped document."""
        found = self._output.database.rows(
            f"{_MEMBERS} select key, value, source from members where survivor = $key order by {SAMPLE} limit $limit",
            {"stage": stage, "key": key, "limit": min(members, MOST_MEMBERS)},
        )
        if not found:
            raise UserError(f"No document was dropped by '{stage}' in favour of this one. Choose a cluster of api/clusters.")
        keys = [key, *(row["key"] for row in found)]
        rows, facts = self._shown(keys), self._rows.of_keys(keys)
        texts = {each: self._shown_text(facts.get(each)) for each in keys}
        (text, note), listed, first = texts[key], [], None
        for member in found:
            own, own_note = texts[member["key"]]
            if text and own:
                parts, other = self._differing(stage, member["source"], text, own)
                first = parts if first is None else first
            else:
                other = [{"text": own, "same": True}] if own else []
            value = member["value"] if member["value"] is not None and math.isfinite(member["value"]) else None
            listed.append({"row": rows[member["key"]], "similarity": value, "parts": other, "note": own_note})
        own_parts = first if first is not None else [{"text": text, "same": True}] if text else []
        return {"survivor": {"row": rows[key], "parts": own_parts, "note": note}, "members": listed}

    def _shown(self, keys: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
        """The rows of documents; of those of an earlier run, what is known of them."""
        facts = self._rows.of_keys(keys)
        rows = dict(zip(facts, self._rows.shown(list(facts.values()))))
        return {key: rows.get(key) or self._unknown(key) for key in keys}

    def _unknown(self, key: bytes) -> dict[str, Any]:
        nothing = dict.fromkeys(("value", "threshold", "distance", "bytes", "excerpt"))
        name = self._rows.name(key)
        return {"key": key.hex(), "name": name, "id": name, "source": "", "fate": "kept", "stage": "", "rule": "", **nothing}

    def _shown_text(self, facts: Mapping[str, Any] | None) -> tuple[str, str]:
        """The redacted text, as much as is compared, and why there is none."""
        if facts is None:
            return "", "A document of an earlier run, whose text is not read here."
        text, note = self._text(facts)
        return text, "" if text else note

    def _differing(self, stage: str, source: str, first: str, second: str) -> tuple[list[dict], list[dict]]:
        """The parts of two texts."""
        passages = difference(first, second, _shingles(self._output.use_of(source, stage)), context=None).passages
        if not passages:
            return [{"text": first, "same": True}], [{"text": second, "same": True}]
        return tuple(  # type: ignore[return-value]
            [{"text": segment.text, "same": not segment.differs} for segment in side]
            for side in (passages[0].first, passages[0].second)
        )


def _listed(group: Mapping[str, Any]) -> list[float] | None:
    similarity = _similarity(group)
    return None if similarity is None or not all(map(math.isfinite, similarity)) else list(similarity)
