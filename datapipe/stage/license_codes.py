"""The licence of each document of a batch, from a column of theirs. Apart from `licenses.py`: whoever reads a mixture needs the
names and no columns."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import compute as pc
from datapipe.errors import UserError
from datapipe.stage.licenses import named


def license_codes(column: pa.Array, name: str) -> tuple[NDArray[np.int64], list[str]]:
    """The licence of each document as an index (num_docs,) into the names, each of which occurs once.

    Python sees each distinct value of the batch once, and none that it has just seen (`licenses.named`).

    Args:
        column: (num_docs,) text, or values that Arrow writes as text.
        name: of the column, for errors.
    """
    try:
        texts = _as_json(column) if pa.types.is_list(column.type) else column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UserError(
            f"license_field: the column '{name}' holds {column.type}, expected text: a license, or a list of them as JSON. "
            f"Name another field."
        ) from None
    encoded = pc.dictionary_encode(pc.fill_null(texts, ""))
    of_values = [named(value) for value in encoded.dictionary.to_pylist()]
    names = {license: number for number, license in enumerate(dict.fromkeys(of_values))}
    numbers = np.array([names[license] for license in of_values], np.int64)
    return numbers[encoded.indices.to_numpy(zero_copy_only=False)], list(names)


def codes_of_documents(record: pa.RecordBatch, name: str) -> tuple[NDArray[np.int64], list[str]]:
    """As `license_codes`; documents without the column have no licence."""
    index = record.schema.get_field_index(name)
    return license_codes(pa.nulls(record.num_rows, pa.string()) if index < 0 else record.column(index), name)


def _as_json(lists: pa.Array) -> pa.Array:
    """Lists of names as JSON text, (num_docs,) large_string. Raises ArrowNotImplementedError for lists of anything else."""
    if not (pa.types.is_string(lists.type.value_type) or pa.types.is_large_string(lists.type.value_type)):
        raise pa.ArrowNotImplementedError(str(lists.type))
    return pa.array([None if names is None else json.dumps(names) for names in lists.to_pylist()], pa.large_string())
