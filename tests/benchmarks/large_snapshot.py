"""A snapshot of any number of shards that takes next to no disk: one sparse file of zeros, and other names of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from datapipe.shards.checksum import rows_checksum
from datapipe.shards.manifest import SNAPSHOT, Phase, Snapshot, SourceEntry, TokenizerEntry
from datapipe.shards.shard_file import CHECKSUM_KEY, FORMAT_VERSION, ROWS_KEY, VERSION_KEY
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.writer import shard_schema
from datapipe.storage import Root

TOKENIZER = "xxh3_128:of-a-tokenizer"
_LENGTH, _ROWS_PER_BLOCK = 2048, 1024
_ROWS = 60 * _ROWS_PER_BLOCK - 405
_HOLE = 1 << 16
"""Runs of zeros from this length on are left out of the file."""


@contextmanager
def sparse_snapshot(folder: Path, num_shards: int) -> Iterator[int]:
    """Writes the snapshot, yields the number of its sequences, and deletes it."""
    names = [f"shards/web/train-{number // 1000:04d}-{number:05d}.arrow" for number in range(num_shards)]
    (folder / "shards/web").mkdir(parents=True)
    try:
        _write_shard(folder / names[0])
        for name in names[1:]:
            os.link(folder / names[0], folder / name)
        size = (folder / names[0]).stat().st_size
        counts = {"sequences": _ROWS, "tokens": 0, "documents": 0, "bytes": size, "checksum": "xxh3_128:" + "0" * 32}
        snapshot = Snapshot(
            name="benchmark",
            seed=1,
            sequence_length=_LENGTH,
            shard_format="arrow",
            tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint=TOKENIZER, vocab_size=32_000, eos_id=0),
            sources={"web": SourceEntry(weight=1)},
            phases=(Phase(until_tokens=None, weights={"web": 1}),),
            shards=tuple(ShardEntry(path=name, source="web", split="train", **counts) for name in names),
        )
        Root(str(folder)).write_atomic(SNAPSHOT, snapshot.sealed().to_json())
        yield num_shards * _ROWS
    finally:
        shutil.rmtree(folder)


def _write_shard(path: Path) -> None:
    """A shard whose ids are all 0 and whose rows have no pieces."""
    schema = shard_schema(pa.uint16(), _LENGTH, TOKENIZER, "web")
    layout = {VERSION_KEY: FORMAT_VERSION.encode(), ROWS_KEY: str(_ROWS_PER_BLOCK).encode()}
    schema = schema.with_metadata({**(schema.metadata or {}), **layout})
    with open(path, "wb") as raw, pa.ipc.new_file(_Sparse(raw), schema) as writer:
        for first in range(0, _ROWS, _ROWS_PER_BLOCK):
            batch = _zeros(schema, min(_ROWS_PER_BLOCK, _ROWS - first))
            writer.write_batch(batch, custom_metadata={CHECKSUM_KEY: rows_checksum(batch)})


def _zeros(schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    ids = pa.array(np.zeros(num_rows * _LENGTH, np.uint16))
    columns: list[pa.Array] = [pa.FixedSizeListArray.from_arrays(ids, type=schema.field("tokens").type)]
    offsets = pa.array(np.zeros(num_rows + 1, np.int32))
    for name in ("lengths", "keys", "starts"):
        kind = schema.field(name).type
        columns.append(pa.ListArray.from_arrays(offsets, pa.array([], kind.value_type), type=kind))
    return pa.record_batch(columns, schema=schema)


class _Sparse:
    """A file that skips long runs of zeros."""

    closed = False

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.tell, self.flush = raw.tell, raw.flush

    def write(self, content: bytes) -> int:
        view = memoryview(content)
        if len(view) >= _HOLE and not np.frombuffer(view, np.uint8).any():
            self._raw.seek(len(view), os.SEEK_CUR)
        else:
            self._raw.write(view)
        return len(view)

    def close(self) -> None: ...
