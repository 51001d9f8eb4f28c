"""First batch, memory and restored state of a snapshot of 10^9 sequences.

    python -m tests.benchmarks.loader_start FOLDER [SHARDS]

The snapshot is made in FOLDER and deleted again. One shard file of zeros is crafted, sparse, 250 MB apparent, and every shard
is another name of it: 16,384 of them are 4 TB apparent and take 5 MB of disk. Rows have no pieces. Each number is taken in
a fresh process, after its imports, with the file in memory or about to be made of zeros: no disk is measured.

A row of a block that was not used before costs the check of 4 MiB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.shards.checksum import rows_checksum
from datapipe.shards.manifest import SNAPSHOT, Phase, Snapshot, SourceEntry, TokenizerEntry
from datapipe.shards.shard_file import CHECKSUM_KEY, FORMAT_VERSION, ROWS_KEY, VERSION_KEY
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.writer import shard_schema
from datapipe.storage import Root
from tests.benchmarks.tables import Settings, Table

_LENGTH, _ROWS_PER_BLOCK, _BLOCKS_PER_SHARD = 2048, 1024, 60
_ROWS = _ROWS_PER_BLOCK * _BLOCKS_PER_SHARD - 405
_SHARDS = 16_384
_TOKENIZER = "xxh3_128:of-a-tokenizer"
_HOLE = 1 << 16
"""Runs of zeros from this length on are left out of the file."""

_MEASURE = """
import json, sys, time
from pathlib import Path
import numpy as np
from datapipe.loader import Loader
from datapipe.loader.field_table import FIELDS
from datapipe.kernels import all_kernels

def memory():
    status = Path("/proc/self/status").read_text()
    return {name: int(line.split()[1]) / 1e3 for line in status.splitlines() for name in ("RssAnon", "RssFile") if name in line}

folder, prefetch = sys.argv[1], int(sys.argv[2])
before = memory()
started = time.perf_counter()
loader = Loader(folder, global_batch_size=16, fields=["input_ids"], prefetch=prefetch)
opened = time.perf_counter()
batches = iter(loader)
next(batches)
first = time.perf_counter()
after_first = memory()
state = loader.state_dict()
saved = time.perf_counter()
state = json.loads(json.dumps(state))
restoring = time.perf_counter()
loader.load_state_dict(state)
restored = time.perf_counter()
for _ in range(50):
    next(batches)
batches.close()
print(json.dumps({
    "open_s": opened - started, "first_batch_s": first - started, "state_dict_ms": (saved - first) * 1e3,
    "load_state_dict_ms": (restored - restoring) * 1e3, "next_50_batches_s": time.perf_counter() - restored,
    "before_mb": before, "after_first_mb": after_first, "after_50_mb": memory(),
}))
"""


def write_sparse_shard(path: Path) -> None:
    """A shard whose ids are all 0 and whose rows have no pieces."""
    schema = shard_schema(pa.uint16(), _LENGTH, _TOKENIZER, "web")
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

    def __init__(self, raw) -> None:
        self._raw = raw

    def write(self, content) -> int:
        view = memoryview(content)
        if len(view) >= _HOLE and not np.frombuffer(view, np.uint8).any():
            self._raw.seek(len(view), os.SEEK_CUR)
        else:
            self._raw.write(view)
        return len(view)

    def tell(self) -> int:
        return self._raw.tell()

    def flush(self) -> None:
        self._raw.flush()

    def close(self) -> None:
        pass


def write_snapshot(folder: Path, num_shards: int) -> None:
    root, names = (
        Root(str(folder)),
        [f"shards/web/train-{number // 1000:04d}-{number:05d}.arrow" for number in range(num_shards)],
    )
    (folder / "shards/web").mkdir(parents=True)
    write_sparse_shard(folder / names[0])
    size = (folder / names[0]).stat().st_size
    for name in names[1:]:
        os.link(folder / names[0], folder / name)
    shards = tuple(
        ShardEntry(
            path=name,
            source="web",
            split="train",
            sequences=_ROWS,
            tokens=0,
            documents=0,
            bytes=size,
            checksum="xxh3_128:" + "0" * 32,
        )
        for name in names
    )
    snapshot = Snapshot(
        name="benchmark",
        seed=1,
        sequence_length=_LENGTH,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint=_TOKENIZER, vocab_size=32_000, eos_id=0),
        sources={"web": SourceEntry(weight=1)},
        phases=(Phase(until_tokens=None, weights={"web": 1}),),
        shards=shards,
    )
    root.write_atomic(SNAPSHOT, snapshot.sealed().to_json())


def measure(folder: Path, num_shards: int, num_runs: int = 3) -> dict[int, dict[str, Any]]:
    """Prefetch depth -> figures of the run with the earliest first batch."""
    folder.mkdir(parents=True)
    try:
        write_snapshot(folder, num_shards)
        return {prefetch: _best(folder, prefetch, num_runs) for prefetch in (0, 2, 32)}
    finally:
        shutil.rmtree(folder)


def _best(folder: Path, prefetch: int, num_runs: int) -> dict[str, Any]:
    command = [sys.executable, "-c", _MEASURE, str(folder), str(prefetch)]
    outputs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(num_runs)]
    return min(map(json.loads, outputs), key=lambda figures: figures["first_batch_s"])


def table(settings: Settings) -> Table:
    """From opening to the first batch."""
    num_shards, num_runs = (16, 1) if settings.quick else (_SHARDS, 3)
    measured = measure(settings.folder / "sparse-snapshot", num_shards, num_runs)
    rows = [
        (
            str(prefetch),
            f"{figures['open_s']:.2f}",
            f"{figures['first_batch_s']:.2f}",
            f"{figures['load_state_dict_ms']:.1f}",
            f"{sum(figures['after_50_mb'].values()) - sum(figures['before_mb'].values()):.0f}",
        )
        for prefetch, figures in measured.items()
    ]
    return Table(
        title="Opening a large snapshot",
        note=f"{num_shards * _ROWS:,} sequences of {_LENGTH:,} tokens in {num_shards:,} shards; a fresh process after its "
        f"imports, the best of {num_runs}. The shards are sparse files, so no disk is measured.",
        header=("prefetch", "open, s", "first batch, s", "restore a state, ms", "MB beyond the imports"),
        rows=rows,
    )


def main() -> None:
    num_shards = int(sys.argv[2]) if sys.argv[2:] else _SHARDS
    for prefetch, figures in measure(Path(sys.argv[1]) / "sparse-snapshot", num_shards).items():
        print(f"prefetch {prefetch}: {json.dumps(figures)}")


if __name__ == "__main__":
    main()
