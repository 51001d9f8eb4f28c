"""What a task sets aside: input that cannot be read, and documents on which a stage or the tokenizer failed.

rejected input, failed documents ─▶ counts, by stage and error ─▶ rows of `schemas.QUARANTINE`
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from datapipe.columns import make_keys
from datapipe.exchange.facts import FactWriter
from datapipe.metrics import DocumentCounts
from datapipe.plan.outputs import TableFile
from datapipe.plan.splits import file_hash
from datapipe.shards import schemas
from datapipe.stage.decoding import EXCERPT_BYTES
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.reader import Rejected
from datapipe.storage import Root
from datapipe.tasks.contract.guard import FailedDocument
from datapipe.tasks.input_paths import InputPaths


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
