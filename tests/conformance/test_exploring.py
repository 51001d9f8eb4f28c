"""Every view of an output equals one plain pass over its tables and its inputs.

tables of a run (kept, dropped, quarantined), input files ─▶ `everything`: a row for each document, in plain Python
inspect, clusters, browse, search, borderline, report.json ─▶ what is expected of each follows from these rows
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.columns import make_keys
from datapipe.errors import UserError
from datapipe.exchange.tables import read_table
from datapipe.explore import search
from datapipe.explore.clusters import find_clusters
from datapipe.explore.documents import Fate, Inspector
from datapipe.explore.rows import SORTS
from datapipe.records.outputs import TableFile
from datapipe.steps.splits import file_hash
from tests.support import browsed
from tests.support.browsed import Browsed
from tests.support.finished import deduplicated, plain  # noqa: F401

pytestmark = pytest.mark.medium

KINDS: dict[Fate, str] = {"kept": "documents", "dropped": "drops", "quarantined": "quarantine"}


@dataclass(frozen=True)
class Row:
    """What became of a document."""

    key: str
    source: str
    name: str
    fate: str
    own_id: str
    reason: str
    value: float | None
    threshold: float | None
    survivor: str | None
    text: str | None
    """As the stages left it, or of dropped documents as it was read; None where no line of the input is one."""


def _inputs(inspector: Inspector) -> dict[str, tuple[str, Any]]:
    """By key the name and the text of every line of the JSONL inputs, read again."""
    found = {}
    for name, source in inspector.mixture.sources.items():
        for path in sorted(path for pattern in source.path for path in Path("/").glob(pattern.removeprefix("/"))):
            position = 0
            for line in path.read_bytes().splitlines(keepends=True):
                [key] = make_keys(file_hash(name, path.name), np.array([position], np.uint64)).to_pylist()
                found[key.hex()] = (f"{name}/{path.name}:{position}", _text(line))
                position += len(line)
    return found


def _text(line: bytes) -> Any:
    try:
        return json.loads(line)["text"]
    except ValueError:
        return None


def everything(folder: Path) -> list[Row]:
    inspector = Inspector.open(str(folder / "out"))
    inputs = _inputs(inspector)
    rows = []
    for source, (fate, kind) in product(inspector.sources, KINDS.items()):
        steps = [step for step in inspector.steps if step.kind == "map" and step.source == source]
        for step in steps[-1:] if fate == "kept" else steps:
            for table in step.outputs(kind, TableFile):
                for row in (row for batch in read_table(inspector.root, table) for row in batch.to_pylist()):
                    key, survivor = row["key"].hex(), row.get("survivor")
                    name, text = inputs[key]
                    own_id = row.get("id") or ""
                    reason = ":".join(filter(None, (row.get("stage"), row.get("rule"))))
                    value = None if row.get("value") is None or math.isnan(row["value"]) else row["value"]
                    measured = (value, row.get("threshold"), survivor and survivor.hex())
                    text = row["text"] if fate == "kept" else text if isinstance(text, str) else None
                    rows.append(Row(key, source, name, fate, "" if own_id == name else own_id, reason, *measured, text))
    return rows


@pytest.fixture(scope="module", params=["plain", "deduplicated"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[Row]:
    return everything(folder)


@pytest.fixture(scope="module")
def page(folder: Path) -> Browsed:
    return browsed.browse(folder / "out")


@pytest.mark.slow
def test_inspect_finds_every_document_with_its_reason_by_every_name(folder: Path, rows: list[Row]) -> None:
    inspector = Inspector.open(str(folder / "out"))
    by_key = {row.key: row for row in rows}
    reasons = {row.reason for row in rows} | {row.reason.partition(":")[0] for row in rows if row.fate == "dropped"}
    for fate, source, reason in product(KINDS, ["", *inspector.sources], reasons):
        expected = {
            row.key
            for row in rows
            if row.fate == fate
            and source in ("", row.source)
            and (reason in ("", row.reason) or row.reason.startswith(f"{reason}:"))
        }
        if reason and (fate != "dropped" or not expected):
            continue
        found = inspector.find(outcome=fate, source=source, reason=reason, count=999)
        assert {document["key"] for document in found} == expected
        few = inspector.find(outcome=fate, source=source, reason=reason, count=3)
        assert few == found[:3]
    for fate in KINDS:
        for document in inspector.find(outcome=fate, count=999):
            row = by_key[document["key"]]
            survivor = None if row.survivor is None else by_key[row.survivor].name
            expected = (row.name, row.source, row.own_id or None, row.reason or None, row.value, row.threshold, survivor)
            named = ("document", "source", "own_id", "reason", "value", "threshold", "survivor")
            assert tuple(document[name] for name in named) == expected
            assert row.text is None or document["text"] == row.text
    for row in rows[:: max(1, len(rows) // 12)]:
        for name in {row.name, row.key, row.own_id} - {""}:
            assert inspector.find_document(name)["key"] == row.key


def test_documents_in_sql_are_the_rows(folder: Path, rows: list[Row]) -> None:
    columns = "key, source, name, fate, id, stage, rule, value, threshold, survivor, bytes"
    _, found = Inspector.open(str(folder / "out")).database.ask(f"select {columns} from documents")
    listed = {}
    for key, source, name, fate, own_id, stage, rule, *measured, size in found:
        reason = ":".join(filter(None, (stage, rule)))
        listed[key] = (source, name, fate, "" if own_id in (None, name) else own_id, reason, *measured, size)
    assert len(listed) == len(rows)
    for row in rows:
        size = len(row.text.encode()) if row.fate == "kept" and row.text is not None else None
        expected = (row.source, row.name, row.fate, row.own_id, row.reason, row.value, row.threshold, row.survivor, size)
        assert listed[row.key] == expected


def _clusters(rows: list[Row], stage: str, source: str = "") -> dict[tuple[str, str], list[Row]]:
    """The rows dropped for another document, by the reason and the key of that one."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.survivor is not None and stage in ("all", row.reason.partition(":")[0], row.reason):
            found[row.reason, row.survivor].append(row)
    return {named: members for named, members in found.items() if any(source in ("", row.source) for row in members)}


@pytest.mark.parametrize("stage", ["dedup.exact", "dedup.minhash", "dedup.minhash:duplicate", "all"])
@pytest.mark.slow
def test_clusters_are_the_dropped_documents_by_their_survivor(folder: Path, rows: list[Row], stage: str) -> None:
    inspector = Inspector.open(str(folder / "out"))
    by_key = {row.key: row for row in rows}
    for source in ("", "web"):
        expected = _clusters(rows, stage, source)
        for least_alike in (False, True):
            options: dict[str, Any] = {"stage": stage, "source": source, "least_alike": least_alike}
            found = list(find_clusters(inspector, count=99, members=99, **options))
            assert len(found) == len(expected)
            for cluster in found:
                [named] = [
                    key
                    for key in expected
                    if by_key[key[1]].name == cluster["survivor"]["document"] and key[0].startswith(cluster["stage"])
                ]
                members = expected[named]
                values = sorted(row.value for row in members if row.value is not None)
                assert cluster["dropped"] == len(members) == len(cluster["members"])
                assert cluster["similarity"] == ({"min": values[0], "max": values[-1]} if values else None)
                assert {member["text"] for member in cluster["members"]} == {row.text for row in members}
                later = by_key[named[1]].reason if by_key[named[1]].fate == "dropped" else None
                assert cluster["survivor"]["dropped_later_by"] == later
            if least_alike:
                firsts = [cluster["members"][0]["similarity"] or 0 for cluster in found]
                assert firsts == sorted(firsts)
            few = list(find_clusters(inspector, count=2, members=1, **options))
            assert few == [{**cluster, "members": cluster["members"][:1]} for cluster in found[:2]]
    with pytest.raises(UserError):
        find_clusters(inspector, stage="dedup.none")


def _listed(shown: list[dict[str, Any]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a list of the page in its order; `shown` in the order of keys."""
    low, high = options.get("min", -math.inf), options.get("max", math.inf)
    is_bounded = "min" in options or "max" in options
    chosen = [
        row
        for row in shown
        if all(options.get(name, "") in ("", row[name]) for name in ("source", "fate", "stage", "rule"))
        and (not is_bounded or (row["value"] is not None and low <= row["value"] <= high))
    ]
    sort = options.get("sort", "key")
    kind, sign = sort.removeprefix("-"), -1 if sort.startswith("-") else 1
    if kind == "key":
        return sorted(chosen, key=lambda row: row["key"])
    return sorted(chosen, key=lambda row: (row[kind] is None, sign * (row[kind] or 0)))


@pytest.mark.slow
def test_lists_of_the_page_are_the_rows_filtered_sorted_and_cut(rows: list[Row], page: Browsed) -> None:
    shown = page.listed()
    by_key = {row.key: row for row in rows}
    assert {each["key"] for each in shown} == set(by_key)
    for each in shown:
        row = by_key[each["key"]]
        assert (each["name"], each["fate"], each["source"]) == (row.name, row.fate, row.source)
        assert ":".join(filter(None, (each["stage"], each["rule"]))) == row.reason
    filters: list[dict[str, Any]] = [{}, {"source": "web"}, {"fate": "dropped"}, {"fate": "quarantined"}]
    filters += [{"fate": "dropped", "min": 3}, {"min": 0.5, "max": 8}, {"fate": "kept", "source": "web"}]
    for chosen, sort, (offset, limit) in product(filters, SORTS, [(0, 500), (3, 5), (40, 30)]):
        options = {**chosen, "sort": sort}
        answer, expected = page.get("documents", **options, offset=offset, limit=limit), _listed(shown, options)
        assert (answer["total"], answer["documents"]) == (len(expected), expected[offset : offset + limit]), options
    for row in rows[:: max(1, len(rows) // 12)]:
        for name in {row.key, row.name, row.own_id} - {""}:
            assert row.key in [found["key"] for found in page.get("lookup", q=name)["documents"]]
    assert page.get("lookup", q="nobody")["documents"] == []


@pytest.mark.parametrize("stage", ["dedup.exact", "dedup.minhash"])
def test_clusters_of_the_page_are_the_dropped_documents_by_their_survivor(rows: list[Row], page: Browsed, stage: str) -> None:
    expected = {key: members for (_, key), members in _clusters(rows, stage).items()}
    listed = page.get("clusters", stage=stage)
    assert listed["total"] == len(expected) == len(listed["clusters"])
    for cluster in listed["clusters"]:
        members = expected[cluster["survivor"]["key"]]
        shown = page.get("cluster", cluster["survivor"]["key"], stage=stage, members=99)
        assert cluster["dropped"] == len(members)
        assert {member["row"]["key"] for member in shown["members"]} == {row.key for row in members}
    sizes = [cluster["dropped"] for cluster in listed["clusters"]]
    assert sizes == sorted(sizes, reverse=True)
    least = [cluster["similarity"] for cluster in page.get("clusters", stage=stage, sort="least_alike")["clusters"]]
    assert least == sorted(least, key=lambda both: (both is None, both))
    pages = [page.get("clusters", stage=stage, offset=offset, limit=1)["clusters"] for offset in range(listed["total"])]
    assert [page[0] for page in pages] == listed["clusters"]


def _hits(page: Browsed, **options: Any) -> Iterator[dict[str, Any]]:
    lines = page.get("search", **options)["lines"]
    assert "progress" in lines[0]
    assert lines[-1]["done"]["hits"] == sum("hit" in line for line in lines)
    yield from (line["hit"] for line in lines if "hit" in line)


@pytest.mark.parametrize("text", ["the token is", "THE", "near 1", "(.*", "word word word", "number 1"])
def test_search_finds_the_documents_whose_text_holds_the_words(
    rows: list[Row], page: Browsed, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_PROGRESS_EVERY_S", 0.0)
    for case, fate in product((0, 1), ("", "kept", "dropped")):
        found = list(_hits(page, q=text, case=case, limit=2000, **({"fate": fate} if fate else {})))
        expected = {
            row.key
            for row in rows
            if row.fate != "quarantined" and fate in ("", row.fate) and isinstance(row.text, str)
            if (text in row.text if case else text.lower() in row.text.lower())
        }
        keys = [hit["key"] for hit in found if hit["fate"] != "quarantined"]
        assert len(keys) == len(set(keys))
        assert set(keys) == expected
        for hit in found:
            assert hit["ranges"]
            assert all(hit["excerpt"][start:stop].lower() == text.lower() for start, stop in hit["ranges"])


def test_distributions_and_both_sides_of_a_threshold_are_those_of_the_rows(
    folder: Path, rows: list[Row], page: Browsed
) -> None:
    report = json.loads((folder / "out/report.json").read_text())
    for source, stages in report["measured"].items():
        for stage, rules in stages.items():
            for rule, facts in rules.items():
                dropped = [row for row in rows if row.source == source and row.reason == f"{stage}:{rule}"]
                assert facts["dropped"] == len(dropped)
                assert sum(row[2] for row in facts["bins"]) == facts["passed"]
                assert sum(row[3] for row in facts["bins"]) == facts["failed"] >= len(dropped)
                if not dropped:
                    continue
                sides = page.get("borderline", source=source, stage=stage, rule=rule)
                is_min = facts["side"] == "min"
                values = sorted((row.value or 0 for row in dropped), reverse=is_min)
                shown = [row["value"] for row in sides["dropped"]]
                assert shown == values[: len(shown)] and len(shown) == min(len(values), max(10, len(shown)))
                assert {row["fate"] for row in sides["kept"]} <= {"kept"}
