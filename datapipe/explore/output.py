"""An output to explore: what its run left, the facts of its documents, and what is missing.

    run.json, records  ─▶  steps, input files, facts by kind  ─▶  database.py
    mixture.yaml       ─▶  the stages of each source
    report.json        ─▶  counts by source, and what each rule measured

Everything is read once. A run that goes on meanwhile is seen by the next command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, get_args

from datapipe.config import Mixture
from datapipe.config.stage_use import StageUse
from datapipe.engine.history import read_history, read_mixture
from datapipe.errors import DatapipeError, UserError, suggest
from datapipe.exchange.facts import shard_of_task
from datapipe.explore.database import KINDS, Database, FactFiles, Limits
from datapipe.explore.located import DocumentLocator
from datapipe.ledger.names import REPORT
from datapipe.plan.compile import Step
from datapipe.plan.outputs import ShardFile, TableFile
from datapipe.shards.manifest import Manifest, Snapshot, read_manifest
from datapipe.storage import Root

Fate = Literal["kept", "dropped", "quarantined"]
FATES: tuple[Fate, ...] = get_args(Fate)


@dataclass(frozen=True, kw_only=True)
class Output:
    """The committed work of an output.

    Attributes:
        steps: with the records that still exist.
        mixture: as resolved when the run started.
        locator: finds the documents of the inputs.
        limits: of queries.
    """

    root: Root
    steps: tuple[Step, ...]
    mixture: Mixture
    locator: DocumentLocator
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def open(cls, output: str, limits: Limits | None = None) -> Self:
        """Reads what an output remembers of its run. Raises UserError for a folder without a run."""
        root = Root(output)
        history, mixture = read_history(root), read_mixture(root)
        locator = DocumentLocator(root, history, mixture)
        return cls(root=root, steps=history.steps, mixture=mixture, locator=locator, limits=limits or Limits())

    @cached_property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(step.source for step in self.steps if step.kind == "map"))

    @cached_property
    def snapshot(self) -> Manifest | None:
        """The newest; None where none is published."""
        try:
            return read_manifest(self.root)
        except (DatapipeError, FileNotFoundError):
            return None

    @cached_property
    def report(self) -> Mapping[str, Any]:
        """report.json; empty where there is none."""
        try:
            report = json.loads(self.root.read_bytes(REPORT))
        except (FileNotFoundError, ValueError):
            return {}
        return report if isinstance(report, dict) else {}

    @cached_property
    def facts(self) -> FactFiles:
        """The facts of the run. Raises UserError where an earlier version of datapipe wrote none."""
        steps = [step for step in self.steps if step.kind in ("map", "tokenize", "pack")]
        kinds = [kind for of_view in KINDS.values() for kind in of_view]
        files = {kind: [file for step in steps for file in step.outputs(kind, TableFile)] for kind in kinds}
        for source in self.sources:
            if self.kept_files(source) and not any(file.rows for file in self.map_steps(source)[-1].outputs("kept", TableFile)):
                raise UserError(
                    f"{self.root.url}: an earlier version of datapipe made this output. Run its mixture again: "
                    f"`datapipe run MIXTURE.yaml`."
                )
        snapshot = self.snapshot
        published = {shard.checksum: shard.path for shard in snapshot.shards} if isinstance(snapshot, Snapshot) else {}
        shards = {
            shard_of_task(record.fingerprint, file.path): published[file.checksum]
            for step in steps
            for record in step.records
            for file in record.of("shards", ShardFile)
            if file.checksum in published
        }
        inputs = {number: file.path for number, (_, file, _) in self.locator.files.items()}
        return FactFiles(root=self.root, files=files, inputs=inputs, shards=shards)

    @cached_property
    def database(self) -> Database:
        """Queries of this output alone. Raises UserError where it has no documents."""
        if not any(file.rows for kind in KINDS["recorded"] for file in self.facts.files[kind]):
            raise UserError(
                f"{self.root.url}: the run has committed no document yet, or its files under work/ were deleted. Run its "
                f"mixture again with `datapipe run MIXTURE.yaml`; a stopped run resumes."
            )
        return Database({"main": self.facts}, self.limits)

    def select_sources(self, source: str) -> list[str]:
        """The named source alone, or all sources for "". Raises UserError for an unknown source."""
        if source and source not in self.sources:
            known = ", ".join(self.sources)
            raise UserError(
                f"no source '{source}' in this output.{suggest(source, self.sources)} The sources of this output: {known}"
            )
        return [source] if source else self.sources

    def map_steps(self, source: str) -> list[Step]:
        """The map steps of a source, in the order in which its documents pass them."""
        return [step for step in self.steps if step.kind == "map" and step.source == source]

    def kept_files(self, source: str) -> list[TableFile]:
        """The files with the texts of the kept documents of a source."""
        return [file for step in self.map_steps(source)[-1:] for file in step.outputs("documents", TableFile) if file.rows]

    @cached_property
    def texts(self) -> dict[str, TableFile]:
        """The file with the texts by the path of the file with the facts of the same documents."""
        records = [record for source in self.sources for step in self.map_steps(source)[-1:] for record in step.records]
        return {
            facts.path: texts
            for record in records
            for facts, texts in zip(record.of("kept", TableFile), record.of("documents", TableFile))
        }

    def uses(self, source: str) -> list[StageUse]:
        """The stages of a source, in order."""
        return list(self.mixture.stages_of(source))

    def use_of(self, source: str, stage: str) -> StageUse | None:
        """The use of a stage by its name in the run."""
        return next((use for use in self.uses(source) if use.alias == stage.partition("@")[0]), None)

    def tokens_of(self, source: str) -> int | None:
        """Tokens of the kept documents of a source; None without a tokenizer."""
        entry = self.report.get("sources", {}).get(source, {})
        return entry.get("tokens") if isinstance(self.snapshot, Snapshot) else None

    def measured(self, source: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        """What each rule of a source measured: stage → rule → facts, from report.json."""
        return self.report.get("measured", {}).get(source, {})

    @property
    def notes(self) -> Iterator[str]:
        """What is missing of a whole run, in sentences."""
        status = self.report.get("status")
        if status in ("failed", "stopped"):  # its error may quote a document, and stays in the report
            yield (
                f"The last run {status}; `datapipe report` says why. Documents that some step has still to decide about are "
                f"not shown. The same command resumes the run."
            )
        elif self.snapshot is None:
            yield "No snapshot is published yet. Documents that some step has still to decide about are not shown."
        if not self.report:
            yield "There is no report.json, so counts by source and distributions are missing. A run writes it when it ends."
        for source in self.sources:
            kept = self.report.get("sources", {}).get(source, {}).get("documents", {}).get("kept", 0)
            if kept and not self.map_steps(source)[-1].records:
                yield f"The files with the {kept:,} kept documents of '{source}' are gone from work/. Run the mixture again."
