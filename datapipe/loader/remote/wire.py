"""Batches as record batches, and back.

    _step   _refusal  input_ids         cu_seqlens   max_seqlen   …
    int64   string    list<int64>       list<int32>  int64        a row for each step

Arrays are flat; their shape follows from the field, the mesh and the length of the sequences (`shape_of`). The last row of a
stream may hold a `Refusal` instead of a batch: the reason why the server ends the stream.
"""

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
from datapipe.loader.field_table import FIELDS
from datapipe.loader.remote.protocol import Refusal
from datapipe.loader.share import Mesh

STEP, REFUSAL = "_step", "_refusal"

_MOST_LIST = (1 << 31) - 1


def schema_of(fields: Sequence[str], dtype: npt.DTypeLike, mesh: Mesh, sequence_length: int) -> pa.Schema:
    """The schema of a stream. The metadata of a list is the shape, with -1 for the length that varies."""
    columns = [pa.field(STEP, pa.int64()), pa.field(REFUSAL, pa.string())]
    for name in fields:
        if FIELDS[name].per == "batch":
            columns.append(pa.field(name, pa.int64()))
        else:
            values = pa.from_numpy_dtype(np.dtype(FIELDS[name].dtype or dtype))
            shape = json.dumps(shape_of(name, mesh, sequence_length))
            columns.append(pa.field(name, pa.list_(pa.field("item", values, nullable=False)), metadata={"shape": shape}))
    return pa.schema(columns)


def shape_of(field: str, mesh: Mesh, sequence_length: int) -> tuple[int, ...]:
    """The shape of a field that is an array, with -1 for the length that varies."""
    if FIELDS[field].per == "token":
        return (1, -1) if mesh.splits_documents else (-1, sequence_length // mesh.context_size)
    return (-1, FIELDS[field].width) if FIELDS[field].width > 1 else (-1,)


def record_batch(schema: pa.Schema, steps: Sequence[int], batches: Sequence[Batch]) -> pa.RecordBatch:
    """The message with the batches of some steps."""
    columns = [_column(field, [batch[field.name] for batch in batches]) for field in list(schema)[2:]]
    return pa.RecordBatch.from_arrays([pa.array(steps, pa.int64()), pa.nulls(len(steps), pa.string()), *columns], schema=schema)


def refusal_row(schema: pa.Schema, refusal: Refusal) -> pa.RecordBatch:
    """The last row of a stream that ends early."""
    values = {STEP: -1, REFUSAL: refusal.to_json().decode()}
    return pa.RecordBatch.from_arrays([pa.array([values.get(field.name)], field.type) for field in schema], schema=schema)


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


def read_batches(
    message: pa.RecordBatch, fields: Sequence[str], mesh: Mesh, sequence_length: int
) -> Iterator[tuple[int, Batch | Refusal]]:
    """The steps of a message and their batches, with `fields` in this order; or -1 and the refusal that ends the stream."""
    refusals = message.column(REFUSAL)
    if refusals.null_count < len(refusals):
        [text] = [text for text in refusals.to_pylist() if text is not None]
        yield -1, Refusal.found_in(text.encode()) or Refusal.of("failed", "the server ended the stream")
        return
    steps = message.column(STEP).to_pylist()
    values = [_values(message.column(name), shape_of(name, mesh, sequence_length)) for name in fields]
    yield from zip(steps, (dict(zip(fields, batch)) for batch in zip(*values)) if values else ({} for _ in steps))


def _values(column: pa.Array, shape: tuple[int, ...]) -> Iterable[Any]:
    """The values of a field, by step: copies, which a trainer may change."""
    if not pa.types.is_list(column.type):
        return column.to_pylist()
    offsets, flat = _view(column.offsets), _view(column.values)
    sent = flat[offsets[0] : offsets[-1]]
    copied = aligned_empty(sent.shape, sent.dtype)
    copied[:] = sent
    borders = (offsets - offsets[0]).tolist()
    return [copied[start:stop].reshape(shape) for start, stop in zip(borders, borders[1:])]


def _view(numbers: pa.Array) -> np.ndarray:
    """A column of numbers without nulls. Its own `to_numpy` would import pandas, where it is installed."""
    buffer, dtype = numbers.buffers()[1], dtype_of(numbers.type)
    if buffer is None or not len(numbers):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(numbers), numbers.offset * dtype.itemsize)
