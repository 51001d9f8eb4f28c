"""Finding documents to look at: kept, dropped for a reason, or quarantined, with the text read again from the source.

Which documents are shown is a keyed sample, so looking twice shows the same ones, and a larger sample holds the smaller.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from datapipe.columns import key_halves
from datapipe.engine.history import read_history, read_mixture
from datapipe.errors import UserError, suggest
from datapipe.exchange.partitions import read_table
from datapipe.inspect.originals import Originals
from datapipe.plan.compile import Step
from datapipe.plan.outputs import TableFile
from datapipe.rng import keyed_hash, seed_for
from datapipe.storage import Root

Outcome = Literal["kept", "dropped", "quarantined"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A document to look at.

    Attributes:
        key: 32 hex digits.
        reason: "stage:rule" where dropped, the stage where quarantined.
        value, threshold: what the rule measured, and what it was held against.
        survivor: where dropped as a duplicate, path:place of the document that stands for it.
        text: of what is kept as the stages left it, of others as it was read; None where the source does not give it again.
        error: why it is quarantined.
    """

    source: str
    outcome: Outcome
    key: str
    path: str
    place: int
    reason: str = ""
    value: float | None = None
    threshold: float | None = None
    survivor: str = ""
    text: str | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What to look for. `reason` may be a stage, "stage:rule", or empty for all."""

    outcome: Outcome
    source: str = ""
    reason: str = ""
    count: int = 5


class Looker:
    """Looks into the committed work of an output, as it remembers it."""

    def __init__(self, output: str) -> None:
        self.root = Root(output)
        history = read_history(self.root)
        self.steps = history.steps
        self.sources = list(dict.fromkeys(step.source for step in self.steps if step.kind == "map"))
        self.mixture = read_mixture(self.root)
        self.originals = Originals(history.files, self.mixture, history.earlier)

    def look(self, wanted: Wanted) -> list[Seen]:
        """At most `count` documents. Raises UserError for a source or reason that is not there."""
        sources = self.chosen(wanted.source)
        rows = heapq.nsmallest(wanted.count, self._rows(wanted, sources), key=lambda row: (row["sample"], row["key"]))
        if not rows and wanted.reason:
            self._check_reason(wanted.reason, sources)
        return [self._seen(wanted.outcome, row) for row in rows]

    def chosen(self, source: str) -> list[str]:
        """This source alone, or all of them where none is named. Raises UserError for one that is not there."""
        if source and source not in self.sources:
            known = ", ".join(self.sources)
            raise UserError(f"no source '{source}' in this output.{suggest(source, self.sources)} There are: {known}")
        return [source] if source else self.sources

    def cleaning(self, source: str) -> list[Step]:
        """The steps that documents of a source went through, in order."""
        return [step for step in self.steps if step.kind == "map" and step.source == source]

    def _check_reason(self, reason: str, sources: list[str]) -> None:
        records = [record for name in sources for step in self.cleaning(name) for record in step.records]
        known = sorted({one for record in records for one in record.metrics.document_counts.dropped})
        if not any(is_asked(reason, one) for one in known):
            raise UserError(f"no document was dropped for '{reason}'.{suggest(reason, known)} Reasons here: {', '.join(known)}")

    def _rows(self, wanted: Wanted, sources: list[str]) -> Iterator[dict[str, Any]]:
        kind = {"kept": "documents", "dropped": "drops", "quarantined": "quarantine"}[wanted.outcome]
        for name in sources:
            steps = self.cleaning(name)
            for step in steps[-1:] if wanted.outcome == "kept" else steps:
                for output in step.outputs(kind, TableFile):
                    yield from self._rows_of(output, wanted, step)

    def _rows_of(self, output: TableFile, wanted: Wanted, step: Step) -> Iterator[dict[str, Any]]:
        seed = seed_for(0, "inspect")
        for number, batch in enumerate(read_table(self.root, output)):
            hashes = keyed_hash(key_halves(batch.column("key")), seed)
            shown = [name for name in batch.schema.names if name != "text"]
            for at, (row, sample) in enumerate(zip(batch.select(shown).to_pylist(), hashes.tolist())):
                if wanted.reason and not is_asked(wanted.reason, _reason(row)):
                    continue
                if "excerpt" in row:
                    row["excerpt"] = row["excerpt"].decode(errors="replace")
                yield {**row, "sample": sample, "source": step.source, "place in": (output, number, at)}

    def _seen(self, outcome: Outcome, row: dict[str, Any]) -> Seen:
        original = self.originals.find(row["key"], text=outcome != "kept")
        text = self._kept_text(*row["place in"]) if outcome == "kept" else original.text
        survivor = None if row.get("survivor") is None else self.originals.find(row["survivor"], text=False)
        return Seen(
            source=row["source"],
            outcome=outcome,
            key=row["key"].hex(),
            path=original.path,
            place=original.place,
            reason=_reason(row),
            value=row.get("value"),
            threshold=row.get("threshold"),
            survivor="" if survivor is None else survivor.label,
            text=text if text is not None else row.get("excerpt"),
            error=row.get("error", ""),
        )

    def _kept_text(self, output: TableFile, number: int, at: int) -> str:
        """The text of a kept document, as the stages left it."""
        batch = next(islice(read_table(self.root, output, ["text"]), number, None))
        return batch.column("text")[at].as_py()


def _reason(row: dict[str, Any]) -> str:
    stage, rule = row.get("stage", ""), row.get("rule", "")
    return f"{stage}:{rule}" if rule else stage


def stage_of(reason: str) -> str:
    return reason.rpartition(":")[0]


def alias_of(reason: str) -> str:
    """The stage as the mixture names it: a run adds to the name where sources give it different options."""
    return stage_of(reason).partition("@")[0]


def is_asked(wanted: str, reason: str) -> bool:
    """Whether "stage:rule" is what was asked for: a stage or a stage:rule, by the run's name or by the mixture's."""
    rule = reason.rpartition(":")[2]
    return any(wanted in (stage, f"{stage}:{rule}") for stage in (stage_of(reason), alias_of(reason)))
