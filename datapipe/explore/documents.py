"""An output: what its run left, the facts of its documents, and documents with their texts.

    run.json, records  ─▶  steps, input files, facts by kind  ─▶  database.py  ─▶  keyed sample  ─▶  texts, read again from the
    mixture.yaml       ─▶  the stages of each source                                source or from the files of kept documents
    report.json        ─▶  counts by source, and what each rule measured

Everything is read once. The next command sees what a run has done meanwhile. The sample is keyed:
the same query returns the same documents each time, and a larger sample contains the smaller one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, Self, get_args

import numpy as np

from datapipe.config import Mixture
from datapipe.config.stage_use import StageUse
from datapipe.dataclass import dataclass, field
from datapipe.document_name import FORMS, InputFiles, document_name
from datapipe.engine.history import read_history, read_mixture
from datapipe.errors import DatapipeError, UserError, suggest
from datapipe.exchange.tables import read_row, shard_of_task
from datapipe.explore.database import KINDS, URL, Database, FactFiles, Limits
from datapipe.explore.located import GONE, NOT_FOUND, DocumentLocator
from datapipe.records.outputs import ShardFile, TableFile
from datapipe.report.distributions import MeasuredRule
from datapipe.report.records import Entry
from datapipe.report.report import Report, read_report
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.removed import Removed, read_removed
from datapipe.shards.snapshots import newest_manifest
from datapipe.steps.kind import Step
from datapipe.storage.root import Root

Fate = Literal["kept", "dropped", "quarantined"]
FATES: tuple[Fate, ...] = get_args(Fate)

SAMPLE = "md5(key), key"  # the order of a keyed sample in SQL
COLUMNS = (
    f"source, fate, key, id, {URL} as url, stage, rule, value, threshold, survivor, bytes, error, excerpt, filename, "
    "file_row_number"
)

OWN_VALUES = frozenset({*OWN_COLUMNS, "html"})  # columns that no source and no stage names


@dataclass(frozen=True, kw_only=True)
class Inspector:
    """The committed work of an output, and queries about its documents. `steps` have the records
    that still exist, `lost` the files of committed tasks that are gone or cut, `freed` the kinds of
    tasks and of their files that were deleted because no task read them any more."""

    root: Root
    steps: tuple[Step, ...]
    mixture: Mixture
    locator: DocumentLocator
    limits: Limits = field(default_factory=Limits)
    lost: Mapping[str, Sequence[str]] = field(default_factory=dict)
    freed: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def open(cls, output: str, limits: Limits | None = None) -> Self:
        """Reads what an output remembers of its run. Raises UserError for a folder without a run."""
        root = Root(output)
        history, mixture = read_history(root), read_mixture(root)
        locator = DocumentLocator(root, history, mixture)
        limits = limits or Limits()
        gone = {"lost": history.lost, "freed": history.freed}
        return cls(root=root, steps=history.steps, mixture=mixture, locator=locator, limits=limits, **gone)

    @cached_property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(step.source for step in self.steps if step.kind == "map"))

    @cached_property
    def snapshot(self) -> Snapshot | None:
        """The newest; None where none is published."""
        with suppress(DatapipeError, FileNotFoundError):
            return read_snapshot(self.root)
        return None

    @cached_property
    def report(self) -> Report | None:
        """None where there is none that this version reads."""
        with suppress(FileNotFoundError, ValueError):
            return read_report(self.root)
        return None

    def counts_of(self, source: str) -> Entry | None:
        return None if self.report is None else self.report.sources.get(source)

    @cached_property
    def facts(self) -> FactFiles:
        """The facts of the run. Raises UserError where they lack documents: those of a task that has
        lost a file."""
        steps = [step for step in self.steps if step.kind in ("map", "tokenize", "limit", "pack")]
        lost = [path for step in steps for path in self.lost.get(step.id, ())]
        if lost:
            raise UserError(
                f"{self.root.url}: files under work/ were deleted or cut, of {len(lost):,} tasks. The first: {lost[0]}. Run "
                f"its mixture again with `datapipe run MIXTURE.yaml`: these tasks run again."
            )
        kinds = [kind for of_view in KINDS.values() for kind in of_view]
        if not self.freed.isdisjoint((step.kind, kind) for step in steps for kind in kinds):
            raise UserError(
                f"{self.root.url}: `execution.keep_work: none`, or `datapipe clean --work`, has deleted what work/ had of each "
                f"document. The report and the snapshot are whole. To look at documents, run the mixture into another output "
                f"(--output), with `--set execution.keep_work=inspect`."
            )
        files = {kind: [file for step in steps for file in step.outputs(kind, TableFile)] for kind in kinds}
        lengths = () if self.snapshot is None else (self.snapshot, *self.snapshot.further)
        sources = {} if self.snapshot is None else self.snapshot.sources
        published = {shard.checksum: (shard.path, rows.sequence_length) for rows in lengths for shard in rows.shards}
        shards = {
            shard_of_task(record.fingerprint, file.path): published[file.checksum]
            for step in steps
            for record in step.records
            for file in record.of("shards", ShardFile)
            if file.checksum in published
        }
        inputs = {number: file.path for number, (_, file, _) in self.locator.files.items()}
        cells = [
            (shard.path, first, source.cells.names[run.cell])
            for rows in lengths
            for shard in rows.shards
            if shard.cells is not None and (source := sources[shard.source]).cells is not None
            for first, run in zip(accumulate((run.rows for run in shard.cells), initial=0), shard.cells)
        ]
        of_tokenize = (
            file for step in steps if step.kind in ("tokenize", "limit") for file in step.outputs("drops", TableFile)
        )
        is_set_aside = any(file.rows for file in of_tokenize)
        return FactFiles(root=self.root, files=files, inputs=inputs, shards=shards, cells=cells, is_set_aside=is_set_aside)

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

    def use_of(self, source: str, stage: str) -> StageUse | None:
        return next((use for use in self.mixture.stages_of(source) if use.alias == stage.partition("@")[0]), None)

    def tokens_of(self, source: str) -> int | None:
        """Tokens of the kept documents of a source; None without a tokenizer."""
        counts = self.counts_of(source)
        return counts.tokens if counts is not None and self.snapshot is not None and self.snapshot.has_tokens else None

    def rules(self, source: str) -> list[MeasuredRule]:
        """The measured rules of one source, or of all for "". Raises UserError for an unknown one."""
        sources = self.select_sources(source)
        return [] if self.report is None else [rule for rule in self.report.rules() if rule.source in sources]

    @property
    def notes(self) -> Iterator[str]:
        """What is missing of a whole run, in sentences."""
        status = None if self.report is None else self.report.status
        if status in ("failed", "stopped"):  # its error may quote a document, and stays in the report
            yield (
                f"The last run {status}; `datapipe report` shows why. Documents that some step has still to decide about are "
                f"not shown. The same command resumes the run."
            )
        elif self.snapshot is None:
            yield "No snapshot is published yet. Documents that some step has still to decide about are not shown."
        if self.report is None:
            yield "There is no report.json, so counts by source and distributions are missing. A run writes it when it ends."
        for source in self.sources:
            counts = self.counts_of(source)
            if counts is not None and counts.documents.kept and not self.map_steps(source)[-1].records:
                kept = counts.documents.kept
                yield f"The files with the {kept:,} kept documents of '{source}' are gone from work/. Run the mixture again."

    @cached_property
    def removed(self) -> Removed:
        return read_removed(self.root, newest_manifest(self.root))

    def find(self, outcome: Fate, source: str = "", reason: str = "", count: int = 5) -> list[dict[str, Any]]:
        """Documents with an outcome, as plain data. Raises UserError for an unknown source or reason.

        document          its name
        source, path      path as the source has it
        position          byte offset or row number in the file
        key               32 hex digits
        outcome           a fate
        own_id            None where the input has no id
        reason            "stage:rule" of a dropped document, the stage of a quarantined one, None of a kept one
        value, threshold  what the rule measured, and its threshold; None where there is none
        survivor          of a duplicate, the name of the document that was kept in its place
        error             why the document is quarantined
        text              of a kept document as the stages left it, otherwise as read; None when the source no longer holds it
        columns           kept fields and what stages wrote, of a kept document; of a dropped one as the deciding stage got them
        is_taken_down     whether the newest snapshot leaves it out, whatever the run decided
        is_as_judged      whether the text is the extracted one of a page, as the stage that dropped it got it

        Args:
            source: empty for all sources.
            reason: a stage or "stage:rule"; empty for all reasons.
            count: at most so many documents.
        """
        sources = self.select_sources(source)
        where = f"fate = $fate and source in $sources and {matching('$reason')}"
        options = {"fate": outcome, "sources": sources, "reason": reason, "count": count}
        rows = self.database.rows(f"select {COLUMNS} from facts where {where} order by {SAMPLE} limit $count", options)
        if not rows and reason:
            query = "select distinct stage, rule from facts where fate = 'dropped' and source in $sources order by all"
            known = [reason_of(row) for row in self.database.rows(query, {"sources": sources})]
            listed = f"The reasons in this output: {', '.join(known)}"
            raise UserError(f"no document was dropped for '{reason}'.{suggest(reason, known)} {listed}")
        return [self._document(row) for row in rows]

    def find_document(self, text: str) -> dict[str, Any]:
        """One document, by its own id or a form of `InputFiles.key`. Raises UserError."""
        try:
            key, problem = self.named_key(text), f"{text!r}: no input file of this run has this name. Expected {FORMS}."
        except UserError as error:
            key, problem = None, str(error)
        key = key or self.key_of_own_id(text)
        if key is None:
            raise UserError(f"{problem} No document has it as its id, of those that could be read.")
        facts = self.facts_of([key])
        if not facts:
            raise UserError(f"{text!r}: the run has read no such document, or not yet decided about it.")
        return self._document(facts[key])

    def named_key(self, text: str) -> bytes | None:
        """The key that a name or hex digits give; None where no file has the name. Raises UserError for other texts."""
        files = self.locator.files.items()
        return InputFiles((number, source, file.path) for number, (source, file, _) in files).key(text)

    def facts_of(self, keys: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
        """The facts of documents by key, in the order of the keys; without those that this run has not decided about."""
        rows = self.database.rows(f"select {COLUMNS} from facts where key in (select unnest(?::blob[]))", [list(keys)])
        by_key = {row["key"]: row for row in rows}
        return {key: by_key[key] for key in keys if key in by_key}

    def key_of_own_id(self, own_id: str) -> bytes | None:
        """The key of the document with this id; None where there is none. Raises UserError where several have it."""
        rows = self.database.rows("select key from facts where id = ? order by key", [own_id])
        if len(rows) > 1:
            names = ", ".join(self.locator.label(row["key"]) for row in rows[:5])
            raise UserError(f"{own_id!r}: {len(rows):,} documents have this id: {names}. Expected one of these names.")
        return rows[0]["key"] if rows else None

    def kept_row(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        texts = self.texts[self.database.paths[facts["filename"]].path]
        [row] = read_row(self.root, texts, facts["file_row_number"]).to_pylist()
        return row

    def _document(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        is_kept = facts["fate"] == "kept"
        stored = self.kept_row(facts) if is_kept else {}
        located = self.locator.locate(facts["key"], text=not is_kept)
        excerpt = None if facts["excerpt"] is None else facts["excerpt"].decode(errors="replace")
        own_name = document_name(facts["source"], located.path, located.position)
        is_known = located.path not in (GONE, NOT_FOUND)
        return {
            "document": own_name if is_known else document_name("", located.path, located.position),
            "source": facts["source"],
            "outcome": facts["fate"],
            "key": facts["key"].hex(),
            "path": located.path,
            "position": located.position,
            "reason": reason_of(facts) or None,
            "value": finite(facts["value"]),
            "threshold": facts["threshold"],
            "survivor": facts["survivor"] and self.locator.label(facts["survivor"]),
            "text": stored["text"] if is_kept else excerpt if located.text is None else located.text,
            "error": facts["error"] or None,
            "own_id": facts["id"] if facts["id"] not in ("", own_name) else None,
            "is_taken_down": bool(self.removed.holds(np.frombuffer(facts["key"], np.uint8).reshape(1, -1))[0]),
            "columns": columns_of(stored),
            "is_as_judged": False,
        }


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a document that its source or its stages named, as text and numbers."""
    return {name: plain(value) for name, value in row.items() if name not in OWN_VALUES and value is not None}


def plain(value: Any) -> str | float | int | bool | None:
    """A value as text, or as a number that JSON has."""
    if isinstance(value, float):
        return finite(value)
    if value is None or isinstance(value, bool | int):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def reason_of(facts: Mapping[str, Any]) -> str:
    """The "stage:rule" of a dropped document, the stage of a quarantined one."""
    return ":".join(filter(None, (facts["stage"], facts["rule"])))


def finite(number: float | None) -> float | None:
    """A number that JSON has; None for others."""
    return None if number is None or not math.isfinite(number) else number


def stage_alias(reason: str) -> str:
    """The stage of "stage:rule", by its name in the mixture. A run adds "@digest" where sources give it different options."""
    return reason.rpartition(":")[0].partition("@")[0]


def matching(requested: str) -> str:
    """In SQL, whether a parameter with "stage" or "stage:rule" names the reason of a row,
    by the stage's name in the run or in the mixture; an empty text matches everything."""
    alias = "split_part(stage, '@', 1)"
    return f"({requested} = '' or {requested} in (stage, {alias}, stage || ':' || rule, {alias} || ':' || rule))"
