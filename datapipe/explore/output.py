"""An output as the page sees it: what the run left, the files that hold its documents, and what is missing.

    run.json, records  ─▶  tables: kept, dropped and quarantined documents, file by file  ─▶  fingerprint of all of them
    mixture.yaml       ─▶  the stages of each source
    report.json        ─▶  counts by source, and what each rule measured

Everything is read once, when the server starts. A run that goes on meanwhile is seen after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import xxhash

from datapipe.config.stage_use import StageUse
from datapipe.errors import DatapipeError, UserError
from datapipe.explore.documents import Inspector, stage_alias
from datapipe.ledger.names import REPORT
from datapipe.plan.outputs import TableFile
from datapipe.shards.manifest import Manifest, Snapshot, read_manifest
from datapipe.storage import Root

Fate = Literal["kept", "dropped", "quarantined"]
FATES: tuple[Fate, ...] = ("kept", "dropped", "quarantined")

URL_COLUMNS = ("url", "uri", "link")
"""Names of the kept column with the URL of a document, the first that there is."""

_KINDS: Mapping[Fate, str] = {"kept": "documents", "dropped": "drops", "quarantined": "quarantine"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A committed file of documents of one source and one fate."""

    source: str
    fate: Fate
    file: TableFile


@dataclass(frozen=True, kw_only=True)
class BrowsedOutput:
    """The committed work of an output.

    Attributes:
        snapshot: the newest; None where none is published.
        report: report.json; empty where there is none.
        tables: kept documents first, by source and task.
        notes: what is missing of a whole run, in sentences.
    """

    inspector: Inspector
    snapshot: Manifest | None
    report: Mapping[str, Any]
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def open(cls, url: str) -> Self:
        """Reads what the run left. Raises UserError for a folder without a run, and for a run that decided about nothing."""
        inspector = Inspector.open(url)
        snapshot, report = _snapshot(inspector.root), _report(inspector.root)
        tables = tuple(_tables(inspector))
        if not any(table.file.rows for table in tables):
            raise UserError(
                f"{url}: the run has committed no document yet, or its files under work/ were deleted. Run its mixture again "
                f"with `datapipe run MIXTURE.yaml`; a stopped run resumes."
            )
        return cls(
            inspector=inspector,
            snapshot=snapshot,
            report=report,
            tables=tables,
            notes=tuple(_notes(inspector, snapshot, report)),
        )

    @property
    def root(self) -> Root:
        return self.inspector.root

    @property
    def sources(self) -> list[str]:
        return self.inspector.sources

    @cached_property
    def fingerprint(self) -> str:
        """Of the tables: documents, order and content."""
        listed = [[table.source, table.fate, table.file.path, table.file.rows, table.file.checksum] for table in self.tables]
        return xxhash.xxh3_128_hexdigest(json.dumps(listed).encode())

    @cached_property
    def num_documents(self) -> int:
        return sum(table.file.rows for table in self.tables)

    def uses(self, source: str) -> list[StageUse]:
        """The stages of a source, in order."""
        return list(self.inspector.mixture.stages_of(source))

    def use_of(self, source: str, stage: str) -> StageUse | None:
        """The use of a stage by its name in the run."""
        return next((use for use in self.uses(source) if use.alias == stage_alias(f"{stage}:")), None)

    def tokens_of(self, source: str) -> int | None:
        """Tokens of the kept documents of a source; None without a tokenizer."""
        entry = self.report.get("sources", {}).get(source, {})
        return entry.get("tokens") if isinstance(self.snapshot, Snapshot) else None

    def measured(self, source: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        """What each rule of a source measured: stage → rule → facts, from report.json."""
        return self.report.get("measured", {}).get(source, {})


def _tables(inspector: Inspector) -> Iterator[Table]:
    for fate in FATES:
        for source in inspector.sources:
            steps = inspector.map_steps(source)
            for step in steps[-1:] if fate == "kept" else steps:
                for file in step.outputs(_KINDS[fate], TableFile):
                    if file.rows:
                        yield Table(source=source, fate=fate, file=file)


def _snapshot(root: Root) -> Manifest | None:
    try:
        return read_manifest(root)
    except (DatapipeError, FileNotFoundError):
        return None


def _report(root: Root) -> Mapping[str, Any]:
    try:
        report = json.loads(root.read_bytes(REPORT))
    except (FileNotFoundError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _notes(inspector: Inspector, snapshot: Manifest | None, report: Mapping[str, Any]) -> Iterator[str]:
    status = report.get("status")
    if status in ("failed", "stopped"):  # its error may quote a document, and stays in the report
        yield (
            f"The last run {status}; `datapipe report` says why. Documents that some step has still to decide about are not "
            f"shown. The same command resumes the run."
        )
    elif snapshot is None:
        yield "No snapshot is published yet. Documents that some step has still to decide about are not shown."
    if not report:
        yield "There is no report.json, so counts by source and distributions are missing. A run writes it when it ends."
    for source in inspector.sources:
        last = inspector.map_steps(source)[-1]
        kept = report.get("sources", {}).get(source, {}).get("documents", {}).get("kept", 0)
        if kept and not last.records:
            yield f"The files with the {kept:,} kept documents of '{source}' are gone from work/. Run the mixture again."
