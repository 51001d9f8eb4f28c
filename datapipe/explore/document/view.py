"""One document: its text in parts, its columns, its path through the run, its cluster, and the shards that hold it.

    facts ─▶ original ─▶ stages again ─▶ redacted display ─▶ parts          kept: compared with the text that the run stored
                                       └─▶ path ─▶ tokenized, packed ─▶ shards

Everything that is sent has passed the redactions of the source. A note has the reason where there is no text; then
the text that the run stored of a kept document is shown instead, or none.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from datapipe.dataclass import asdict, replace
from datapipe.errors import DatapipeError, UserError
from datapipe.explore.database import URL_COLUMNS
from datapipe.explore.document.parts import Part, after_redaction, after_stage, display_of, joined, text_of
from datapipe.explore.document.replay import Replayed, Replayer, entry, recorded
from datapipe.explore.documents import OWN_VALUES, plain
from datapipe.explore.located import Original
from datapipe.explore.redaction import RedactionError
from datapipe.explore.rows import MOST_ID_CHARS, Rows
from datapipe.stage.decoding import EXCERPT_BYTES

EXCERPT_CHARS = 300
EXCERPTS_S = 1.5  # Excerpts are read for so long; the remaining rows come without one
MOST_TEXT_CHARS = 1 << 20
MOST_COLUMN_CHARS = 2_000
MOST_COMPARED_CHARS = 100_000
MOST_ERROR_CHARS = 4_000


class DocumentView:
    def __init__(self, rows: Rows) -> None:
        self.output, self.rows, self.redactor = rows.output, rows, rows.redactor
        self.replayer = Replayer(self.output, self.redactor)

    def view(self, key: bytes) -> dict[str, Any]:
        """Everything about a document. Raises UserError where the run has not decided about it."""
        facts = self.output.facts_of([key]).get(key)
        if facts is None:
            raise UserError("The run has read no document with this key, or has not decided about it yet.")
        [row] = self.rows.shown([facts])
        stored = self.output.kept_row(facts) if row["fate"] == "kept" else facts
        original = self.output.locator.read(key)
        notes = [original.note] if original.note else []
        replayed = None if original.batch is None or _is_unread(row) else self.replayer.run(row, original.batch)
        notes += replayed.notes if replayed is not None else []
        parts, more = self._parts(row, stored, replayed)
        columns = self._columns(row, stored, replayed)
        parts, columns, notes = self._redacted(row["source"], parts, columns, [*notes, *more])
        return {
            "row": row,
            "columns": columns,
            "url": next((columns[name] for name in URL_COLUMNS if columns.get(name)), None),
            "parts": [asdict(part) for part in _beginning(parts)],
            "truncated": len(display_of(parts)) > MOST_TEXT_CHARS,
            "note": " ".join(notes),
            "path": self._path(row, replayed),
            "cluster": self._cluster(facts),
            "shards": self._shards(key) if row["fate"] == "kept" else [],
        }

    def text(self, facts: Mapping[str, Any], original: Original | None = None) -> tuple[str, str]:
        """The redacted beginning of a document as the run last had it, for excerpts and comparisons; and why there is none.
        `original`: of one that was not kept, if it is read already."""
        try:
            if facts["fate"] == "kept":
                text, note = str(self.output.kept_row(facts)["text"]), ""
            else:
                text, note = self.read_text(facts["source"], original or self.output.locator.read(facts["key"]))
            return self.redactor.redacted_text(facts["source"], text)[:MOST_COMPARED_CHARS], note
        except DatapipeError as error:
            return "", str(error)

    def add_excerpts(self, rows: Sequence[dict[str, Any]], *, lines: bool = True) -> None:
        """Sets `excerpt` of rows of this run: the first line of the text, without `lines` its beginning. Sets also `url` of a
        document that was not kept: its facts have none."""
        ends = monotonic() + EXCERPTS_S
        by_key = {row["key"]: row for row in rows}
        for key, facts in self.output.facts_of([bytes.fromhex(key) for key in by_key]).items():
            if monotonic() >= ends:
                return
            row, original = by_key[key.hex()], None if facts["fate"] == "kept" else self.output.locator.read(key)
            text = self.text(facts, original)[0]
            row["excerpt"] = (text.lstrip().partition("\n")[0] if lines else text)[:EXCERPT_CHARS] or None
            if original is not None and original.batch is not None:
                [record] = original.batch.record.to_pylist()
                url = next((str(record[name]) for name in URL_COLUMNS if record.get(name)), "")
                with suppress(RedactionError):
                    row["url"] = self.redactor.redacted_text(facts["source"], url)[:MOST_ID_CHARS]

    def read_text(self, source: str, original: Original) -> tuple[str, str]:
        """The text as it was read, not redacted, of a page the text that extraction finds; and why there is none."""
        if original.batch is None:
            return "", original.note
        if original.batch.has_text:
            return original.batch.texts[0].as_py(), ""
        return self.replayer.extracted(source, original.batch), "The page has no text that its extraction finds."

    def _parts(
        self, row: Mapping[str, Any], stored: Mapping[str, Any], replayed: Replayed | None
    ) -> tuple[list[Part], list[str]]:
        """The parts of the text before the last redaction, and sentences about what is missing."""
        if row["fate"] == "kept":
            text = str(stored.get("text") or "")
            if replayed is None or replayed.parts is None:
                return [Part(text=text)], []
            if text_of(replayed.parts) == text:
                return replayed.parts, []
            return [Part(text=text)], ["The stages now make another text of this document; the text of the run is shown."]
        if replayed is not None and replayed.parts is not None:
            return replayed.parts, []
        if replayed is not None:
            text = self.replayer.extracted(row["source"], replayed.batch)
            return [Part(text=text)], ["A page whose text was not extracted in the run." if text else "A page without a text."]
        return self._excerpt(row, stored)

    def _excerpt(self, row: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[list[Part], list[str]]:
        """What the quarantine holds of input that cannot be read. A cut one is not shown
        where it should be redacted: half of what a redaction searches for may be cut off."""
        excerpt = stored.get("excerpt")
        if not isinstance(excerpt, bytes) or not excerpt:
            return [], []
        if len(excerpt) >= EXCERPT_BYTES and self.redactor.redacts(row["source"]):
            return [], ["The run kept only the beginning of this input, which cannot be redacted safely, so it is not shown."]
        return [Part(text=excerpt.decode("utf-8", "replace"))], ["The beginning of the input, which is no readable document."]

    def _columns(
        self, row: Mapping[str, Any], stored: Mapping[str, Any], replayed: Replayed | None
    ) -> dict[str, str | float | int | bool | None]:
        values: Mapping[str, Any] = stored if row["fate"] == "kept" else {}
        if row["fate"] != "kept" and replayed is not None:
            [values] = replayed.batch.record.to_pylist()
        columns = {name: plain(value) for name, value in values.items() if name not in OWN_VALUES}
        if row["fate"] == "quarantined":
            error = str(stored.get("error") or "")  # the first line of a cut one may begin inside a secret
            columns["error"] = error[-MOST_ERROR_CHARS:].partition("\n")[2] if len(error) >= MOST_ERROR_CHARS else error
        return columns

    def _redacted(
        self, source: str, parts: Sequence[Part], columns: Mapping[str, Any], notes: list[str]
    ) -> tuple[list[Part], dict[str, Any], list[str]]:
        """Parts and columns after every redaction of the source; without what it fails on."""
        names = [name for name, value in columns.items() if isinstance(value, str)]
        try:
            # the text by itself, too: a cut in the middle of an address hides it in the display
            parts = after_stage(parts, self.redactor.redacted_text(source, text_of(parts)), "", redacts=True)
            display = self.redactor.redacted_text(source, display_of(parts))
            texts = self.redactor.redacted(source, [columns[name] for name in names])
        except RedactionError as error:
            return [], {}, [*notes, str(error)]
        values = {name: text[:MOST_COLUMN_CHARS] for name, text in zip(names, texts)}
        return joined(after_redaction(parts, display)), {**columns, **values}, notes

    def _path(self, row: Mapping[str, Any], replayed: Replayed | None) -> list[dict[str, Any]]:
        if _is_unread(row):
            return [entry("read", row["name"], "quarantined", "the input could not be read")]
        steps = [entry("read", row["name"], "read"), *([] if replayed is None else replayed.path)]
        snapshot = self.output.snapshot
        if row["fate"] != "kept" and (replayed is None or row["stage"] == "tokenize"):
            measured = [recorded(row)] if row["rule"] else []
            steps.append(entry(row["stage"], row["stage"], row["fate"], row["rule"], measured))
        elif row["fate"] == "kept" and snapshot is not None and snapshot.has_tokens:
            packed = f"sequences of {snapshot.sequence_length:,} tokens"
            steps += [entry("tokenize", "tokenize", "tokenized"), entry("pack", "pack", "packed", packed)]
        elif row["fate"] == "kept" and snapshot is not None:
            steps.append(entry("write", "write documents", "kept", "written as text"))
        return steps

    def _shards(self, key: bytes) -> list[dict[str, Any]]:
        return self.output.database.rows(
            'select shards.path, parts."row", start, tokens from parts join shards on shards.written = parts.shard '
            'where key = ? order by split, path, "row", start',
            [key],
        )

    def _cluster(self, facts: Mapping[str, Any]) -> dict[str, Any] | None:
        survivor = facts["survivor"] or (facts["key"] if facts["fate"] == "kept" else None)
        if survivor is None:
            return None
        rows = self.output.database.rows(
            "select stage, count(*) as dropped from facts where survivor = $survivor and $stage in ('', stage) "
            "group by stage order by dropped desc, stage limit 1",
            {"survivor": survivor, "stage": facts["stage"] or ""},
        )
        return {"stage": rows[0]["stage"], "survivor": survivor.hex(), "size": rows[0]["dropped"] + 1} if rows else None


def _is_unread(row: Mapping[str, Any]) -> bool:
    return row["fate"] == "quarantined" and row["stage"] == "read"


def _beginning(parts: Sequence[Part]) -> list[Part]:
    left, out = MOST_TEXT_CHARS, list[Part]()
    for part in parts:
        out.append(replace(part, text=part.text[:left]))
        left -= len(part.text)
        if left <= 0:
            break
    return out
