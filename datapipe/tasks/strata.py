"""The stratum of each document in its source, by a number in one of its columns.

bounds [2, 10], numbers 1, 2, 9.5, 10  ─▶  strata 0, 1, 1, 2
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import compute as pc
from datapipe.errors import UserError
from datapipe.stage.documents import DocumentBatch


def strata_of(batch: DocumentBatch, source: str, column: str, bounds: Sequence[float]) -> NDArray[np.int64]:
    """The stratum of each document, (num_docs,): how many of `bounds` are at most its number.

    Raises UserError where documents have no such column, or the column holds anything but numbers.
    """
    names = batch.record.schema.names
    if column not in names:
        raise UserError(
            f"sources.{source}.strata.by: documents have no column '{column}', they have {', '.join(sorted(names))}. "
            f"If the input has it, name it under `keep`; otherwise add a stage that writes it"
        )
    numbers = _numbers(batch.record.column(column), f"sources.{source}.strata.by: column '{column}'")
    missing = pc.is_null(numbers, nan_is_null=True)
    if pc.any(missing).as_py():
        document = batch.record.column("id")[int(pc.index(missing, True).as_py())]
        raise UserError(
            f"sources.{source}.strata.by: document {document} has no number in column '{column}', so it belongs to no stratum. "
            f"Add the number to the input, or drop such documents with a filter"
        )
    return np.searchsorted(np.asarray(bounds, np.float64), numbers.to_numpy(), side="right").astype(np.int64)


def _numbers(values: pa.Array, what: str) -> pa.Array:
    """A column as float64; numbers kept from JSON are text."""
    kind, is_text = values.type, pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not (is_text or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise UserError(f"{what} holds {kind}, expected numbers")
    try:
        return values.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid as error:
        raise UserError(f"{what} holds text that is not a number: {error}. Expected numbers, such as 3 or 0.5") from error
