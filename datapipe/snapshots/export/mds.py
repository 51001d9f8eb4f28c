"""MDS, the format of MosaicML streaming: shards of samples that a reader finds by their offsets, and an index of the shards.

    train/shard.00000.mds      u32 samples n │ u32 offsets (n + 1,) │ JSON of the columns │ sample 0 │ sample 1 │ …
    a sample                   u32 size of each column without a fixed size │ the columns, sorted by name
    train/index.json           of each shard: columns, sizes and hashes of the file, and of its zstd form

Format version 2, as streaming 0.13 reads it (`streaming/base/format/mds`). Offsets begin at the start of the file, so a shard
has less than 4 GiB. Samples are joined from columns, without a Python object for one. Memory is a few times one shard.

| column | encoding |
|---|---|
| `id`, `source`, `text` | `str` |
| `tokens` | `ndarray:uint16:S`, or `uint32` for large vocabularies |
| lists of integers | `ndarray:int32`, `ndarray:int64` |
| any other | `json`: the value, `null` where there is none, as MDS has no nulls |
"""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from datapipe.columns import compute as pc
from datapipe.columns import numbers
from datapipe.errors import UserError
from datapipe.shards.documents.json_lines import json_values
from datapipe.storage.root import Root

MOST_BYTES = (1 << 32) - 1
_TEXTS = ("id", "source", "text")
_ONE_AXIS = bytes([1 << 2 | 2])
"""Begins an array that has its own shape: one axis, whose length is a uint32."""


class MdsWriter:
    """Writes rows of one split. The split can be read once `index` is in its folder, which the caller writes last.

    Args:
        folder: of the split, below `root`.
        target_bytes: the most that a shard has, unless one sample has more; at most `MOST_BYTES`.
        is_compressed: whether shards are zstd files.
    """

    def __init__(self, root: Root, folder: str, schema: pa.Schema, target_bytes: int, *, is_compressed: bool) -> None:
        self._root, self._folder, self._target_bytes, self._is_compressed = root, folder, target_bytes, is_compressed
        self._names = sorted(schema.names)
        encoded = [_encoding(schema.field(name)) for name in self._names]
        self._config: dict[str, Any] = {
            "column_encodings": [encoding for encoding, _ in encoded],
            "column_names": self._names,
            "column_sizes": [size for _, size in encoded],
            "compression": "zstd:3" if is_compressed else None,
            "format": "mds",
            "hashes": ["xxh3_64"],
            "size_limit": target_bytes,
            "version": 2,
        }
        self._header = json.dumps(self._config, sort_keys=True).encode()
        self._empty_bytes = 8 + len(self._header)
        self._held: list[pa.Array] = []
        self._held_bytes = self._empty_bytes
        self._shards: list[dict[str, Any]] = []
        self.files: list[str] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes rows; a shard is written when the next sample has no room in it."""
        samples = self._samples(rows)  # (num_rows,) large_binary
        sizes = numbers(pc.binary_length(samples)) + 4
        if len(sizes) and int(sizes.max()) + self._empty_bytes > MOST_BYTES:
            raise UserError(f"a sample of {int(sizes.max())} bytes, and an MDS shard has less than 4 GiB. Export as parquet")
        stops, first = np.concatenate([[0], np.cumsum(sizes)]), 0
        while first < len(sizes):
            room = self._target_bytes - self._held_bytes
            stop = int(np.searchsorted(stops, stops[first] + room, "right")) - 1
            if stop <= first and self._held:
                self._flush()
                continue
            stop = max(stop, first + 1)
            self._held.append(samples.slice(first, stop - first))
            self._held_bytes += int(stops[stop] - stops[first])
            first = stop

    def finish(self) -> bytes:
        """Writes the last shard. Returns the content of index.json."""
        if self._held:
            self._flush()
        return json.dumps({"shards": self._shards, "version": 2}, sort_keys=True).encode()

    def _samples(self, rows: pa.RecordBatch) -> pa.Array:
        parts = [_bytes(name, rows.column(name)) for name in self._names]
        sizes = [
            numbers(pc.binary_length(part)).astype("<u4")
            for part, size in zip(parts, self._config["column_sizes"])
            if size is None
        ]
        head = np.stack(sizes, axis=1) if sizes else np.zeros((rows.num_rows, 0), "<u4")
        return pc.binary_join_element_wise(_rows_as_bytes(head), *parts, pa.scalar(b"", pa.large_binary()))

    def _flush(self) -> None:
        samples = pa.concat_arrays(self._held)
        self._held, self._held_bytes = [], self._empty_bytes
        ends = numbers(pa.Array.from_buffers(pa.int64(), len(samples) + 1, [None, samples.buffers()[1]], offset=samples.offset))
        starts = ends - ends[0] + self._empty_bytes + 4 * len(samples)
        data = memoryview(samples.buffers()[2])[int(ends[0]) : int(ends[-1])]
        head = np.uint32(len(samples)).astype("<u4").tobytes() + starts.astype("<u4").tobytes()
        raw, name = b"".join((head, self._header, data)), f"shard.{len(self._shards):05d}.mds"
        shard: dict[str, Any] = self._config | {"samples": len(samples), "raw_data": _file(name, raw), "zip_data": None}
        if self._is_compressed:
            name, raw = f"{name}.zstd", pa.Codec("zstd", compression_level=3).compress(raw, asbytes=True)
            shard["zip_data"] = _file(name, raw)
        self._root.write_atomic(f"{self._folder}/{name}", raw)
        self._shards.append(shard)
        self.files.append(f"{self._folder}/{name}")


def _file(name: str, content: bytes) -> dict[str, Any]:
    return {"basename": name, "bytes": len(content), "hashes": {"xxh3_64": xxhash.xxh3_64_hexdigest(content)}}


def _encoding(field: pa.Field) -> tuple[str, int | None]:
    kind = field.type
    if field.name in _TEXTS:
        return "str", None
    if pa.types.is_fixed_size_list(kind):
        return f"ndarray:{kind.value_type}:{kind.list_size}", kind.list_size * kind.value_type.bit_width // 8
    if _is_array(kind):
        return f"ndarray:{kind.value_type}", None
    return "json", None


def _is_array(kind: pa.DataType) -> bool:
    """Whether these are lengths or starts of packed rows: lists of integers that are not null."""
    return pa.types.is_list(kind) and pa.types.is_integer(kind.value_type) and not kind.value_field.nullable


def _bytes(name: str, column: pa.Array) -> pa.Array:
    """The values of a column as they are stored: (num_rows,) large_binary."""
    kind = column.type
    if name in _TEXTS:
        return column.cast(pa.large_string()).cast(pa.large_binary())
    if pa.types.is_fixed_size_list(kind):
        return _rows_as_bytes(numbers(column.flatten()).reshape(len(column), kind.list_size))
    if _is_array(kind):
        lengths = np.diff(numbers(column.offsets))
        values = numbers(column.flatten())
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * values.itemsize
        axis = pa.scalar(_ONE_AXIS, pa.large_binary())
        shapes = _rows_as_bytes(lengths.astype("<u4").reshape(-1, 1))
        return pc.binary_join_element_wise(axis, shapes, _binary(ends, values), pa.scalar(b"", pa.large_binary()))
    return json_values(name, column).cast(pa.large_binary())


def _rows_as_bytes(values: np.ndarray) -> pa.Array:
    width = values.shape[1] * values.itemsize
    return _binary(np.arange(len(values) + 1, dtype=np.int64) * width, values)


def _binary(offsets: np.ndarray, values: np.ndarray) -> pa.Array:
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(little.reshape(-1))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
