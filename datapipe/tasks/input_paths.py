"""The input file and position of a document by its key, for errors and for the quarantine.

key ─▶ hash of the file, position ─▶ path of an input of the task, or of a file in work/inputs.parquet
"""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import compute as pc
from datapipe.document_name import document_name, with_own_id
from datapipe.ledger.names import INPUTS
from datapipe.plan.splits import file_hash
from datapipe.plan.work import MapTask
from datapipe.stage.documents import DocumentBatch
from datapipe.storage import Root


class InputPaths:
    """The paths of a task's documents, listed when the first is asked for."""

    def __init__(self, root: Root, task: MapTask) -> None:
        self._root, self._task = root, task

    def of(self, batch: DocumentBatch, row: int = 0) -> tuple[str, int]:
        """Path and position of a document of a batch. Where no list of the inputs exists, its id stands for the path."""
        key = batch.keys[row].as_py()
        path = self._by_hash.get(int.from_bytes(key[:8], "big"))
        return path or batch.record.column("id")[row].as_py(), int.from_bytes(key[8:], "big")

    def place(self, batch: DocumentBatch) -> str:
        """ "web/a.jsonl:120", or "doc-17 (web/a.jsonl:120)": the first document of a batch."""
        path, position = self.of(batch)
        return with_own_id(batch.record.column("id")[0].as_py(), document_name(self._task.source, path, position))

    @cached_property
    def _by_hash(self) -> dict[int, str]:
        source, paths = self._task.source, (split.file.path for split in self._task.splits)
        if not self._task.inputs and self._root.exists(INPUTS):
            inputs = pq.read_table(pa.BufferReader(self._root.read_bytes(INPUTS)), columns=["source", "path"])
            paths = inputs.filter(pc.equal(inputs.column("source"), source)).column("path").to_pylist()
        return {file_hash(source, path): path for path in dict.fromkeys(paths)}
