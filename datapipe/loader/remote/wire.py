"""Batches as record batches, and back.

    _step   _more   _refusal  input_ids         cu_seqlens   max_seqlen   …
    int64   bool    string    list<int64>       list<int32>  int64        a row for each step

A field with one number per token is flat; the shape of a batch follows from the field, the mesh and the length of the
sequences (`shape_of`). A batch that is larger than a message is cut into several rows of the same step, of which all but the
last have `_more`; their lists are joined. The last row of a stream may hold a `Refusal` instead of a batch: the reason why
the server ends the stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datapipe.columns import dtype_of
from datapipe.errors import UserError
from datapipe.loader.batches import Batch
from datapipe.loader.buffers import aligned_empty
from datapipe.loader.field_table import PER_TOKEN
from datapipe.loader.remote.protocol import Refusal
from datapipe.loader.share import Mesh

STEP, MORE, REFUSAL = "_step", "_more", "_refusal"

_LISTS = {
    "cu_seqlens": pa.int32(),
    "piece_offsets": pa.int64(),
    "piece_lengths": pa.int32(),
    "piece_starts": pa.int64(),
    "document_keys": pa.uint8(),
    "sources": pa.int32(),
}
_MOST_LIST = (1 << 31) - 1


def schema_of(fields: Sequence[str], dtype: npt.DTypeLike, mesh: Mesh, sequence_length: int) -> pa.Schema:
    """The schema of a stream. The metadata of a list is the shape, with -1 for the length that varies."""
    columns = [pa.field(STEP, pa.int64()), pa.field(MORE, pa.bool_()), pa.field(REFUSAL, pa.string())]
    for name in fields:
        values = pa.from_numpy_dtype(np.dtype(dtype)) if name in PER_TOKEN else _LISTS.get(name)
        if values is None:
            columns.append(pa.field(name, pa.int64()))
        else:
            shape = json.dumps(shape_of(name, mesh, sequence_length))
            columns.append(pa.field(name, pa.list_(pa.field("item", values, nullable=False)), metadata={"shape": shape}))
    return pa.schema(columns)


def shape_of(field: str, mesh: Mesh, sequence_length: int) -> tuple[int, ...]:
    """The shape of a field that is an array, with -1 for the length that varies."""
    if field in PER_TOKEN:
        return (1, -1) if mesh.splits_documents else (-1, sequence_length // mesh.context_size)
    return (-1, 16) if field == "document_keys" else (-1,)


def record_batches(
    schema: pa.Schema, steps: Sequence[int], batches: Sequence[Batch], most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The batches of some steps in one message; or, where a single one is larger than a message, in several."""
    count = 1 if len(steps) > 1 else max(1, -(-bytes_of(batches[0]) // most_bytes))
    for number in range(count):
        cut = batches if count == 1 else [{name: _part(value, number, count) for name, value in batches[0].items()}]
        columns = [_column(field, [batch[field.name] for batch in cut]) for field in list(schema)[3:]]
        more, refusals = pa.array([number + 1 < count] * len(steps)), pa.nulls(len(steps), pa.string())
        yield pa.RecordBatch.from_arrays([pa.array(steps, pa.int64()), more, refusals, *columns], schema=schema)


def refusal_row(schema: pa.Schema, refusal: Refusal) -> pa.RecordBatch:
    """The last row of a stream that ends early."""
    values = {STEP: -1, MORE: False, REFUSAL: refusal.to_json().decode()}
    return pa.RecordBatch.from_arrays([pa.array([values.get(field.name)], field.type) for field in schema], schema=schema)


def bytes_of(batch: Batch) -> int:
    return sum(value.nbytes for value in batch.values() if isinstance(value, np.ndarray))


def _part(value: Any, number: int, count: int) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    flat = value.reshape(-1)
    return flat[len(flat) * number // count : len(flat) * (number + 1) // count]


def _column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    if not pa.types.is_list(field.type):
        return pa.array(values, field.type)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([value.size for value in values], out=offsets[1:])
    if offsets[-1] > _MOST_LIST:
        raise UserError(
            f"{field.name}: {offsets[-1]:,} numbers in a batch; at most {_MOST_LIST:,} can be sent. Use smaller batches."
        )
    flat = pa.Array.from_buffers(field.type.value_type, int(offsets[-1]), [None, pa.py_buffer(_joined(values))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, type=field.type)


def _joined(values: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays end to end: without a copy where they are neighbours in memory, as the batches of a chunk are."""
    first = values[0]
    if len(values) == 1:
        return np.ascontiguousarray(first).reshape(-1)
    address, is_joined = first.ctypes.data, first.base is not None
    for value in values:
        is_joined = is_joined and value.base is first.base and value.flags.c_contiguous and value.ctypes.data == address
        if not is_joined:
            return np.concatenate([value.reshape(-1) for value in values])
        address += value.nbytes
    total = sum(value.size for value in values)
    return np.lib.stride_tricks.as_strided(first.reshape(-1), (total,), (first.itemsize,))


class Assembler:
    """Batches from the messages of a stream.

    Args:
        fields: of a batch, in its order.
    """

    def __init__(self, fields: Sequence[str], mesh: Mesh, sequence_length: int) -> None:
        self._shapes = {field: shape_of(field, mesh, sequence_length) for field in fields}
        self._parts: list[pa.RecordBatch] = []

    def take(self, message: pa.RecordBatch) -> Iterator[tuple[int, Batch | Refusal]]:
        """The steps that a message completes, and their batches; -1 and a refusal where the server ends for a reason."""
        refusals = message.column(REFUSAL)
        if refusals.null_count < len(refusals):
            [text] = [text for text in refusals.to_pylist() if text is not None]
            refusal = Refusal.found_in(text.encode())
            yield -1, refusal or Refusal.of("failed", "the server ended the stream")
            return
        if message.num_rows == 1 and (message.column(MORE)[0].as_py() or self._parts):
            self._parts.append(message)
            if message.column(MORE)[0].as_py():
                return
            parts, self._parts = self._parts, []
            yield message.column(STEP)[0].as_py(), {name: self._whole(name, parts) for name in self._shapes}
            return
        steps = message.column(STEP).to_pylist()
        values = [self._values(name, message.column(name)) for name in self._shapes]
        yield from zip(steps, (dict(zip(self._shapes, batch)) for batch in zip(*values)) if values else ({} for _ in steps))

    def _values(self, name: str, column: pa.Array) -> Iterable[Any]:
        """The values of a field, by step: copies, which a trainer may change."""
        if not pa.types.is_list(column.type):
            return column.to_pylist()
        offsets, flat = _view(column.offsets), _view(column.values)
        sent = flat[offsets[0] : offsets[-1]]
        flat = aligned_empty(sent.shape, sent.dtype)
        flat[:] = sent
        borders = (offsets - offsets[0]).tolist()
        return [_shaped(flat[start:stop], self._shapes[name]) for start, stop in zip(borders, borders[1:])]

    def _whole(self, name: str, parts: Sequence[pa.RecordBatch]) -> Any:
        columns = [part.column(name) for part in parts]
        if not pa.types.is_list(columns[0].type):
            return columns[0][0].as_py()
        sent = [_view(column.flatten()) for column in columns]
        flat = aligned_empty((sum(map(len, sent)),), sent[0].dtype)
        return _shaped(np.concatenate(sent, out=flat), self._shapes[name])


def _view(numbers: pa.Array) -> np.ndarray:
    """A column of numbers without nulls. Its own `to_numpy` would import pandas, where it is installed."""
    buffer, dtype = numbers.buffers()[1], dtype_of(numbers.type)
    if buffer is None or not len(numbers):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(numbers), numbers.offset * dtype.itemsize)


def _shaped(flat: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if shape[0] == -1 and len(shape) > 1:
        return flat.reshape(flat.size // shape[1], shape[1])
    return flat.reshape(shape) if len(shape) > 1 else flat
