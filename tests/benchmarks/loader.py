"""Batches a second against a bare gather from one memory map and against MosaicML streaming, in one run over the same rows.

    taskset -c 0 python -m tests.benchmarks.loader FOLDER [PYTHON]

FOLDER is scratch room for 300 MB. PYTHON is the interpreter of an environment with mosaicml-streaming and torch; without it
that peer is left out. Each is measured `_ROUNDS` times in turn, and its best is what is compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.loader import Loader
from datapipe.loader.fields.table import FIELDS
from datapipe.shards.manifest import SNAPSHOT, Phase, ShardEntry, Snapshot, SourceEntry, TokenizerEntry
from datapipe.shards.writer import ShardWriter, shard_schema
from datapipe.storage import Root
from tests.benchmarks.tables import NOT_MEASURED, Settings, Table

S, N, B = 2048, 20_000, 16
_STEPS, _ROUNDS, _SHARDS = 1_200, 5, 8
_TOKENIZER = "xxh3_128:of-a-tokenizer"

VARIABLE_LENGTH = ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen", "document_keys")
"""The fields of a trainer with variable-length attention, and the origin of each token."""

_STREAMING = """
import json, os, sys, time
from unittest.mock import MagicMock
import numpy as np, torch
sys.modules["streaming.vision"] = MagicMock()  # it wants a torchvision that fits torch to the digit, and has no part in this
from streaming import MDSWriter, StreamingDataset
folder, tokens, steps, batch_size = sys.argv[1], np.load(sys.argv[2], mmap_mode="r"), int(sys.argv[3]), int(sys.argv[4])
if not os.path.exists(folder):
    with MDSWriter(out=folder, columns={"tokens": f"ndarray:uint16:{tokens.shape[1]}"}, size_limit=1 << 26) as writer:
        for row in tokens:
            writer.write({"tokens": np.array(row)})
for workers in (0, 2):
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=batch_size, shuffle_seed=1)
    options = {"prefetch_factor": 4} if workers else {}
    batches = iter(torch.utils.data.DataLoader(dataset, batch_size=batch_size, num_workers=workers, **options))
    next(batches)
    started = time.perf_counter()
    for _ in range(steps):
        next(batches)
    print(json.dumps([workers, steps / (time.perf_counter() - started)]), flush=True)
"""


def write_snapshot(folder: Path, tokens: np.ndarray) -> None:
    """The rows as documents of 300 tokens or more, in `_SHARDS` shards."""
    root = Root(str(folder))
    generator = np.random.default_rng(2)
    schema = shard_schema(pa.uint16(), S, _TOKENIZER, "web")
    writer = ShardWriter(root, "shards/web/train-0000", "arrow", schema, -(-N // _SHARDS) * S * 2)
    for first in range(0, N, 1000):
        rows = tokens[first : first + 1000]
        cuts = [np.unique(generator.integers(1, 7, 4)) * 300 for _ in rows]
        lengths = np.concatenate([np.diff([0, *cut.tolist(), S]) for cut in cuts])
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
        ids = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=schema.field("tokens").type)
        writer.append(pa.record_batch([ids, *lists], schema=schema))
    snapshot = Snapshot(
        name="benchmark",
        seed=1,
        sequence_length=S,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint=_TOKENIZER, vocab_size=32_000, eos_id=0),
        sources={"web": SourceEntry(weight=1)},
        phases=(Phase(until_tokens=None, weights={"web": 1}),),
        shards=tuple(
            ShardEntry(**{field: getattr(shard, field) for field in shard.__slots__}, source="web", split="train")
            for shard in writer.finish()
        ),
    )
    root.write_atomic(SNAPSHOT, snapshot.sealed().to_json())


def rate(batches: Iterator[Any], num_steps: int) -> float:
    """Batches a second, after enough to have every block checked."""
    for _ in range(100):
        next(batches)
    started = time.perf_counter()
    for _ in range(num_steps):
        next(batches)
    return num_steps / (time.perf_counter() - started)


def gather(path: Path, dtype: type) -> Iterator[np.ndarray]:
    """The baseline: rows of one memory map in a random order."""
    rows = np.memmap(path, np.uint16, "r").reshape(N, S)
    order = np.random.default_rng(1).permutation(N)
    return (rows[order[i : i + B]].astype(dtype) for i in cycle(range(0, N - B, B)))


def streaming_rates(folder: Path, python: str) -> dict[str, float]:
    command = [python, "-c", _STREAMING, str(folder / "mds"), str(folder / "tokens.npy"), "600", str(B)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("[")]
    return {f"MosaicML streaming, {workers} workers": speed for workers, speed in found}


def measure(folder: Path, python: str = "", num_rounds: int = _ROUNDS, num_steps: int = _STEPS) -> dict[str, float]:
    """Batches a second of everything, the best of `num_rounds` in turn.

    Args:
        python: the interpreter that has the peer; "": it is left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.random.default_rng(0).integers(1, 32_000, (N, S)).astype(np.uint16)
    tokens.tofile(folder / "tokens.bin")
    np.save(folder / "tokens.npy", tokens)
    write_snapshot(folder / "snapshot", tokens)

    def ours(prefetch: int | None, *fields: str, dtype: str = "int64") -> Callable[[], Iterator[Any]]:
        return lambda: iter(Loader(folder / "snapshot", global_batch_size=B, fields=fields, dtype=dtype, prefetch=prefetch))

    runs: dict[str, Callable[[], Iterator[Any]]] = {
        "memmap gather, int64": lambda: gather(folder / "tokens.bin", np.int64),
        "input_ids": ours(None, "input_ids"),
        "input_ids, prefetch 2": ours(2, "input_ids"),
        "input_ids, prefetch 0": ours(0, "input_ids"),
        "input_ids, int32": ours(None, "input_ids", dtype="int32"),
        "input_ids and labels": ours(None, "input_ids", "labels"),
        "for variable-length attention": ours(None, *VARIABLE_LENGTH),
        "every field": ours(None, *FIELDS),
        "every field, int32": ours(None, *FIELDS, dtype="int32"),
    }
    best = dict.fromkeys(runs, 0.0)
    for _ in range(num_rounds):
        for name, make in runs.items():
            best[name] = max(best[name], rate(make(), num_steps))
    return best | (streaming_rates(folder, python) if python else {})


def table(settings: Settings) -> Table:
    """Batches a second, beside a bare gather and MosaicML streaming."""
    rounds = {"num_rounds": 1, "num_steps": 50} if settings.quick else {}
    best = measure(settings.folder / "loader", settings.streaming, **rounds)
    bare = best["memmap gather, int64"]
    peer = max((speed for name, speed in best.items() if name.startswith("Mosaic")), default=None)
    rows = [
        (name, f"{speed:,.0f}", f"{speed / bare:.2f}", f"{speed / peer:.0f}" if peer else "") for name, speed in best.items()
    ]
    return Table(
        title="The loader, beside a bare gather and MosaicML streaming",
        note=f"{B} rows of {S:,} tokens from {_SHARDS} local shards. The gather copies rows of one memory map in a random "
        f"order and does nothing else. The best of {rounds.get('num_rounds', _ROUNDS)}.",
        header=("fields", "batches/s", "of the gather", "of streaming"),
        rows=rows if peer else [*rows, ("MosaicML streaming", NOT_MEASURED, "", "")],
    )


def main() -> None:
    best = measure(Path(sys.argv[1]), sys.argv[2] if sys.argv[2:] else "")
    bare = best["memmap gather, int64"]
    peer = max((speed for name, speed in best.items() if name.startswith("Mosaic")), default=0.0)
    for name, speed in best.items():
        against = f"{speed / peer:>9.1f} of streaming" if peer else ""
        print(
            f"{name:<36}{speed:>10,.0f} batches/s{speed * B * S / 1e6:>9,.0f} Mtokens/s{speed / bare:>7.2f} of memmap{against}"
        )


if __name__ == "__main__":
    main()
