"""What a task sets aside: input that cannot be read, and documents on which a stage or the tokenizer failed.

rejected input, failed documents ─▶ counts, by stage and error ─▶ rows of `schemas.QUARANTINE`

`InputPaths` names a document by the hash of its file and its position, which its key has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import compute as pc
from datapipe.columns import make_keys
from datapipe.document_name import document_name, with_own_id
from datapipe.exchange.facts import FactWriter
from datapipe.ledger.names import INPUTS
from datapipe.metrics import DocumentCounts
from datapipe.plan.splits import file_hash
from datapipe.records.outputs import TableFile
from datapipe.shards import schemas
from datapipe.stage.decoding import EXCERPT_BYTES
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.reader import Rejected
from datapipe.storage import Root
from datapipe.tasks.contract.guard import FailedDocument


class InputPaths:
    """The paths of a task's documents, listed when the first is asked for.

    Args:
        source: of the task.
        paths: of the files that it reads; None for a task on documents, which may come from any file of the source.
    """

    def __init__(self, root: Root, source: str, paths: Sequence[str] | None = None) -> None:
        self._root, self._source, self._paths = root, source, paths

    def of(self, batch: DocumentBatch, row: int = 0) -> tuple[str, int]:
        """Path and position of a document of a batch. Where no list of the inputs exists, its id stands for the path."""
        key = batch.keys[row].as_py()
        path = self._by_hash.get(int.from_bytes(key[:8], "big"))
        return path or batch.record.column("id")[row].as_py(), int.from_bytes(key[8:], "big")

    def place(self, batch: DocumentBatch) -> str:
        """ "web/a.jsonl:120", or "doc-17 (web/a.jsonl:120)": the first document of a batch."""
        path, position = self.of(batch)
        return with_own_id(batch.record.column("id")[0].as_py(), document_name(self._source, path, position))

    @cached_property
    def _by_hash(self) -> dict[int, str]:
        paths = self._paths or ()
        if self._paths is None and self._root.exists(INPUTS):
            inputs = pq.read_table(pa.BufferReader(self._root.read_bytes(INPUTS)), columns=["source", "path"])
            paths = inputs.filter(pc.equal(inputs.column("source"), self._source)).column("path").to_pylist()
        return {file_hash(self._source, path): path for path in dict.fromkeys(paths)}


class Quarantine:
    """The quarantine of a task. `counts` gets every document that is added."""

    def __init__(self, root: Root, folder: str, source: str, counts: DocumentCounts, input_paths: InputPaths) -> None:
        self._writer = FactWriter(root, f"{folder}/quarantine.parquet", source=source, fate="quarantined")
        self._counts, self._input_paths = counts, input_paths

    def reject(self, source: str, path: str, rejected: Sequence[Rejected]) -> None:
        """Adds input that a reader rejected; it counts as read, too."""
        if not rejected:
            return
        self._counts.read += len(rejected)
        for record in rejected:
            self._counts.quarantine("read", record.error)
        positions = np.array([record.position for record in rejected], np.uint64)
        columns = [
            make_keys(file_hash(source, path), positions),
            pa.nulls(len(rejected), pa.large_string()),
            pa.array([path] * len(rejected)),
            pa.array(positions),
            pa.array(["read"] * len(rejected)),
            pa.array([record.error for record in rejected]),
            pa.array([record.excerpt for record in rejected], pa.binary()),
        ]
        self._writer.add(pa.record_batch(columns, schema=schemas.QUARANTINE))

    def isolate(self, stage: str, batch: DocumentBatch, failed: Sequence[FailedDocument]) -> None:
        """Adds documents of a batch that made a stage raise or crash."""
        for document in failed:
            self._counts.quarantine(stage, document.error)
            alone = batch.slice(document.row, document.row + 1)
            path, position = self._input_paths.of(alone)
            row = {
                "key": alone.keys[0].as_py(),
                "id": alone.record.column("id")[0].as_py(),
                "path": path,
                "place": position,
                "stage": stage,
                "error": document.error,
                "excerpt": _excerpt(alone),
            }
            self._writer.add(pa.RecordBatch.from_pylist([row], schema=schemas.QUARANTINE))

    def finish(self) -> tuple[TableFile, ...]:
        """The file; none where nothing was added."""
        return self._writer.finish()


def _excerpt(document: DocumentBatch) -> bytes:
    """The beginning of a text, or of a page."""
    content = document.texts.cast(pa.large_binary()) if document.has_text else document.html
    return content[0].as_py()[:EXCERPT_BYTES]
