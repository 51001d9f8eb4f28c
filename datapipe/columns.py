"""Conversions between Arrow columns and the NumPy views that kernels work on, without copying text.

All access to the raw buffers of Arrow arrays goes through this module.

    text column   (num_docs,) large_string        <->  offsets (num_docs + 1,) int64, data (num_bytes,) uint8
    key column    (num_docs,) fixed_size_binary   <->  (num_docs, 16) uint8, or two big-endian uint64 halves

A text's bytes are `data[offsets[i]:offsets[i + 1]]`; `offsets[0]` need not be 0, since a slice shares its parent's data.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

compute: Any = importlib.import_module("pyarrow.compute")
"""Arrow's compute functions. They are created when the module is imported, so type checkers do not know them."""

KEY_BYTES = 16
KEY_TYPE = pa.binary(KEY_BYTES)


def full_schema(**types: pa.DataType) -> pa.Schema:
    """A schema of columns without nulls."""
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


_OF_PLAIN_BUFFERS = (
    pa.types.is_large_string,
    pa.types.is_primitive,
    pa.types.is_string,
    pa.types.is_fixed_size_binary,
    pa.types.is_large_binary,
    pa.types.is_binary,
    pa.types.is_decimal,
)
"""Kinds of types whose arrays have their values in two or three buffers."""


def text_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (num_docs + 1,) int64 and bytes (num_bytes,) uint8 of a large_string array without nulls: read-only views."""
    assert pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type), texts.type
    assert texts.null_count == 0
    _, offset_buffer, data_buffer = texts.buffers()
    offsets, data = np.zeros(1, np.int64), np.zeros(0, np.uint8)
    if len(texts) > 0 and offset_buffer is not None:
        offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        data = data if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    offsets.flags.writeable = data.flags.writeable = False
    return offsets, data


def read_only(column: pa.Array) -> pa.Array:
    """The column over the same memory, without a way to write to it: Arrow hands out writable
    buffers of immutable arrays. Structs, dictionaries and views are left as they are."""
    buffers, children = column.buffers(), []
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        buffers, children = buffers[:2], [read_only(column.values)]
    elif not any(is_kind(column.type) for is_kind in _OF_PLAIN_BUFFERS):
        return column
    if not children and not any(buffer is not None and buffer.is_mutable for buffer in buffers):
        return column
    views = [None if buffer is None else pa.py_buffer(memoryview(buffer).toreadonly()) for buffer in buffers]
    return pa.Array.from_buffers(column.type, len(column), views, column.null_count, column.offset, children or None)


def texts_from(offsets: np.ndarray, data: np.ndarray) -> pa.Array:
    """A large_string array over `data` (num_bytes,) uint8, valid UTF-8, cut at `offsets` (num_docs + 1,) int64; not copied."""
    buffers: list[Any] = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


def contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def as_large_string(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One contiguous large_string array of any string-like column; nulls stay null."""
    column = contiguous(column)
    return column if pa.types.is_large_string(column.type) else column.cast(pa.large_string())


def text_lengths(texts: pa.Array) -> np.ndarray:
    """Bytes of each text: (num_docs,) int64."""
    offsets, _ = text_buffers(texts)
    return np.diff(offsets)


def count_empty(texts: pa.Array) -> int:
    """How many of some texts are empty, or white space alone."""
    is_empty = compute.or_(compute.equal(compute.binary_length(texts), 0), compute.utf8_is_space(texts))
    return int(compute.sum(is_empty).as_py() or 0)


def numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A NumPy view of a numeric column without nulls (a copy only where the column is chunked)."""
    return column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)


def numbers_in(texts: pa.Array) -> np.ndarray:
    """Texts as numbers: (num_texts,) float64, NaN for a null and for text that is no number."""
    trimmed = compute.utf8_trim_whitespace(texts)
    is_number = compute.match_substring_regex(trimmed, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
    return numbers(compute.if_else(is_number, trimmed, "nan").cast(pa.float64()).fill_null(np.nan))


_SIGN = np.uint64(1 << 63)


def ordered(floats: np.ndarray) -> np.ndarray:
    """Floats as integers of the same order: (num_rows,) uint64. Both zeros are one number; NaN has no rank in the order."""
    bits = (np.ascontiguousarray(floats, np.float64) + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def from_ordered(number: int) -> float:
    """The float of an `ordered` integer."""
    bits = np.array([number], np.uint64)
    return float(np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float64)[0])


def is_first(*words: np.ndarray) -> np.ndarray:
    """Which of some sorted rows differ from the row before in any of their words, as the first row does: (num_rows,) bool."""
    differs = np.ones(len(words[0]), np.bool_)
    differs[1:] = False
    for word in words:
        differs[1:] |= word[1:] != word[:-1]
    return differs


def first_of_group(*values: np.ndarray) -> np.ndarray:
    """The first row of each row's group, (num_rows,) int64. A group is a run of consecutive rows that agree in all values."""
    return np.maximum.accumulate(np.where(is_first(*values), np.arange(len(values[0])), 0))


def byte_slices(sizes: np.ndarray, target_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about `target_bytes` each, by the bytes of rows (num_rows,). A larger row is a range by itself."""
    ends, start = np.cumsum(sizes), 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + target_bytes, "right")))
        yield start, stop
        start = stop


def dtype_of(kind: pa.DataType) -> np.dtype:
    """The NumPy type of numbers. `DataType.to_pandas_dtype` needs pandas before pyarrow 26."""
    return pa.nulls(0, kind).to_numpy(zero_copy_only=False).dtype


def make_keys(file_hashes: np.ndarray | int, positions: np.ndarray) -> pa.Array:
    """Document keys: file hash, then position in the file, both big-endian, so that byte order is
    file order. `file_hashes`: uint64, one for all documents or (num_docs,). `positions`:
    (num_docs,) uint64 in the file: `datapipe.stage.reader.ReadBatch`."""
    halves = np.empty((len(positions), 2), ">u8")
    halves[:, 0] = file_hashes
    halves[:, 1] = positions
    return keys_from(halves.view(np.uint8).reshape(-1, KEY_BYTES))


def keys_from(matrix: np.ndarray) -> pa.Array:
    """A key column from (num_docs, 16) uint8."""
    data = np.ascontiguousarray(matrix, np.uint8)
    buffers: list[Any] = [None, pa.py_buffer(data)]
    return pa.Array.from_buffers(KEY_TYPE, len(data), buffers)


def key_matrix(keys: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The bytes of a key column: (num_docs, 16) uint8."""
    if isinstance(keys, pa.ChunkedArray):
        if keys.num_chunks == 0:
            return np.zeros((0, KEY_BYTES), np.uint8)
        keys = pa.concat_arrays(keys.chunks)
    data = keys.buffers()[1]
    if len(keys) == 0 or data is None:
        return np.zeros((0, KEY_BYTES), np.uint8)
    view = np.frombuffer(data, np.uint8, len(keys) * KEY_BYTES, keys.offset * KEY_BYTES)
    return view.reshape(-1, KEY_BYTES)


def key_halves(keys: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """File hashes and positions, (num_docs,) native uint64 each. Comparing (hash, position) equals comparing key bytes."""
    return matrix_halves(key_matrix(keys))


def matrix_halves(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `key_halves`, of the bytes of keys: (num_docs, 16) uint8."""
    halves = matrix.view(">u8")
    return halves[:, 0].astype(np.uint64), halves[:, 1].astype(np.uint64)


def hex_keys(keys: pa.Array) -> pa.Array:
    """Keys as text: 32 hex digits each, (num_docs,) large_string."""
    digits, matrix = np.frombuffer(b"0123456789abcdef", np.uint8), key_matrix(keys)
    pairs = np.stack([digits[matrix >> 4], digits[matrix & 15]], axis=2)
    return texts_from(np.arange(len(matrix) + 1, dtype=np.int64) * 2 * KEY_BYTES, pairs.reshape(-1))


def take_rows(rows: pa.RecordBatch, chosen: np.ndarray) -> pa.RecordBatch:
    """The rows `chosen`, (num_chosen,) integers, copied. Lists of numbers are copied as strings of
    bytes: Arrow's `take` makes an index of 8 bytes for every number in them."""
    indices = pa.array(chosen)
    taken = [
        _list_views(_byte_views(column).take(indices), column.type) if _is_plain_list(column) else column.take(indices)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(taken, schema=rows.schema)


def _is_plain_list(column: pa.Array) -> bool:
    """Whether a column holds lists of numbers of whole bytes, without nulls."""
    if not pa.types.is_large_list(column.type) or column.null_count:
        return False
    kind = column.type.value_type
    return (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not column.values.null_count


def _byte_views(lists: pa.Array) -> pa.Array:
    """Lists of numbers, (num_rows,) large_list, as large_binary over the same bytes."""
    num_bytes, values = lists.type.value_type.bit_width // 8, lists.values
    offsets = (numbers(lists.offsets) + values.offset) * num_bytes
    return pa.Array.from_buffers(
        pa.large_binary(), len(lists), [None, pa.py_buffer(offsets), values.buffers()[1] or pa.py_buffer(b"")]
    )


def _list_views(strings: pa.Array, list_type: pa.DataType) -> pa.Array:
    """The lists of numbers in (num_rows,) large_binary, over the same bytes."""
    num_bytes, buffers = list_type.value_type.bit_width // 8, strings.buffers()
    offsets = np.frombuffer(buffers[1], np.int64)[: len(strings) + 1] // num_bytes
    values = pa.Array.from_buffers(list_type.value_type, int(offsets[-1]), [None, buffers[2]])
    return pa.Array.from_buffers(list_type, len(strings), [None, pa.py_buffer(offsets)], children=[values])
