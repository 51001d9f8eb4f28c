"""Input that cannot be read, and documents on which a stage or the tokenizer failed: rows of `schemas.QUARANTINE`."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import compute as pc
from datapipe.columns import make_keys
from datapipe.document_name import document_name, with_own_id
from datapipe.exchange.tables import FactWriter
from datapipe.metrics import DocumentCounts
from datapipe.records.names import INPUTS
from datapipe.records.outputs import Outputs
from datapipe.shards import schemas
from datapipe.stage.decoding import EXCERPT_BYTES
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.reader import Rejected
from datapipe.steps.guard import Failed
from datapipe.steps.splits import file_hash
from datapipe.storage.root import Root


class Quarantine:
    """The quarantine of a task, which counts every document that it gets. `paths`: of the input files that the task reads;
    None for a task on documents, which may come from any file of the source."""

    def __init__(
        self, root: Root, folder: str, source: str, counts: DocumentCounts, paths: Sequence[str] | None = None
    ) -> None:
        self._writer = FactWriter(root, f"{folder}/quarantine.parquet", source=source, fate="quarantined")
        self._root, self._source, self._counts, self._paths = root, source, counts, paths

    def place(self, batch: DocumentBatch) -> str:
        """ "web/a.jsonl:120", or "doc-17 (web/a.jsonl:120)": the first document of a batch."""
        path, position = self._position(batch)
        return with_own_id(batch.record.column("id")[0].as_py(), document_name(self._source, path, position))

    def _position(self, batch: DocumentBatch) -> tuple[str, int]:
        """Path and position of the first document. Where no list of the inputs exists, its id stands for the path."""
        key = batch.keys[0].as_py()
        path = self._by_hash.get(int.from_bytes(key[:8], "big"))
        return path or batch.record.column("id")[0].as_py(), int.from_bytes(key[8:], "big")

    @cached_property
    def _by_hash(self) -> dict[int, str]:
        """The paths of the task's documents by the hashes in their keys, listed when the first is asked for."""
        paths = self._paths or ()
        if self._paths is None and self._root.exists(INPUTS):
            inputs = pq.read_table(pa.BufferReader(self._root.read_bytes(INPUTS)), columns=["source", "path"])
            paths = inputs.filter(pc.equal(inputs.column("source"), self._source)).column("path").to_pylist()
        return {file_hash(self._source, path): path for path in dict.fromkeys(paths)}

    def reject(self, path: str, rejected: Sequence[Rejected]) -> None:
        """Adds input that a reader rejected; it counts as read, too."""
        if not rejected:
            return
        self._counts.read += len(rejected)
        for record in rejected:
            self._counts.quarantine("read", record.error)
        keys = make_keys(file_hash(self._source, path), np.array([record.position for record in rejected], np.uint64))
        rows = [{"path": path, "stage": "read", "key": key} for key in keys.to_pylist()]  # and no id
        for row, record in zip(rows, rejected):
            row |= {"place": record.position, "error": record.error, "excerpt": record.excerpt}
        self._add(rows)

    def isolate(self, stage: str, batch: DocumentBatch, failed: Failed) -> None:
        """Adds documents of a batch that made a stage raise or crash."""
        for number, error in failed.items():
            self._counts.quarantine(stage, error)
            alone = batch.slice(number, number + 1)
            path, position = self._position(alone)
            row = {name: alone.record.column(name)[0].as_py() for name in ("key", "id")}
            row |= {"path": path, "place": position, "stage": stage, "error": error, "excerpt": _excerpt(alone)}
            self._add([row])

    def _add(self, rows: list[dict[str, Any]]) -> None:
        self._writer.add(pa.RecordBatch.from_pylist(rows, schema=schemas.QUARANTINE))

    def finish(self) -> Outputs:
        return {"quarantine": self._writer.finish()}


def _excerpt(document: DocumentBatch) -> bytes:
    content = document.texts.cast(pa.large_binary()) if document.has_text else document.html
    return content[0].as_py()[:EXCERPT_BYTES]
