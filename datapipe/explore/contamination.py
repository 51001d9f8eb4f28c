"""Which entries of evaluation sets a run found in its documents, and which it cannot find.

    findings of the map tasks  ─▶  entries by list  ─▶  contaminated, clean and undetectable entries
                               ─▶  keyed sample of documents, each with what was found in it

An output whose mixture has no such stage, or another set of benchmarks, is scanned: the kept documents of its last map step go
through the same stage, which writes nothing. Memory holds one batch, the entries that are found, and the sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import catalogue
from datapipe.columns import numbers
from datapipe.config.stage_use import StageUse
from datapipe.errors import UserError
from datapipe.exchange.partitions import read_table
from datapipe.explore.documents import SAMPLE, Inspector
from datapipe.plan.compile import Step
from datapipe.plan.outputs import TableFile
from datapipe.stage.base import Filter, StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.findings import FINDINGS, SearchedList
from datapipe.storage import Root

SCAN = "decontaminate.ngram"
"""The stage that scans outputs."""

Entry = tuple[str, str, str]
"""Stage, list and entry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListCounts:
    """The entries of a list, which are of three kinds.

    Attributes:
        stage: that searched for them.
        name: of the list.
        entries: all of them.
        contaminated: found in some document.
        undetectable: cannot be found.
    """

    stage: str
    name: str
    entries: int
    contaminated: int
    undetectable: int

    @property
    def clean(self) -> int:
        return self.entries - self.contaminated - self.undetectable

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "clean": self.clean}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """An entry in a document: bytes of the text as the stage got it, and what the stage measured."""

    list: str
    entry: str
    start: int
    stop: int
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ContaminatedDocument:
    """A document and what was found in it.

    Attributes:
        document: its name.
        outcome: "dropped", "cut", "tagged", or "kept" where an output was scanned.
    """

    document: str
    stage: str
    outcome: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contamination:
    """What `datapipe inspect --contamination` shows.

    Attributes:
        lists: counts by list.
        documents: a sample.
        found: by stage, list and entry the documents that have it.
        undetectable: by list, the entries that cannot be found; None where the evaluation files are gone or have changed.
    """

    lists: tuple[ListCounts, ...]
    documents: tuple[ContaminatedDocument, ...]
    found: Mapping[Entry, int]
    undetectable: Mapping[str, tuple[str, ...]] | None

    def to_json(self) -> dict[str, Any]:
        items = [
            {"stage": s, "list": name, "entry": entry, "documents": n} for (s, name, entry), n in sorted(self.found.items())
        ]
        return {
            "lists": [counts.to_json() for counts in self.lists],
            "documents": [asdict(document) for document in self.documents],
            "contaminated": items,
            "undetectable": self.undetectable,
        }


def list_counts(root: Root, steps: Iterable[Step]) -> list[ListCounts]:
    """The counts of every list that filters of the map steps searched for."""
    known = [step for step in steps if step.kind == "map"]
    searched: dict[str, dict[str, list[int]]] = {}
    for record in (record for step in known for record in step.records):
        for stage, lists in record.metrics.searched.items():
            searched.setdefault(stage, {}).update(lists)
    found = {entry for step in known if searched for rows in _tables(root, step) for entry in _entries(rows)}
    return _counts(searched, found)


def _counts(searched: Mapping[str, Mapping[str, Sequence[int]]], found: Iterable[Entry]) -> list[ListCounts]:
    by_list = Counter((stage, name) for stage, name, _ in found)
    return [
        ListCounts(stage=stage, name=name, entries=entries, contaminated=by_list[stage, name], undetectable=lost)
        for stage, lists in searched.items()
        for name, (entries, lost) in lists.items()
    ]


def _tables(root: Root, step: Step) -> Iterator[pa.RecordBatch]:
    for output in step.outputs("findings", TableFile):
        yield from read_table(root, output)


def _entries(rows: pa.RecordBatch) -> Iterator[Entry]:
    return zip(*(rows.column(name).to_pylist() for name in ("stage", "list", "entry")))


def contamination(inspector: Inspector, source: str, count: int, against: Sequence[str] = ()) -> Contamination:
    """What an output holds of evaluation sets. Raises UserError for an output whose run searched for none.

    Args:
        source: only documents of this source; empty: of all.
        count: most documents of the sample.
        against: evaluation files to search the kept documents for; empty: what the run found.
    """
    sources = inspector.select_sources(source)
    if against:
        return _scanned(inspector, sources, count, against)
    steps = [step for name in sources for step in inspector.map_steps(name)]
    lists = list_counts(inspector.root, steps)
    if not lists:
        raise UserError(
            "--contamination: no stage of this run searched for evaluation sets. Add decontaminate.ngram to its stages, or "
            "search what it kept: --contamination --against FILE.jsonl"
        )
    return _summary(inspector, sources, count, lists, _undetectable(inspector, sources, lists))


def _summary(
    inspector: Inspector,
    sources: Sequence[str],
    count: int,
    lists: Sequence[ListCounts],
    undetectable: Mapping[str, tuple[str, ...]] | None,
    scanned: pa.Table | None = None,
) -> Contamination:
    """Counts and a keyed sample over the findings of the run, or over those of a scan."""
    table = "found" if scanned is None else "scanned"
    of_sources = f"from {table} where source in $sources"
    options = {"sources": list(sources)}
    counted = inspector.database.rows(
        f"select stage, list, entry, count(*) as documents {of_sources} group by all order by all", options, scanned
    )
    rows = inspector.database.rows(
        f"with chosen as (from (select distinct key, stage {of_sources}) order by {SAMPLE}, stage limit $count) "
        f"select {table}.* from {table} join chosen using (key, stage) where source in $sources "
        f"order by {SAMPLE}, stage, start, stop, list, entry",
        {**options, "count": count},
        scanned,
    )
    documents = [_document(inspector, list(of_one)) for _, of_one in groupby(rows, lambda row: (row["key"], row["stage"]))]
    found = {(row["stage"], row["list"], row["entry"]): row["documents"] for row in counted}
    return Contamination(lists=tuple(lists), documents=tuple(documents), found=found, undetectable=undetectable)


def _document(inspector: Inspector, rows: Sequence[Mapping[str, Any]]) -> ContaminatedDocument:
    first = rows[0]
    findings = tuple(Finding(**{name: row[name] for name in ("list", "entry", "start", "stop", "value")}) for row in rows)
    label = inspector.locator.locate(first["key"], text=False).label
    return ContaminatedDocument(document=label, stage=first["stage"], outcome=first["outcome"], findings=findings)


def _undetectable(
    inspector: Inspector, sources: Sequence[str], lists: Sequence[ListCounts]
) -> dict[str, tuple[str, ...]] | None:
    """The entries that cannot be found, from the evaluation files themselves; None where these give other counts now."""
    names: dict[str, tuple[str, ...]] = {}
    uses = {use.alias: use for name in sources for use in inspector.mixture.stages_of(name)}
    try:
        for stage in (catalogue.build_stage(use) for use in uses.values()):
            if isinstance(stage, Filter):
                names.update({searched.name: searched.undetectable for searched in stage.searched_lists()})
    except UserError:
        return None
    is_same = all(len(names.get(counts.name, ())) == counts.undetectable for counts in lists)
    return names if is_same else None


# ------------------------------------------------------------------------------------------------ scanning


def _scanned(inspector: Inspector, sources: Sequence[str], count: int, against: Sequence[str]) -> Contamination:
    """The kept documents of an output, searched for other evaluation files."""
    options = {"against": list(against), "profile": "strict", "mode": "tag"}
    stage = catalogue.build_stage(StageUse(name=SCAN, alias=SCAN, options=options))
    assert isinstance(stage, Filter)
    stage.open(StageContext(name=SCAN, seed=0))
    searched: Sequence[SearchedList] = stage.searched_lists()
    tables = [
        rows.append_column("source", pa.repeat(name, rows.num_rows))
        for name in sources
        for rows in _found_in(inspector, stage, name)
    ]
    numbers_of = {SCAN: {each.name: (each.entries, len(each.undetectable)) for each in searched}}
    lists = _counts(numbers_of, {entry for rows in tables for entry in _entries(rows)})
    schema = FINDINGS.append(pa.field("source", pa.string()))
    scanned = pa.Table.from_batches([rows.cast(schema) for rows in tables], schema)
    return _summary(inspector, sources, count, lists, {each.name: each.undetectable for each in searched}, scanned)


def _found_in(inspector: Inspector, stage: Filter, source: str) -> Iterator[pa.RecordBatch]:
    """The findings in the documents that a source kept. Raises UserError where they are not there any more."""
    files = inspector.kept_files(source)
    if not files:
        raise UserError(f"--against: the output has no cleaned documents of '{source}'. Run the mixture again, then scan.")
    for record in (record for output in files for record in read_table(inspector.root, output, ["key", "id", "text"])):
        batch = DocumentBatch(record)
        batch.make_read_only()
        found = stage.process(batch).findings
        if found is not None and found.num_rows:
            documents = pa.array(numbers(found.column("row")).astype(np.int64))
            about = [record.column("key").take(documents), record.column("id").take(documents)]
            told = [pa.array([SCAN] * found.num_rows), pa.array(["kept"] * found.num_rows)]
            yield pa.RecordBatch.from_arrays([*about, *told, *found.columns[1:]], schema=FINDINGS)
