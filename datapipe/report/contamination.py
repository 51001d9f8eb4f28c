"""How many entries of each evaluation set a run found in its documents, from the findings of its map tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from datapipe.exchange.tables import read_table
from datapipe.records.outputs import TableFile
from datapipe.report.report import SearchedSet
from datapipe.steps.kind import Step
from datapipe.steps.read_batches import MapMetrics
from datapipe.storage.root import Root

Entry = tuple[str, str, str]
"""Stage, list and entry."""


def list_counts(root: Root, steps: Iterable[Step]) -> list[SearchedSet]:
    """The lists that filters of the map steps searched for. Entries are contaminated where some document holds them,
    undetectable where they cannot be found, and clean otherwise."""
    known = [step for step in steps if step.kind == "map"]
    searched: dict[str, dict[str, list[int]]] = {}
    for own in (own for step in known for own in step.numbers(MapMetrics)):
        for stage, lists in own.searched.items():
            searched.setdefault(stage, {}).update(lists)
    files = [file for step in known for file in step.outputs("findings", TableFile)] if searched else []
    found = {entry for file in files for rows in read_table(root, file) for entry in entries_of(rows)}
    return counts_of(searched, found)


def counts_of(searched: Mapping[str, Mapping[str, Sequence[int]]], found: Iterable[Entry]) -> list[SearchedSet]:
    """As `list_counts`, of the numbers of entries by list that `searched` gives, and of the entries that were found."""
    by_list, sets = Counter((stage, name) for stage, name, _ in found), list[SearchedSet]()
    for stage, lists in searched.items():
        for name, (entries, lost) in lists.items():
            hit = by_list[stage, name]
            kinds = {"contaminated": hit, "undetectable": lost, "clean": entries - hit - lost}
            sets.append(SearchedSet(stage=stage, name=name, entries=entries, **kinds))
    return sets


def entries_of(rows: pa.RecordBatch) -> Iterator[Entry]:
    return zip(*(rows.column(name).to_pylist() for name in ("stage", "list", "entry")))
