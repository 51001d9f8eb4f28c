"""The rows that the benchmarks of the loader read: as a snapshot, and as one file for gathers from a memory map."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.shards.manifest import SNAPSHOT, Phase, Snapshot, SourceEntry, TokenizerEntry
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.writer import ShardWriter, shard_schema
from datapipe.storage import Root

_TOKENIZER, _VOCABULARY = "xxh3_128:of-a-tokenizer", 32_000
_ROWS_AT_ONCE = 1_000


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The same random rows in two forms.

    Attributes:
        snapshot: folder of a snapshot whose sources hold equally many rows, and are drawn equally often.
        file: all ids, uint16.
        num_rows, length: (num_rows, length) of the ids.
    """

    snapshot: Path
    file: Path
    num_rows: int
    length: int

    def mapped(self) -> np.ndarray:
        """(num_rows, length) uint16."""
        return np.memmap(self.file, np.uint16, "r").reshape(self.num_rows, self.length)


def write_rows(folder: Path, num_rows: int, length: int, num_sources: int = 1) -> Rows:
    """Random rows, as documents of a seventh of a row or more, in one shard for each source: a run makes shards of 256 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    num_rows -= num_rows % num_sources
    ids = np.random.default_rng(0).integers(1, _VOCABULARY, (num_rows, length), np.uint16)
    ids.tofile(folder / "ids.bin")
    _write_snapshot(folder / "snapshot", ids, num_sources)
    return Rows(snapshot=folder / "snapshot", file=folder / "ids.bin", num_rows=num_rows, length=length)


def _write_snapshot(folder: Path, ids: np.ndarray, num_sources: int) -> None:
    root, length = Root(str(folder)), ids.shape[1]
    names = [f"source-{number}" for number in range(num_sources)]
    entries = [
        ShardEntry(**{field: getattr(shard, field) for field in shard.__slots__}, source=name, split="train")
        for name, part in zip(names, np.split(ids, num_sources))
        for shard in _written(root, name, part)
    ]
    snapshot = Snapshot(
        name="benchmark",
        seed=1,
        sequence_length=length,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint=_TOKENIZER, vocab_size=_VOCABULARY, eos_id=0),
        sources={name: SourceEntry(weight=1) for name in names},
        phases=(Phase(until_tokens=None, weights=dict.fromkeys(names, 1)),),
        shards=tuple(entries),
    )
    root.write_atomic(SNAPSHOT, snapshot.sealed().to_json())


def _written(root: Root, source: str, ids: np.ndarray) -> list[Any]:
    """The shard of one source."""
    num_rows, length = ids.shape
    generator = np.random.default_rng(2)
    schema = shard_schema(pa.uint16(), length, _TOKENIZER, source)
    writer = ShardWriter(root, f"shards/{source}/train-0000", "arrow", schema, num_rows * length * 2)
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        rows = ids[first : first + _ROWS_AT_ONCE]
        cuts = [np.unique(generator.integers(1, 7, 4)) * (length // 7) for _ in rows]
        lengths = np.concatenate([np.diff([0, *cut.tolist(), length]) for cut in cuts])
        offsets = pa.array(np.cumsum([0, *(len(cut) + 1 for cut in cuts)]), pa.int32())
        values = [
            pa.array(lengths, pa.int32()),
            columns.make_keys(1, np.arange(len(lengths))),
            pa.array(np.zeros(len(lengths)), pa.int64()),
        ]
        lists = [
            pa.ListArray.from_arrays(offsets, value, type=schema.field(name).type)
            for name, value in zip(("lengths", "keys", "starts"), values)
        ]
        flat = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=schema.field("tokens").type)
        writer.append(pa.record_batch([flat, *lists], schema=schema))
    return list(writer.finish())


def gather(rows: Rows, batch_size: int) -> Iterator[np.ndarray]:
    """The baseline: batches of rows of one memory map in a random order, int64, without end."""
    ids = rows.mapped()
    order = np.random.default_rng(1).permutation(rows.num_rows)
    starts = cycle(range(0, rows.num_rows - batch_size + 1, batch_size))
    return (ids[order[start : start + batch_size]].astype(np.int64) for start in starts)


def us_a_batch(batches: Iterator[Any], num_batches: int) -> float:
    """Microseconds to take each of the next batches, on average."""
    started = time.perf_counter()
    for _ in range(num_batches):
        next(batches)
    return (time.perf_counter() - started) / num_batches * 1e6


def us_for(batches: Iterator[Any], seconds: float) -> float:
    """Microseconds to take a batch, on average over some seconds, and at least one batch."""
    started, taken = time.perf_counter(), 0
    while not taken or time.perf_counter() - started < seconds:
        next(batches)
        taken += 1
    return (time.perf_counter() - started) / taken * 1e6
