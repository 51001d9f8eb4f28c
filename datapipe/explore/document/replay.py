"""The stages of a source, run over one document again: what each measured, changed, cut and replaced.

    the document as read ─▶ stage ─▶ stage ─▶ … ─▶ the stage that dropped it, or the end
                              │ values, thresholds, the text before and after
    decisions under work/ ────┘ what global stages cut

The run's record decides what became of the document; the notes name a stage that decides otherwise now. No stage behind the
deciding one gets the document. An error ends the replay; its note lacks the message, which may quote the text.
"""

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any

import pyarrow as pa

from datapipe.columns import hex_keys
from datapipe.config import catalogue
from datapipe.config.stage_use import StageUse
from datapipe.dataclass import dataclass, field
from datapipe.explore.document.parts import Part, after_stage, text_of, with_cuts
from datapipe.explore.documents import Inspector, columns_of, finite, stage_alias
from datapipe.explore.redaction import Redactor
from datapipe.records.outputs import ExchangeFile
from datapipe.stage.base import Filter, FilterResult, Map, Stage, StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import CONTENTS
from datapipe.stage.when import When
from datapipe.steps.decisions import KeyedRows, cluster_sizes, cuts_of
from datapipe.steps.results import checked_filter, checked_map, tags_of


@dataclass(slots=True)
class Replayed:
    """What stages did with a document: the batch after them, of a dropped one as the deciding stage
    got it, with what a filter would have written; the parts of its text, None while it is a page;
    an entry of the path for each stage; and notes about what could not be done again."""

    batch: DocumentBatch
    parts: list[Part] | None
    path: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, use: StageUse, outcome: str, detail: str = "", values: Sequence[Mapping[str, Any]] = ()) -> None:
        self.path.append(entry(use.alias, use.name, outcome, detail, values))


class Replayer:
    """Runs the stages of sources over single documents. Documents wait for each other: stages are not made for threads."""

    def __init__(self, output: Inspector, redactor: Redactor) -> None:
        self._output, self._redactor, self._lock = output, redactor, RLock()
        self._stages: dict[tuple[str, str, bool], Stage] = {}
        self._decisions: dict[str, dict[str, KeyedRows]] = {}

    def run(self, row: Mapping[str, Any], batch: DocumentBatch) -> Replayed:
        """Runs the stages of the document's source up to the one that decided about it. `row` is
        that of `rows.Rows`, `batch` the document as read."""
        parts = [Part(text=batch.texts[0].as_py())] if batch.has_text else None
        replayed = Replayed(batch=batch, parts=parts)
        with self._lock:
            for use in self._output.mixture.stages_of(row["source"]):
                decided = row["fate"] != "kept" and stage_alias(f"{row['stage']}:") == use.alias
                if decided and row["fate"] == "quarantined":
                    replayed.add(use, "quarantined", "the stage failed on this document, so it does not get it again")
                    break
                try:
                    self._step(use, row, replayed, decided)
                except Exception as error:  # of a stage: any
                    replayed.notes.append(f"{use.alias} raised {type(error).__name__} now; what follows it is not shown.")
                    break
                if decided:
                    break
        return replayed

    def extracted(self, source: str, batch: DocumentBatch) -> str:
        """The text of a page that was dropped before its extraction; empty where the extraction finds none, or fails."""
        with self._lock:
            try:
                for use in self._output.mixture.stages_of(source):
                    stage = self._stage(source, use)
                    if isinstance(stage, Filter) and stage.extracts:
                        return checked_filter(stage, batch).columns["text"][0].as_py() or ""
            except Exception:  # of a stage: any; the text is only shown
                return ""
        return ""

    def _stage(self, source: str, use: StageUse, writes: bool = False) -> Stage:
        """A stage, opened; with `writes` a filter that may write what it detects does so."""
        stage = self._stages.get((source, use.alias, writes))
        if stage is None:
            stage = catalogue.build_stage(use)
            if writes and "write" in type(stage).model_fields:
                stage = stage.model_copy(update={"write": True})
            if not isinstance(stage, Global):
                stage.open(StageContext(name=use.alias, seed=self._output.mixture.seed))
            self._stages[source, use.alias, writes] = stage
        return stage

    def _step(self, use: StageUse, row: Mapping[str, Any], replayed: Replayed, decided: bool) -> None:
        stage = self._stage(row["source"], use, writes=decided)
        replayed.batch.make_read_only()
        if use.when and not When.of(use.when).rows(replayed.batch, use.alias)[0]:
            replayed.add(use, "kept", "outside of `when`")
            return
        if isinstance(stage, Filter):
            self._filter(use, stage, row, replayed, decided)
        elif isinstance(stage, Map):
            new = checked_map(stage, replayed.batch)
            replayed.batch = replayed.batch.with_columns({name: new[name] for name in new if name not in stage.counts})
            self._add_changed(use, row["source"], replayed)
        elif isinstance(stage, Global):
            self._global(use, stage, row, replayed, decided)

    def _filter(self, use: StageUse, stage: Filter, row: Mapping[str, Any], replayed: Replayed, decided: bool) -> None:
        result = checked_filter(stage, replayed.batch)
        values = _values(stage, result)
        new = {name: column for name, column in result.columns.items() if name not in stage.counts}
        if decided:
            replayed.batch = replayed.batch.with_columns({name: new[name] for name in new if name != "text"})
            others = [value for value in values if value["rule"] != row["rule"]]
            replayed.add(use, "dropped", row["rule"], [recorded(row), *others])
            if result.keep[0] and stage.kept_share() is None:
                replayed.notes.append(f"{use.alias} dropped this document in the run, and would keep it now.")
            return
        if stage.mode == "tag":
            replayed.batch = replayed.batch.with_columns(tags_of(use.alias, stage, result))
            failed = stage.rules()[int(result.rule[0])].name if result.rule[0] >= 0 else ""
            replayed.add(use, "kept", f"tagged: fails {failed}" if failed else "tagged: passes", values)
            return
        if not result.keep[0]:
            replayed.notes.append(f"{use.alias} kept this document in the run, and would drop it now.")
        replayed.batch = replayed.batch.extracted(new) if stage.extracts else replayed.batch.with_columns(new)
        if stage.takes_json:
            replayed.parts = None  # what it made begins here
        self._add_changed(use, row["source"], replayed, values)

    def _add_changed(self, use: StageUse, source: str, replayed: Replayed, values: Sequence[Mapping[str, Any]] = ()) -> None:
        text = replayed.batch.texts[0].as_py() if replayed.batch.has_text else None
        before = None if replayed.parts is None else text_of(replayed.parts)
        if text is None or before == text:
            replayed.add(use, "kept", "", values)
        elif replayed.parts is None or before is None:
            replayed.parts = [Part(text=text)]
            replayed.add(use, "changed", f"text of {len(text.encode()):,} bytes", values)
        else:
            redacts = self._redactor.is_redaction(source, use)
            replayed.parts = after_stage(replayed.parts, text, use.alias, redacts=redacts)
            detail = f"{len(before.encode()):,} → {len(text.encode()):,} bytes"
            replayed.add(use, "redacted" if redacts else "changed", detail, values)

    def _global(self, use: StageUse, stage: Global, row: Mapping[str, Any], replayed: Replayed, decided: bool) -> None:
        rows = self._rows_of(use)
        if rows is None and not decided:
            replayed.notes.append(f"The decisions of {use.alias} are gone from work/, so what it cut is not shown.")
            replayed.add(use, "kept", "its decisions are gone")
            return
        rows = rows or {}
        detail = self._cut(use, rows, replayed) if "cuts" in rows and replayed.parts is not None else ""
        if decided:
            replayed.add(use, "dropped", row["rule"], [recorded(row)])
            return
        if CONTENTS in rows:
            _join(use, rows[CONTENTS], replayed)
            return
        replayed.add(use, "cut" if detail else "kept", detail)
        added: dict[str, pa.Array] = {}
        if stage.size_column is not None and "sizes" in rows:
            added[stage.size_column] = pa.array(cluster_sizes(rows["sizes"], replayed.batch.keys))
        if stage.cluster_column is not None:
            added[stage.cluster_column] = hex_keys(replayed.batch.keys)
        if added:
            replayed.batch = replayed.batch.with_columns(added)

    def _rows_of(self, use: StageUse) -> dict[str, KeyedRows] | None:
        """The decisions of a stage by table; None where they are gone."""
        gathered = (step for step in self._output.steps if step.kind == "gather")
        step = next((each for each in gathered if stage_alias(f"{each.id.rpartition('/')[0]}:") == use.alias), None)
        if step is None or not (step.records or step.is_committed):
            return None
        if step.id not in self._decisions:
            self._decisions[step.id] = {
                name: KeyedRows.open(self._output.root, [file for file in step.outputs(name, ExchangeFile) if file.rows])
                for name in {name for record in step.records for name in record.outputs}
            }
        return self._decisions[step.id]

    def _cut(self, use: StageUse, rows: Mapping[str, KeyedRows], replayed: Replayed) -> str:
        """Cuts the spans of the decisions out of the text; how much, in words."""
        assert replayed.parts is not None
        cuts = cuts_of(rows["cuts"], replayed.batch.keys)
        content = text_of(replayed.parts).encode()
        spans: list[tuple[int, int]] = []
        for first, stop in zip(cuts.starts.tolist(), cuts.stops.tolist()):  # ascending by start
            start = max(first, spans[-1][1]) if spans else first
            spans += [(start, stop)] if start < stop else []
        if not spans:
            return ""
        chars = [(len(content[:start].decode()), len(content[:stop].decode())) for start, stop in spans]
        replayed.parts = with_cuts(replayed.parts, chars, use.alias)
        replayed.batch = replayed.batch.with_columns({"text": pa.array([text_of(replayed.parts)], pa.large_string())})
        return f"{sum(stop - start for start, stop in spans):,} of {len(content):,} bytes cut"


def _join(use: StageUse, rows: KeyedRows, replayed: Replayed) -> None:
    """Replaces the document by the one that a stage made of it and of others."""
    for _, _, made in rows.of_each(replayed.batch.keys):
        columns = {name: column for name, column in zip(made.schema.names, made.columns) if name not in ("hash", "key")}
        replayed.batch = replayed.batch.with_columns(columns)
    text = replayed.batch.texts[0].as_py()
    replayed.parts = [Part(text=text)]
    replayed.add(use, "changed", f"text of {len(text.encode()):,} bytes")


def with_decided_columns(output: Inspector, documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The documents of `Inspector.find`, those that were dropped with the columns that the deciding stage got and found, and
    of a page with the extracted text where the stage got that. What cannot be run again stays."""
    replayer = Replayer(output, Redactor(output))
    return [_as_decided(output, replayer, each) if each["outcome"] == "dropped" else each for each in documents]


def _as_decided(output: Inspector, replayer: Replayer, document: dict[str, Any]) -> dict[str, Any]:
    original = output.locator.read(bytes.fromhex(document["key"])).batch
    if original is None:
        return document
    stage, _, rule = document["reason"].rpartition(":")
    replayed = replayer.run({**document, "fate": "dropped", "stage": stage, "rule": rule}, original)
    if not replayed.path or replayed.path[-1]["step"] != stage_alias(document["reason"]):
        return document
    [row] = replayed.batch.record.to_pylist()
    extracted = {"text": row["text"], "is_as_judged": True} if replayed.batch.has_text and not original.has_text else {}
    return {**document, "columns": columns_of(row), **extracted}


def entry(step: str, label: str, outcome: str, detail: str = "", values: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"step": step, "label": label, "outcome": outcome, "detail": detail, "values": list(values)}


def _values(stage: Filter, result: FilterResult) -> list[dict[str, Any]]:
    rules, failed = stage.rules(), int(result.rule[0])
    if len(result.measured) != len(rules):
        return []
    limits = [float(limit[0]) for limit in result.limits] or [float(rule.limit) for rule in rules]
    if result.limit is not None and failed >= 0:
        limits[failed] = float(result.limit[0])
    return [
        {"rule": rule.name, "value": finite(float(measured[0])), "threshold": finite(limit)}
        for rule, measured, limit in zip(rules, result.measured, limits)
    ]


def recorded(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the run recorded for the rule that dropped a document."""
    return {name: row[name] for name in ("rule", "value", "threshold")}
