"""Entries of evaluation sets that filters searched for, from the findings of map tasks."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from datapipe.report.cells import Section, Table
from datapipe.report.records import Record, Summary
from datapipe.steps.measuring import Measured
from datapipe.steps.read_batches import MapMetrics

FoundEntry = tuple[str, str, str]  # Stage, list and entry


class SearchedSet(Record):
    """A list of entries that filters searched for; contaminated + undetectable + clean = entries."""

    stage: str
    name: str
    entries: int
    contaminated: int
    undetectable: int
    clean: int


class WithContamination(Summary):
    contamination: tuple[SearchedSet, ...] = ()


def contamination(measured: Measured) -> dict[str, Any]:
    """The fields of `WithContamination`."""
    return {"contamination": tuple(searched_sets(measured))}


def searched_sets(measured: Measured) -> list[SearchedSet]:
    """The lists that filters searched for. Entries are contaminated where some document holds them, undetectable where they
    cannot be found, and clean otherwise."""
    searched: dict[str, dict[str, list[int]]] = {}
    for step in measured.steps:
        for stage, lists in step.own(MapMetrics).searched.items():
            searched.setdefault(stage, {}).update(lists)
    found = {entry for rows in measured.rows("findings", measured.steps) for entry in entries_of(rows)} if searched else ()
    return counts_of(searched, found)


def counts_of(searched: Mapping[str, Mapping[str, Sequence[int]]], found: Iterable[FoundEntry]) -> list[SearchedSet]:
    """Of the numbers of entries by list that `searched` gives, and of the entries that were found."""
    by_list, sets = Counter((stage, name) for stage, name, _ in found), list[SearchedSet]()
    for stage, lists in searched.items():
        for name, (entries, lost) in lists.items():
            hit = by_list[stage, name]
            kinds = {"contaminated": hit, "undetectable": lost, "clean": entries - hit - lost}
            sets.append(SearchedSet(stage=stage, name=name, entries=entries, **kinds))
    return sets


def entries_of(rows: pa.RecordBatch) -> Iterator[FoundEntry]:
    return zip(*(rows.column(name).to_pylist() for name in ("stage", "list", "entry")))


def evaluation_sets(report: WithContamination) -> Section:
    return Section(anchor="evaluation", title="Evaluation sets", tables=[evaluation_table(report.contamination)])


def evaluation_table(found: Sequence[SearchedSet]) -> Table:
    return Table(
        title="Evaluation sets: items found in the text",
        headings=["benchmark", "items", "contaminated", "clean", "undetectable", "stage"],
        rows=[[each.name, each.entries, each.contaminated, each.clean, each.undetectable, each.stage] for each in found],
        note="An item that has too few words cannot be found." if any(each.undetectable for each in found) else "",
    )
