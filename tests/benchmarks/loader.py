"""Microseconds a batch by its size, sources, epoch and prefetch, beside a bare gather, torch and MosaicML streaming.

    taskset -c 0 python -m tests.benchmarks.loader FOLDER [--quick] [--streaming PYTHON]

FOLDER is scratch room for 2 GB. PYTHON is the interpreter of an environment with mosaicml-streaming and torch; without it
that peer is left out. All are measured in turn, round after round, and a ratio is that of two neighbours in one round, so a
machine with other work slows both; figures are medians over the rounds. About two minutes.

    gather      rows of one warm memory map in a random order, as int64: no shuffle, no check, no state
    first       of the loader, from its first batch to the end of the epoch: shards are opened and blocks checked
    second      the epoch that follows
    torch       a DataLoader without workers over a dataset that returns a row of that map; RandomSampler, default collate
    streaming   StreamingDataset in a DataLoader without workers, shuffled
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.loader import Loader
from tests.benchmarks.loader_rows import Rows, gather, us_a_batch, us_for, write_rows
from tests.benchmarks.loader_timings import Timings
from tests.benchmarks.tables import Settings, Table

BATCH_SIZES, LENGTHS, SOURCES = (1, 16, 256), (512, 2048, 8192), (1, 5)
_TOKENS, _ROUNDS = 1 << 26, 7
_QUICK_TOKENS, _QUICK_ROUNDS = 1 << 22, 1
_GATHER_S, _PEER_S = 0.02, 0.03
"""The time for the gather, at 2 * 10^9 ids a second, and for each peer in a round."""

_LOADERS = ("first", "second", "first, prefetch 0", "second, prefetch 0")
_PEERS = ("torch", "streaming")

_STREAMING = """
import json, os, sys, time
from unittest.mock import MagicMock
import numpy as np, torch
sys.modules["streaming.vision"] = MagicMock()  # it wants a torchvision that fits torch to the digit, and has no part in this
from streaming import MDSWriter, StreamingDataset
def batches_of(file, length, batch_size):
    folder = f"{file}.mds"
    if not os.path.exists(folder):
        with MDSWriter(out=folder, columns={"tokens": f"ndarray:uint16:{length}"}, size_limit=1 << 26) as writer:
            for row in np.memmap(file, np.uint16, "r").reshape(-1, length):
                writer.write({"tokens": np.array(row)})
    while True:
        dataset = StreamingDataset(local=folder, shuffle=True, batch_size=batch_size, shuffle_seed=1)
        yield from torch.utils.data.DataLoader(dataset, batch_size=batch_size)
known = {}
for line in sys.stdin:
    *key, seconds = json.loads(line)
    batches = known.setdefault(tuple(key), batches_of(*key))
    next(batches)
    started, taken = time.perf_counter(), 0
    while not taken or time.perf_counter() - started < seconds:
        next(batches)
        taken += 1
    print(json.dumps((time.perf_counter() - started) / taken * 1e6), flush=True)
"""


class Streaming:
    """MosaicML streaming in a process of its own, which measures when it is asked to."""

    def __init__(self, python: str, stack: ExitStack) -> None:
        command = [python, "-c", _STREAMING]
        self._process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        )

    def us_a_batch(self, rows: Rows, batch_size: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(rows.file), rows.length, batch_size, _PEER_S]) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))


def _torch_batches(rows: Rows, batch_size: int) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    class MappedRows(Dataset):
        def __init__(self) -> None:
            self.ids = rows.mapped()

        def __len__(self) -> int:
            return rows.num_rows

        def __getitem__(self, row: int) -> Any:
            return torch.from_numpy(self.ids[row].astype(np.int64))

    dataset = MappedRows()
    order = RandomSampler(dataset, replacement=True, num_samples=1 << 40)  # the peer must not end
    return iter(DataLoader(dataset, batch_size=batch_size, sampler=order))


def measure_loader(rows: Rows, batch_size: int, timings: Timings) -> None:
    """Adds one round to `timings`: both epochs of a loader, and a gather before it."""
    num_batches = rows.num_rows // batch_size
    baseline = gather(rows, batch_size)
    few = max(4, min(num_batches, int(_GATHER_S * 2e9 / (batch_size * rows.length))))
    for name, prefetch in (("", None), (", prefetch 0", 0)):
        us_a_batch(baseline, few // 4)
        gather_us = us_a_batch(baseline, few)
        timings.add("gather", gather_us, gather_us)
        loader = Loader(rows.snapshot, global_batch_size=batch_size, fields=("input_ids",), prefetch=prefetch)
        batches = iter(loader)
        for epoch in ("first", "second"):
            timings.add(f"{epoch}{name}", us_a_batch(batches, num_batches), gather_us)
        del batches
        loader.close()


def measure_peers(rows: Rows, batch_size: int, streaming: Streaming | None, every: Sequence[Timings]) -> None:
    """Adds one round of the peers, for which the number of sources makes no difference, to each of `every`."""
    us: dict[str, float] = {}
    if importlib.util.find_spec("torch"):
        batches = _torch_batches(rows, batch_size)
        next(batches)
        us["torch"] = us_for(batches, _PEER_S)
    if streaming is not None:
        us["streaming"] = streaming.us_a_batch(rows, batch_size)
    for timings in every:
        for name, figure in us.items():
            timings.add(name, figure, timings.us["gather"][-1])


def measure(folder: Path, python: str, num_tokens: int, num_rounds: int) -> dict[tuple[int, int, int], Timings]:
    """By (length, batch size, number of sources).

    Args:
        python: the interpreter that has streaming; "": it is left out.
    """
    every: dict[tuple[int, int, int], Timings] = {}
    with ExitStack() as stack:
        streaming = Streaming(python, stack) if python else None
        for length in LENGTHS:
            kinds = {
                number: write_rows(folder / f"{length}-{number}", num_tokens // length, length, number) for number in SOURCES
            }
            for _ in range(num_rounds):
                for batch_size in BATCH_SIZES:
                    here = {number: every.setdefault((length, batch_size, number), Timings()) for number in SOURCES}
                    for number, timings in here.items():
                        measure_loader(kinds[number], batch_size, timings)
                    measure_peers(kinds[1], batch_size, streaming, list(here.values()))
    return dict(sorted(every.items(), key=lambda line: (line[0][1], line[0])))


def table(settings: Settings) -> Table:
    """The loader by size, beside a bare gather, torch and MosaicML streaming."""
    num_tokens, num_rounds = (_QUICK_TOKENS, _QUICK_ROUNDS) if settings.quick else (_TOKENS, _ROUNDS)
    every = measure(settings.folder / "loader", settings.streaming, num_tokens, num_rounds)
    names = ("gather", *_LOADERS, *_PEERS)
    rows = [
        (f"{batch_size} x {length:,}, {num_sources}", *(timings.cell(name) for name in names))
        for (length, batch_size, num_sources), timings in every.items()
    ]
    return Table(
        title="The loader, beside a bare gather, torch and MosaicML streaming",
        note=f"Microseconds a batch of `input_ids`, int64, and in brackets the speed beside the gather of the same round. "
        f"{num_tokens * 2 / 1e6:,.0f} MB of rows in memory. The gather copies rows of one warm memory map in a random order, "
        f"and does nothing else; torch is a DataLoader without workers over that map. first, second: epochs of the loader, the "
        f"first with opening its shards and checking their blocks. The medians of {num_rounds} rounds.",
        header=("batch x length, sources", *names),
        rows=rows,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes and one round")
    parser.add_argument("--streaming", default="", help="a Python with mosaicml-streaming and torch")
    given = parser.parse_args(arguments)
    settings = Settings(quick=given.quick, data=Path(), folder=given.folder, web=Path(), streaming=given.streaming)
    print(table(settings).to_markdown())


if __name__ == "__main__":
    main()
