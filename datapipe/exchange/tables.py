"""The tables that a task writes for an exchange: one file each, opened when its first rows are written."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.exchange.files import RUN_BYTES, ExchangeWriter
from datapipe.plan.outputs import ExchangeFile
from datapipe.storage import Root


class TableWriters:
    """A writer for each table of a task; a table without a row has no file.

    Args:
        run_bytes: of rows of all tables, held before those of the largest are written; at most `RUN_BYTES`.
    """

    def __init__(self, root: Root, folder: str, schemas: Mapping[str, pa.Schema], run_bytes: int | None = None) -> None:
        self.root, self.folder, self.schemas = root, folder, schemas
        self.run_bytes = RUN_BYTES if run_bytes is None else min(RUN_BYTES, run_bytes)
        self._writers: dict[str, ExchangeWriter] = {}

    def add(self, tables: Mapping[str, pa.RecordBatch], where: str) -> int:
        """Takes rows in any order and returns their bytes. Raises DatapipeError for tables that the stage did not declare."""
        for name, rows in tables.items():
            if name not in self.schemas or not rows.schema.equals(self.schemas[name]):
                found = f"{name}: {rows.schema.to_string(show_field_metadata=False)!r}"
                raise DatapipeError(f"{where}: returned rows of {found}, which is not what it declared")
            if rows.num_rows:
                self._writer(name).add(rows)
        if sum(writer.held_bytes for writer in self._writers.values()) >= self.run_bytes:
            max(self._writers.values(), key=lambda writer: writer.held_bytes).flush()
        return sum(rows.nbytes for rows in tables.values())

    def _writer(self, name: str) -> ExchangeWriter:
        if name not in self._writers:
            path = f"{self.folder}/{name}.exchange"
            self._writers[name] = ExchangeWriter(self.root, path, self.schemas[name], self.run_bytes)
        return self._writers[name]

    def finish(self, prefix: str = "") -> dict[str, tuple[ExchangeFile, ...]]:
        return {f"{prefix}{name}": (writer.finish(),) for name, writer in sorted(self._writers.items())}
