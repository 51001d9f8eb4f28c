"""Opening an output of many shards, and the size of a loader's state.

    python -m tests.benchmarks.loader_open FOLDER

Manifests without shards are made in FOLDER and deleted again: an order follows from the manifest alone. Each number is taken in
a fresh process, after it opened another output. Seconds are of the processor, the best of 3.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from datapipe.shards.manifest import SNAPSHOT, Phase, Snapshot, SourceEntry, TokenizerEntry
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage import Root

_CASES = ((1_000, 1), (10_000, 1), (100_000, 1), (1_000, 500), (100_000, 500))
"""(number of shards, of sources)"""

_MEASURE = """
import json, sys, time
from datapipe.loader import Loader

Loader(sys.argv[1], global_batch_size=64, prefetch=0)
started = time.process_time()
loader = Loader(sys.argv[2], global_batch_size=64, prefetch=0)
opened = time.process_time() - started
started = time.process_time()
again = Loader(sys.argv[2], global_batch_size=64, prefetch=0)
print(json.dumps([opened, time.process_time() - started, len(json.dumps(loader.state_dict()))]))
"""


def write_manifest(folder: Path, num_shards: int, num_sources: int) -> Path:
    """A manifest of shards that do not exist."""
    names = [f"source-{number:03d}" for number in range(num_sources)]
    shards = tuple(
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
    )
    snapshot = Snapshot(
        name="benchmark",
        seed=1,
        sequence_length=128,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint="xxh3_128:none", vocab_size=32_000, eos_id=0),
        sources={name: SourceEntry(weight=1) for name in names},
        phases=(Phase(until_tokens=None, weights=dict.fromkeys(names, 1)),),
        shards=shards,
    )
    Root(str(folder)).write_atomic(SNAPSHOT, snapshot.sealed().to_json())
    return folder


def main() -> None:
    folder = Path(sys.argv[1]) / "manifests"
    try:
        small = write_manifest(folder / "small", 10, 1)
        print("| shards | sources | open, s | again, while it is open, s | state, bytes |")
        print("|---:|---:|---:|---:|---:|")
        for num_shards, num_sources in _CASES:
            output = write_manifest(folder / f"{num_shards}-{num_sources}", num_shards, num_sources)
            command = [sys.executable, "-c", _MEASURE, str(small), str(output)]
            runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3)]
            opened, again, state_bytes = map(min, zip(*runs))
            print(f"| {num_shards:,} | {num_sources} | {opened:.3f} | {again:.3f} | {state_bytes:,} |")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
