"""The fields of JSON objects by their names in a mixture: the member that the dots of a name reach, or else a key of this name.

    "meta.url"  ─▶  {"meta": {"url": …}}, or {"meta.url": …}

Only lines without a value at the path are searched for the key, so paths cost what they did before.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.columns import texts_from
from datapipe.kernels.text.jsonlines import FieldPath


class NamedField:
    """A field, by its name."""

    def __init__(self, name: str) -> None:
        self._path = FieldPath(name.split("."))
        self._key = FieldPath([name]) if "." in name else None

    def values(self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        """The values in lines that a parser has accepted, as strings, (num_lines,) large_string, null where a line has none;
        and the first byte of each as written, (num_lines,) uint8."""
        values, firsts = _values(self._path, data, starts, stops)
        if self._key is None or not values.null_count:
            return values, firsts
        rows = null_rows(values)
        others, firsts[rows] = _values(self._key, data, starts[rows], stops[rows])
        return replaced(values, rows, others), firsts


def _values(path: FieldPath, data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    valid, offsets, content, firsts = path.values(data, starts, stops)
    values = texts_from(offsets, content)
    return values if valid.all() else pc.if_else(pa.array(valid), values, pa.scalar(None, pa.large_string())), firsts


def null_rows(values: pa.Array) -> np.ndarray:
    """The rows of a column that are null, ascending."""
    return np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))


def replaced(values: pa.Array, rows: np.ndarray, others: pa.Array) -> pa.Array:
    """The column with `others` (num_rows,) in some rows."""
    if others.null_count == len(others) == values.null_count:
        return values
    sources = np.arange(len(values))
    sources[rows] = len(values) + np.arange(len(rows))
    return pa.concat_arrays([values, others]).take(pa.array(sources))
