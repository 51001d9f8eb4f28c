"""Microseconds a batch by fields, beside a bare gather; `peers` has other libraries.

All are measured in turn, round after round, and a ratio is that of two neighbours in one round, so a machine with other
work slows both; figures are medians over the rounds.

    gather      rows of one warm memory map in a random order, as int64: no shuffle, no check, no state
    first       of the loader, from its first batch to the end of the epoch: shards are opened and blocks checked
    second      the epoch that follows
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.loader import Loader
from datapipe.loader.field_table import FIELDS
from datapipe.records.outputs import ShardFile
from datapipe.shards.manifest import Phase, Snapshot, TokenizerEntry
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.source_entry import SourceEntry
from datapipe.shards.writer import ShardWriter, shard_schema
from datapipe.storage.root import Root
from tests.benchmarks.tables import Bound, Settings, Table

_TOKENS, _ROUNDS = 1 << 26, 7
_QUICK_TOKENS, _QUICK_ROUNDS = 1 << 22, 1
_GATHER_S = 0.02
"""The time for the gather in a round, at 2 * 10^9 ids a second."""

_VOCABULARY, _ROWS_AT_ONCE, TOKENIZER = 32_000, 1_000, "xxh3_128:of-a-tokenizer"
_VARIABLE_LENGTH = ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen", "document_keys")
_RUNS: dict[str, dict[str, Any]] = {
    "input_ids": {"fields": ("input_ids",)},
    "input_ids, prefetch 2": {"fields": ("input_ids",), "prefetch": 2},
    "input_ids, prefetch 0": {"fields": ("input_ids",), "prefetch": 0},
    "input_ids, int32": {"fields": ("input_ids",), "dtype": "int32"},
    "input_ids and labels": {},
    "input_ids and labels, prefetch 0": {"prefetch": 0},
    "for variable-length attention": {"fields": _VARIABLE_LENGTH},
    "every field": {"fields": tuple(FIELDS)},
    "every field, int32": {"fields": tuple(FIELDS), "dtype": "int32"},
}
"""The options of a loader, by the name of its line."""


def tables(settings: Settings) -> Iterator[Table]:
    num_tokens, num_rounds = (_QUICK_TOKENS, _QUICK_ROUNDS) if settings.quick else (_TOKENS, _ROUNDS)
    yield _by_fields(settings.folder / "fields", num_tokens // 2048, num_rounds)


def bounds(folder: Path) -> Iterator[Bound]:
    rows = write_rows(folder / "rows", 4_000, 2048)
    timings = {name: Timings() for name in ("input_ids", "input_ids, prefetch 0", "every field")}
    for _ in range(5):
        for name, of_name in timings.items():
            _measure(rows, 16, of_name, **_RUNS[name])
    for name, least in zip(timings, (0.3, 0.15, 0.04)):
        yield Bound(name=f"loader, {name}, beside a gather", ratio=median(timings[name].of_gather["second"]), least=least)
    few, many = (write_manifest(folder / f"manifest-{count}", count, 5) for count in (2_000, 40_000))
    opened = [min(_open_s(few, output) for _ in range(2)) for output in (few, many)]
    yield Bound(name="opening twenty times the shards", ratio=opened[1] / opened[0], most=30)


# ------------------------------------------------------------------------------------------------ rows


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The same random rows in two forms.

    Attributes:
        snapshot: folder of a snapshot.
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


def write_rows(folder: Path, num_rows: int, length: int) -> Rows:
    """Random rows, as documents of a seventh of a row or more, in one shard: a run makes shards of 256 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.random.default_rng(0).integers(1, _VOCABULARY, (num_rows, length), np.uint16)
    ids.tofile(folder / "ids.bin")
    root, name = Root(str(folder / "snapshot")), "source-0"
    shards = [ShardEntry.of(shard, source=name, split="train") for shard in _written(root, name, ids)]
    _write_snapshot(root, [name], shards, length)
    return Rows(snapshot=folder / "snapshot", file=folder / "ids.bin", num_rows=num_rows, length=length)


def _write_snapshot(root: Root, names: Sequence[str], shards: Sequence[ShardEntry], length: int) -> None:
    snapshot = Snapshot(
        name="benchmark",
        seed=1,
        sequence_length=length,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint=TOKENIZER, vocab_size=_VOCABULARY, eos_id=0),
        sources={name: SourceEntry(weight=1) for name in names},
        phases=(Phase(until_tokens=None, weights=dict.fromkeys(names, 1)),),
        shards=tuple(shards),
    )
    for path, content in snapshot.sealed().to_files().items():
        root.write_atomic(path, content)


def _written(root: Root, source: str, ids: np.ndarray) -> tuple[ShardFile, ...]:
    """The shard of one source."""
    num_rows, length = ids.shape
    generator = np.random.default_rng(2)
    schema = shard_schema(pa.uint16(), length, TOKENIZER, source)
    writer = ShardWriter(root, f"shards/{source}/train-0000", "arrow", schema, num_rows * length * 2)
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        rows = ids[first : first + _ROWS_AT_ONCE]
        cuts = [np.unique(generator.integers(1, 7, 4)) * (length // 7) for _ in rows]
        lengths = np.concatenate([np.diff([0, *cut.tolist(), length]) for cut in cuts])
        offsets = pa.array(np.cumsum([0, *(len(cut) + 1 for cut in cuts)]), pa.int32())
        values = {
            "lengths": pa.array(lengths, pa.int32()),
            "keys": columns.make_keys(1, np.arange(len(lengths))),
            "starts": pa.array(np.zeros(len(lengths)), pa.int64()),
        }
        lists = [pa.ListArray.from_arrays(offsets, value, type=schema.field(name).type) for name, value in values.items()]
        flat = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=schema.field("tokens").type)
        writer.append(pa.record_batch([flat, *lists], schema=schema))
    return writer.finish()


# ------------------------------------------------------------------------------------------------ rounds


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The figures of one line of a table, a list over the rounds by column.

    Attributes:
        us: microseconds a batch.
        of_gather: speed beside the gather of the same round.
    """

    us: dict[str, list[float]] = field(default_factory=dict)
    of_gather: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, us: float, gather_us: float) -> None:
        self.us.setdefault(name, []).append(us)
        self.of_gather.setdefault(name, []).append(gather_us / us)

    def cell(self, name: str) -> str:
        share = median(self.of_gather[name])
        return f"{median(self.us[name]):,.1f} ({share:.2f})" if share > 0.095 else f"{median(self.us[name]):,.0f} ({share:.3f})"


def _gather(rows: Rows, batch_size: int) -> Iterator[np.ndarray]:
    """The baseline: batches of rows of one memory map in a random order, int64, without end."""
    ids = rows.mapped()
    order = np.random.default_rng(1).permutation(rows.num_rows)
    starts = cycle(range(0, rows.num_rows - batch_size + 1, batch_size))
    return (ids[order[start : start + batch_size]].astype(np.int64) for start in starts)


def _us_a_batch(batches: Iterator[Any], num_batches: int) -> float:
    """Microseconds to take each of the next batches, on average."""
    started = time.perf_counter()
    for _ in range(num_batches):
        next(batches)
    return (time.perf_counter() - started) / num_batches * 1e6


def _measure(rows: Rows, batch_size: int, timings: Timings, **options: Any) -> None:
    """Adds one round to `timings`: a gather, and both epochs of a loader."""
    num_batches = rows.num_rows // batch_size
    baseline = _gather(rows, batch_size)
    few = max(4, min(num_batches, int(_GATHER_S * 2e9 / (batch_size * rows.length))))
    _us_a_batch(baseline, few // 4)
    gather_us = _us_a_batch(baseline, few)
    timings.add("gather", gather_us, gather_us)
    loader = Loader(rows.snapshot, global_batch_size=batch_size, **options)
    batches = iter(loader)
    for epoch in ("first", "second"):
        timings.add(epoch, _us_a_batch(batches, num_batches), gather_us)
    del batches
    loader.close()


def _by_fields(folder: Path, num_rows: int, num_rounds: int) -> Table:
    rows = write_rows(folder, num_rows, 2048)
    every = {name: Timings() for name in _RUNS}
    for name in list(_RUNS) * num_rounds:
        _measure(rows, 16, every[name], **_RUNS[name])
    return Table(
        title="The fields of the loader",
        note="Microseconds a batch of 16 rows of 2,048 tokens, int64 unless marked int32, and in brackets the speed beside a "
        f"gather of the ids from one warm memory map in the same round. The medians of {num_rounds} rounds.",
        header=("fields", "gather", "first epoch", "second epoch"),
        rows=[(name, *map(timings.cell, ("gather", "first", "second"))) for name, timings in every.items()],
    )


# ------------------------------------------------------------------------------------------------ opening


_OPEN = """
import sys, time
from datapipe.loader import Loader

Loader(sys.argv[1], global_batch_size=64, prefetch=0)
started = time.process_time()
loader = Loader(sys.argv[2], global_batch_size=64, prefetch=0)
print(time.process_time() - started)
"""


def write_manifest(folder: Path, num_shards: int, num_sources: int) -> Path:
    """A manifest of shards that do not exist."""
    names = [f"source-{number:03d}" for number in range(num_sources)]
    shards = [
        ShardEntry(
            path=f"shards/{names[number % num_sources]}/part-{number:05d}-00000-{number:016x}.arrow",
            source=names[number % num_sources],
            split="train",
            sequences=1000 + number % 7,
            tokens=100_000 + number,
            documents=number,
            bytes=1 << 20,
            checksum=f"xxh3_128:{number:032x}",
            hashes=(number << 40, (number + 1) << 40),
        )
        for number in range(num_shards)
    ]
    _write_snapshot(Root(str(folder)), names, shards, 128)
    return folder


def _open_s(small: Path, output: Path) -> float:
    """CPU seconds to open an output in a fresh process, which opened a small one before."""
    command = [sys.executable, "-c", _OPEN, str(small), str(output)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
