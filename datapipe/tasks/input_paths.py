"""The input file and position of a document by its key, for errors and for the quarantine.

key ─▶ hash of the file, position ─▶ path of an input of the task, or of a file in work/inputs.parquet
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import compute as pc
from datapipe.document_name import document_name, with_own_id
from datapipe.ledger.names import INPUTS
from datapipe.plan.splits import file_hash
from datapipe.stage.documents import DocumentBatch
from datapipe.storage import Root


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
