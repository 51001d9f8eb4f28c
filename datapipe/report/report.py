"""Every number of a run, as report.json has it. `README.md` explains the keys.

numbers of tasks  ─▶ `summary.py` ─▶ Report ─▶ report.json
files of tasks    ─▶ `_PARTS`     ─┘   ├─▶ `_SECTIONS` ─▶ terminal, page, card
                                       └─▶ comparison and page of `explore`
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from datapipe.dataclass import replace
from datapipe.records.names import REPORT
from datapipe.report.cells import Section
from datapipe.report.contamination import WithContamination, contamination, evaluation_sets
from datapipe.report.distributions import WithDistributions, distributions, duplicates, filters, lengths
from datapipe.report.documents import documents
from datapipe.report.grid import WithGrids, cells
from datapipe.report.records import BY_SOURCE, Summary
from datapipe.report.sections import languages, mixture, provenance, sources, speed, tokenizer
from datapipe.steps.measuring import Measured
from datapipe.storage.root import Root

_IN_ONE_LINE = ("measured", "lengths", "clusters", "grids")
"""Long entries that programs read; people find them on a line each."""

_LAST = ("tasks", "second_attempts", "peak_worker_bytes", "run", "shards", "provenance")  # entries behind all others


class Report(WithDistributions, WithContamination, WithGrids):
    """report.json. What comes from files of a run, and not from its plan, has a default. Reading ignores unknown keys."""

    def of_source(self, source: str) -> dict[str, Any]:
        """What was measured, of one source alone: nothing of what was counted over all sources."""
        fields = {name: field for name, field in Report.model_fields.items() if name not in Summary.model_fields}
        return {
            name: {own: parts for own, parts in getattr(self, name).items() if own == source}
            if BY_SOURCE in field.metadata
            else field.default
            for name, field in fields.items()
        }

    def sections(self) -> list[Section]:
        """The sections that have something to show, without empty tables."""
        made = (make(self) for make in _SECTIONS)
        found = [replace(section, tables=[table for table in section.tables if table.rows]) for section in made]
        return [section for section in found if section.tables or section.figures or section.notes]

    def to_bytes(self) -> bytes:
        content = self.model_dump(mode="json")
        entries = (
            f"{json.dumps(name)}: {json.dumps(content[name], indent=None if name in _IN_ONE_LINE else 1, ensure_ascii=False)}"
            for name in sorted(content, key=_LAST.__contains__)
        )
        return ("{\n" + ",\n".join(entries) + "\n}\n").encode()


_PARTS: Sequence[Callable[[Measured], dict[str, Any]]] = (contamination, distributions)

_SECTIONS: Sequence[Callable[[Report], Section]] = (
    sources,
    documents,
    filters,
    duplicates,
    evaluation_sets,
    languages,
    lengths,
    mixture,
    cells,
    tokenizer,
    provenance,
    speed,
)
"""In the order in which people ask: what was built, what was lost where, and what it cost."""


def measured_parts(measured: Measured) -> dict[str, Any]:
    """The fields of a report that map tasks measured."""
    return {name: value for part in _PARTS for name, value in part(measured).items()}


def write_report(root: Root, report: Report) -> None:
    root.write_atomic(REPORT, report.to_bytes())


def read_report(root: Root) -> Report:
    """report.json. Raises FileNotFoundError, and ValueError for one of another version."""
    return Report.model_validate_json(root.read_bytes(REPORT))
