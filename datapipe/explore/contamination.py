"""Which entries of evaluation sets a run found in its documents, and which it cannot find.

    findings of the map tasks  ─▶  entries by list  ─▶  contaminated, clean and undetectable entries
                               ─▶  keyed sample of documents, each with what was found in it

With `against`, the kept documents go through the same stage, which writes nothing.
Memory holds one batch, the entries that are found, and the sample.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from datapipe.config import catalogue
from datapipe.config.stage_use import StageUse
from datapipe.errors import UserError
from datapipe.exchange.tables import read_table
from datapipe.explore.documents import SAMPLE, Inspector
from datapipe.report.contamination import SearchedSet, counts_of, entries_of, searched_sets
from datapipe.report.records import Record
from datapipe.stage.base import Filter, StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.findings import FINDINGS, SearchedList
from datapipe.steps.measuring import Measured

SCAN = "decontaminate.ngram"  # the stage that scans outputs


class Finding(Record):
    """An entry in a document: bytes of the text as the stage got it, and what the stage measured."""

    list: str
    entry: str
    start: int
    stop: int
    value: float


class FoundDocument(Record):
    """A document with what was found in it. The outcome is dropped, cut, tagged, or kept where an output was scanned."""

    document: str
    stage: str
    outcome: str
    findings: tuple[Finding, ...]


class FoundEntry(Record):
    stage: str
    list: str
    entry: str
    documents: int


class Contamination(Record):
    """What an output holds of evaluation sets: counts by list, a sample of documents, and by list
    the entries that cannot be found; None where the evaluation files are gone or have changed."""

    lists: tuple[SearchedSet, ...]
    documents: tuple[FoundDocument, ...]
    contaminated: tuple[FoundEntry, ...]
    undetectable: dict[str, tuple[str, ...]] | None


def contamination(inspector: Inspector, source: str, count: int, against: Sequence[str] = ()) -> Contamination:
    """What an output holds of evaluation sets, or of the files `against`. Raises UserError."""
    sources = inspector.select_sources(source)
    if against:
        return _scanned(inspector, sources, count, against)
    steps = [step for name in sources for step in inspector.map_steps(name)]
    lists = searched_sets(Measured(root=inspector.root, steps=steps, name_of=inspector.locator.label))
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
    lists: Sequence[SearchedSet],
    undetectable: dict[str, tuple[str, ...]] | None,
    scanned: pa.Table | None = None,
) -> Contamination:
    table = "found" if scanned is None else "scanned"
    of_sources, options = f"from {table} where source in $sources", {"sources": list(sources)}
    contaminated = inspector.database.rows(
        f"select stage, list, entry, count(*) as documents {of_sources} group by all order by all", options, scanned
    )
    fields = ", ".join(f"{name} := {name}" for name in ("list", "entry", "start", "stop", "value"))
    findings = f"list(struct_pack({fields}) order by start, stop, list, entry)"
    documents = inspector.database.rows(
        f"select key, stage, min(outcome) as outcome, {findings} as findings {of_sources} "
        f"group by key, stage order by {SAMPLE}, stage limit $count",
        {**options, "count": count},
        scanned,
    )
    return Contamination(
        lists=tuple(lists),
        documents=tuple(FoundDocument(document=inspector.locator.label(row.pop("key")), **row) for row in documents),
        contaminated=tuple(FoundEntry(**row) for row in contaminated),
        undetectable=undetectable,
    )


def _undetectable(
    inspector: Inspector, sources: Sequence[str], lists: Sequence[SearchedSet]
) -> dict[str, tuple[str, ...]] | None:
    """The entries that cannot be found; None where the evaluation files give other counts now."""
    names: dict[str, tuple[str, ...]] = {}
    uses = {use.alias: use for name in sources for use in inspector.mixture.stages_of(name)}
    try:
        for stage in (catalogue.build_stage(use) for use in uses.values()):
            if isinstance(stage, Filter):
                names.update({searched.name: tuple(searched.undetectable) for searched in stage.searched_lists()})
    except UserError:
        return None
    is_same = all(len(names.get(counts.name, ())) == counts.undetectable for counts in lists)
    return names if is_same else None


def _scanned(inspector: Inspector, sources: Sequence[str], count: int, against: Sequence[str]) -> Contamination:
    options = {"against": list(against), "profile": "strict", "mode": "tag"}
    stage = catalogue.build_stage(StageUse(name=SCAN, alias=SCAN, options=options))
    assert isinstance(stage, Filter)
    stage.open(StageContext(name=SCAN, seed=0))
    searched: Sequence[SearchedList] = stage.searched_lists()
    tables = [rows for name in sources for rows in _found_in(inspector, stage, name)]
    numbers_of = {SCAN: {each.name: (each.entries, len(each.undetectable)) for each in searched}}
    lists = counts_of(numbers_of, {entry for rows in tables for entry in entries_of(rows)})
    scanned = pa.Table.from_batches(tables, FINDINGS.append(pa.field("source", pa.string())))
    return _summary(inspector, sources, count, lists, {each.name: tuple(each.undetectable) for each in searched}, scanned)


def _found_in(inspector: Inspector, stage: Filter, source: str) -> Iterator[pa.RecordBatch]:
    files = inspector.kept_files(source)
    if not files:
        raise UserError(f"--against: the output has no cleaned documents of '{source}'. Run the mixture again, then scan.")
    for record in (record for output in files for record in read_table(inspector.root, output, ["key", "id", "text"])):
        batch = DocumentBatch(record)
        batch.make_read_only()
        table = stage.process(batch).findings
        if table is not None and table.num_rows:
            about = record.select(["key", "id"]).take(table.column("row"))
            by, outcome, of_source = (pa.repeat(text, table.num_rows) for text in (SCAN, "kept", source))
            arrays = [*about.columns, by, outcome, *table.columns[1:], of_source]
            yield pa.RecordBatch.from_arrays(arrays, schema=FINDINGS.append(pa.field("source", pa.string())))
