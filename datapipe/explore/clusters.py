"""Clusters of duplicates: the surviving document beside those that were dropped for it, with their texts.

    facts with a survivor  ─▶  grouped by stage, rule and survivor  ─▶  the first clusters of an order  ─▶  their members

A cluster is what one rule of a stage dropped in favour of one document. Samples are
keyed by the survivor. Texts are read one cluster at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from datapipe.config import catalogue
from datapipe.dataclass import asdict
from datapipe.errors import UserError, suggest
from datapipe.explore.database import Database
from datapipe.explore.differences import Segment, difference
from datapipe.explore.document.view import DocumentView
from datapipe.explore.documents import SAMPLE, Inspector, matching, reason_of, stage_alias
from datapipe.explore.rows import MOST_LISTED
from datapipe.records.names import RUN
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import drops_for_others
from datapipe.storage.root import Root

ALL = "all"
MOST_MEMBERS = 50
_ORDERS = {"size": "dropped desc, ", "least_alike": "least nulls last, ", "sample": ""}

_VALUE = "case when isfinite(value) then value end"
_GROUPS = f"""
select stage, rule, survivor, count(*) as dropped, min({_VALUE}) as least, max({_VALUE}) as greatest, min(source) as source,
    count(*) over () as total
from facts where survivor is not null and {matching("$stage")}
group by stage, rule, survivor having $source = '' or bool_or(source = $source)
order by {{order}} md5(survivor), survivor, stage, rule limit $limit offset $offset
"""
_MEMBERS = f"""
select source, key, {_VALUE} as value from facts where survivor = $survivor and {matching("$stage")}
order by {{order}} {SAMPLE} limit $limit
"""


def _groups(database: Database, stage: str, source: str, sort: str, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """The clusters of a stage, or of all stages for ""; `total` is how many there are."""
    options = {"stage": stage, "source": source, "limit": limit, "offset": offset}
    return database.rows(_GROUPS.format(order=_ORDERS[sort]), options)


def _members(database: Database, stage: str, survivor: bytes, limit: int, sort: str = "sample") -> list[dict[str, Any]]:
    order = "value nulls last, " if sort == "least_alike" else ""
    return database.rows(_MEMBERS.format(order=order), {"stage": stage, "survivor": survivor, "limit": limit})


def find_clusters(
    inspector: Inspector, stage: str, source: str = "", count: int = 5, members: int = 3, least_alike: bool = False
) -> Iterator[dict[str, Any]]:
    """Clusters as plain data, read one after the other. Raises UserError at once when there are none.

    stage       that dropped the documents
    survivor    {document, run, text, no_text, dropped_later_by}: why it has no text; the "stage:rule" of a later stage that
                dropped it; each None where there is none
    dropped     number of dropped documents in all
    similarity  {min, max} of all of them, as the stage measured it; None where it measured none
    shingles    {size, unit} of the n-grams that the stage compares, as `Global.shingles` returns them
    members     the dropped documents to show: {document, run, text, similarity}

    Args:
        stage: a stage, "stage:rule", or "all".
        source: clusters that lost documents of this source; empty for all sources.
        count, members: most clusters, and most dropped documents of each.
        least_alike: lowest similarity first and unmeasured last; otherwise keyed samples.
    """
    inspector.select_sources(source)
    sort = "least_alike" if least_alike else "sample"
    groups = _groups(inspector.database, "" if stage == ALL else stage, source, sort, count)
    if not groups:
        raise _no_clusters(inspector, stage, source)
    return (_cluster(inspector, group, members, sort) for group in groups)


def _cluster(inspector: Inspector, group: Mapping[str, Any], members: int, sort: str) -> dict[str, Any]:
    locate, survivor = inspector.locator.locate, inspector.locator.locate(group["survivor"])
    use = inspector.use_of(group["source"], group["stage"])
    stage = None if use is None else catalogue.build_stage(use)
    size, unit = stage.shingles() if isinstance(stage, Global) else (5, "word")
    decided = inspector.facts_of([group["survivor"]]).get(group["survivor"])
    listed = _members(inspector.database, f"{group['stage']}:{group['rule']}", group["survivor"], members, sort)
    no_text = None
    if survivor.text is None:
        is_of_index = survivor.run and not Root(survivor.run).exists(RUN)
        no_text = "an index holds no texts" if is_of_index else "its file is missing or has changed"
    later = reason_of(decided) if decided is not None and decided["fate"] == "dropped" else None
    return {
        "stage": group["stage"],
        "survivor": {**survivor.to_json(), "no_text": no_text, "dropped_later_by": later},
        "dropped": group["dropped"],
        "similarity": None if group["least"] is None else {"min": group["least"], "max": group["greatest"]},
        "shingles": {"size": size, "unit": unit},
        "members": [{**locate(row["key"]).to_json(), "similarity": row["value"]} for row in listed],
    }


def _no_clusters(inspector: Inspector, stage: str, source: str) -> UserError:
    option, where = f"--clusters {stage}", f"source '{source}'" if source else "this output"
    built = {
        use.alias: catalogue.build_stage(use)
        for name in inspector.select_sources(source)
        for use in inspector.mixture.stages_of(name)
    }
    makers = [name for name, each in built.items() if isinstance(each, Global) and drops_for_others(each.exchanges())]
    listed = f"Stages of {where} that drop duplicates: {', '.join(makers) or '(none)'}"
    name = next((alias for alias in built if alias in (stage_alias(f"{stage}:"), stage_alias(stage))), "")
    if stage == ALL or name in makers:
        return UserError(f"{option}: no document of {where} was dropped in favour of another. {listed}")
    if name:
        return UserError(
            f"{option}: {name} drops no document in favour of another, so it has no clusters. "
            f"Show the documents that it dropped with --dropped {name}. {listed}"
        )
    return UserError(f"{option}: '{stage}' is no stage of {where}.{suggest(stage, makers)} {listed}")


class ClusterQuery(BaseModel, frozen=True):
    stage: str = ""
    source: str = ""
    sort: Literal["size", "least_alike", "sample"] = "size"
    offset: int = Field(default=0, ge=0)
    limit: int = Field(default=20, ge=0, le=MOST_LISTED)


def listed_clusters(view: DocumentView, query: ClusterQuery) -> dict[str, Any]:
    view.output.select_sources(query.source)
    groups = _groups(view.output.database, query.stage, query.source, query.sort, query.limit, query.offset)
    facts = view.output.facts_of([group["survivor"] for group in groups])
    clusters = []
    for group in groups:
        similarity = None if group["least"] is None else [group["least"], group["greatest"]]
        row = _row(view, group["survivor"], facts)
        clusters.append({"stage": query.stage, "survivor": row, "dropped": group["dropped"], "similarity": similarity})
    view.add_excerpts([each["survivor"] for each in clusters])
    return {"total": groups[0]["total"] if groups else 0, "clusters": clusters}


def shown_cluster(view: DocumentView, key: bytes, stage: str, members: int) -> dict[str, Any]:
    rows = _members(view.output.database, stage, key, min(members, MOST_MEMBERS))
    if not rows:
        raise UserError(f"No document was dropped by '{stage}' in favour of this one. Choose a cluster of api/clusters.")
    facts = view.output.facts_of([key, *(row["key"] for row in rows)])
    text, note = _text_of(view, key, facts)
    own_parts: Sequence[Segment] = ()
    listed = []
    for member in rows:
        other, other_note = _text_of(view, member["key"], facts)
        parts: Sequence[Segment] = (Segment(text=other, differs=False),)
        for passage in difference(text, other, context=None).passages if text and other else ():
            own_parts, parts = own_parts or passage.first, passage.second
        listed.append({**_shown(view, member["key"], facts, parts, other_note), "similarity": member["value"]})
    return {"survivor": _shown(view, key, facts, own_parts or (Segment(text=text, differs=False),), note), "members": listed}


def _shown(
    view: DocumentView, key: bytes, facts: Mapping[bytes, Mapping[str, Any]], parts: Sequence[Segment], note: str
) -> dict[str, Any]:
    return {"row": _row(view, key, facts), "parts": [asdict(part) for part in parts if part.text], "note": note}


def _row(view: DocumentView, key: bytes, facts: Mapping[bytes, Mapping[str, Any]]) -> dict[str, Any]:
    """The row of a document; of one of an earlier run, what is known of it."""
    unknown = dict.fromkeys(("source", "id", "url", "stage", "rule", "value", "threshold", "bytes"))
    return view.rows.shown([facts.get(key, {**unknown, "key": key, "fate": "kept"})])[0]


def _text_of(view: DocumentView, key: bytes, facts: Mapping[bytes, Mapping[str, Any]]) -> tuple[str, str]:
    """The redacted text, as much as is compared, and why there is none."""
    if key not in facts:
        return "", "A document of an earlier run, whose text is not read here."
    text, note = view.text(facts[key])
    return text, "" if text else note
