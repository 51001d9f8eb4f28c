"""Documents as the page lists them: what the look-up file knows of each, its id from the tables, and no text.

The id that a document has in its input is content, so it passes the redactions of its source. Its name, SOURCE/PATH:POSITION,
is made of the names of files and is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.document_name import document_name, named_key
from datapipe.errors import UserError
from datapipe.explore.lookup.file import NO_SIZE, LookUp
from datapipe.explore.output import BrowsedOutput
from datapipe.explore.query import Listed
from datapipe.explore.redaction import RedactionError, Redactor
from datapipe.explore.stored import StoredRows

MOST_ID_CHARS = 500


class Rows:
    """Rows of lists, and the look-up of documents by what people call them."""

    def __init__(self, output: BrowsedOutput, lookup: LookUp, stored: StoredRows, redactor: Redactor) -> None:
        self.output, self.lookup, self.stored, self.redactor = output, lookup, stored, redactor

    def listed(self, listed: Listed) -> list[dict[str, Any]]:
        """The rows of a page, with the values of tags where it has them."""
        rows = self.of(listed.rows.tolist())
        if listed.values is not None:
            for row, value in zip(rows, listed.values.tolist()):
                row.update(_measured(value, listed.threshold))
        return rows

    def of(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Documents by their numbers in the look-up file."""
        at, lookup = np.array(numbers, np.int64), self.lookup
        keys = lookup.keys(at)
        reasons, values, sizes = (lookup.section(name)[at].tolist() for name in ("reason", "value", "size"))
        own = lookup.section("threshold")[at].tolist() if lookup.has("threshold") else [math.nan] * len(at)
        rows = []
        for number, key, reason_number, value, size, limit in zip(numbers, keys, reasons, values, sizes, own):
            reason = lookup.reasons[reason_number]
            threshold = limit if lookup.has("threshold") else reason.threshold
            rows.append(
                {
                    "key": key.hex(),
                    "name": self.name(key),
                    "id": self._stored_id(number),
                    "source": reason.source,
                    "fate": reason.fate,
                    "stage": reason.stage,
                    "rule": reason.rule,
                    **_measured(value, threshold),
                    "bytes": None if size == NO_SIZE else size,
                    "excerpt": None,
                }
            )
        self._redact_ids(rows)
        return rows

    def name(self, key: bytes) -> str:
        """SOURCE/PATH:POSITION of a document of this run, or of an earlier one."""
        known = self.output.inspector.locator.files.get(int.from_bytes(key[:8], "big"))
        if known is None:
            return self.output.inspector.locator.locate(key, text=False).label
        return document_name(known[0], known[1].path, int.from_bytes(key[8:], "big"))

    def of_key(self, key: bytes) -> dict[str, Any] | None:
        """The row of a document; None where this run has not decided about it."""
        numbers = self.lookup.rows_of_key(key)
        return self.of(numbers[:1])[0] if numbers else None

    def named(self, text: str) -> list[int]:
        """The numbers of the documents with this key, name, id or URL."""
        files = {number: (source, file.path) for number, (source, file, _) in self.output.inspector.locator.files.items()}
        try:
            key = named_key(text, files)
        except UserError:
            key = None
        found = self.lookup.rows_of_key(key) if key is not None else []
        from datapipe.explore.lookup.making import hashes_of

        hashed = int(hashes_of(pa.array([text], pa.large_string()))[0])
        return list(dict.fromkeys([*found, *self.lookup.rows_of_hash("id", hashed), *self.lookup.rows_of_hash("url", hashed)]))

    def _stored_id(self, number: int) -> str:
        table, batch, row = self.lookup.place(number)
        rows = self.stored.batch(table, batch, ["id"])
        if "id" not in rows.schema.names:
            return ""
        return rows.column("id")[row].as_py() or ""

    def _redact_ids(self, rows: Sequence[dict[str, Any]]) -> None:
        """Redacts ids, source by source; a document without an id of its own has its name as its id."""
        for source in {row["source"] for row in rows}:
            own = [row for row in rows if row["source"] == source and row["id"] not in ("", row["name"])]
            try:
                ids = self.redactor.redacted(source, [row["id"] for row in own]) if own else []  # whole: ids are short
            except RedactionError:
                ids = ["(the redaction failed)"] * len(own)
            for row, redacted in zip(own, ids):
                row["id"] = redacted[:MOST_ID_CHARS]
        for row in rows:
            row["id"] = row["id"] or row["name"]


def _measured(value: float, threshold: float | None) -> dict[str, float | None]:
    """Value, threshold and distance; None for what is not a finite number."""
    known, limit = (None if number is None or not math.isfinite(number) else number for number in (value, threshold))
    return {"value": known, "threshold": limit, "distance": None if known is None or limit is None else abs(known - limit)}
