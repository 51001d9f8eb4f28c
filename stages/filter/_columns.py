"""The column that an option of a filter names."""

from __future__ import annotations

import pyarrow as pa

from datapipe.errors import UserError
from datapipe.stage.documents import DocumentBatch


def named_column(batch: DocumentBatch, stage: str, name: str) -> pa.Array:
    """The column that the option `field` of a stage names, (num_docs,). Raises UserError where there is none."""
    names = batch.record.schema.names
    if name not in names:
        raise UserError(
            f"{stage}: the documents have no column '{name}', only {', '.join(names)}. "
            f"Write `keep: [{name}]` in the source if its files have that field, or set `field` to another column."
        )
    return batch.record.column(name)
