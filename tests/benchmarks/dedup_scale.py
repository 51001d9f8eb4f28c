"""How deduplication grows with documents: seconds, bytes exchanged and rounds, and the memory of every kind of task.

    python -m tests.benchmarks.dedup_scale FOLDER [--largest 1000000] [--rows 10000000] [--plot scale.svg]

Synthetic documents (`tests/support/scale_corpus.py`) of 504 bytes, three in ten of which belong to families of near duplicates.
Every task is a task of a run, in a process of its own; the files of a size are removed from FOLDER when it is done.

    near duplicates   10,000 documents, ten times as many … up to `--largest`: reading, signatures, and every exchange of
                      dedup.minhash with components in rounds
    band rows         the same sizes up to `--rows`: 14 band hashes and a key a document, generated, written and reduced; no
                      text; `--run-mib` makes more sorted runs, and more than 256 runs are reduced both directly and merged
    memory            the peak of each kind of task beyond the imports, all four stages, 20,000 and 200,000 documents, with
                      buckets of 4 MiB

The plot has a line for each row of seconds, by documents, both by powers of ten, so that what is linear is a straight line.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.exchange.files import RUN_BYTES, ExchangeWriter
from datapipe.plan import runs
from datapipe.plan.expand import Expander
from datapipe.plan.outputs import ExchangeFile
from datapipe.stage.global_stage import Global
from datapipe.storage import Root
from stages.dedup._verified import BANDS
from tests.benchmarks.plots import draw
from tests.benchmarks.tables import Settings, Table
from tests.support import scale_corpus
from tests.support.task_processes import Measured, fresh_tasks, run_to_decisions

_SIZES = tuple(10**power for power in range(4, 10))
_EXECUTION = {"split_bytes": "32MiB", "bucket_bytes": "64MiB"}
_SMALL_EXECUTION = {"split_bytes": "4MiB", "bucket_bytes": "4MiB"}
_MEMORY_SIZES, _DOCS_PER_FILE = (20_000, 200_000), 20_000
_MEMORY_STAGES: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("exact", "dedup.exact", {}),
    ("minhash, in rounds", "dedup.minhash", {"components_bytes": 0}),
    ("minhash, at once", "dedup.minhash", {"components_bytes": 1 << 22}),
    ("lines", "dedup.lines", {}),
    ("substring", "dedup.substring", {"length": 20}),
)
_BANDS, _CHUNK_DOCS, _DOCS_PER_TASK = 14, 5_000, 1_000_000


@dataclass
class Grown:
    """The cost of one size over all tasks, by step: seconds, bytes of rows written, and bytes of them stored."""

    num_docs: int
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    rows_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    stored_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    num_tasks: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    rounds: int = 0
    dropped: int = 0

    def add(self, one: Measured) -> None:
        self.seconds[one.kind] += one.record.metrics.seconds
        self.num_tasks[one.kind] += 1
        if one.kind == "read":
            self.seconds["signatures"] += one.record.metrics.work["dedup.minhash"].seconds
        exchanged = [file for kind, files in one.record.outputs.items() if _is_exchanged(one, kind) for file in files]
        self.rows_bytes[one.kind] += sum(file.row_bytes for file in exchanged)
        self.stored_bytes[one.kind] += sum(file.bytes for file in exchanged)
        self.dropped += sum(one.record.metrics.document_counts.dropped.values())


def _is_exchanged(one: Measured, kind: str) -> bool:
    return kind.startswith("emitted.") or not one.kind.startswith(("read", "apply"))


def near_duplicates(folder: Path, num_docs: int) -> Grown:
    """A whole `dedup.minhash` over documents."""
    corpus = scale_corpus.write(folder / "corpus", num_docs)
    mixture = scale_corpus.write_mixture(folder, corpus, "dedup.minhash", {"components_bytes": 0}, _EXECUTION)
    grown = Grown(num_docs)
    with fresh_tasks() as tasks:
        measured = run_to_decisions(mixture, tasks)
    for one in measured:
        grown.add(one)
    grown.rounds = len({one.task.step for one in measured if one.kind == "cluster"})
    shutil.rmtree(folder)
    return grown


# ------------------------------------------------------------------------------------------------ band rows alone


def band_rows(folder: Path, num_docs: int, run_bytes: int) -> Grown:
    """The band rows, written like map tasks write them and reduced; rows of many runs are also merged and reduced."""
    grown, root = Grown(num_docs), Root(str(folder / "out"))
    started = time.perf_counter()
    files = [
        _written(root, start, min(num_docs, start + _DOCS_PER_TASK), num_docs, run_bytes)
        for start in range(0, num_docs, _DOCS_PER_TASK)
    ]
    grown.seconds["emit"] = time.perf_counter() - started
    grown.rows_bytes["emit"] = sum(file.row_bytes for file in files)
    grown.stored_bytes["emit"] = sum(file.bytes for file in files)
    corpus = scale_corpus.write(folder / "corpus", 1)
    mixture = load_mixture(scale_corpus.write_mixture(folder, corpus, "dedup.minhash", {}, _EXECUTION))
    (stage,) = prepare(mixture).sources["web"].stages
    assert isinstance(stage.stage, Global)
    exchange = stage.stage.exchanges()[0]
    expander = Expander(mixture)
    with fresh_tasks() as tasks:
        for task in expander.reduce_tasks("bands", stage, exchange, {"bands": tuple(files)}):
            grown.add(tasks.run(task, mixture.output))
        if runs.fan_in(files) > runs.MOST_RUNS:
            groups, left = runs.merge_groups(runs.with_group_keys(files))
            merging = [task for one in groups for task in expander.merge_tasks("merge", stage, "bands", one.files)]
            merged = [one.file for one in left]
            for task in merging:
                measured = tasks.run(task, mixture.output)
                grown.add(measured)
                merged += measured.record.of("bands", ExchangeFile)
            for task in expander.reduce_tasks("bands-of-merged", stage, exchange, {"bands": tuple(merged)}):
                grown.add(tasks.run(task, mixture.output))
    shutil.rmtree(folder)
    return grown


def _written(root: Root, start: int, stop: int, num_docs: int, run_bytes: int) -> ExchangeFile:
    """The band rows of the documents [start, stop): a family has every second band in common."""
    writer = ExchangeWriter(root, f"rows/{start}.exchange", BANDS, run_bytes)
    multipliers = np.arange(1, _BANDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    is_shared = np.arange(_BANDS) % 2 == 0
    for first in range(start, stop, _CHUNK_DOCS):
        rows = np.arange(first, min(stop, first + _CHUNK_DOCS), dtype=np.uint64)
        numbers = scale_corpus.numbers_at(first, min(stop, first + _CHUNK_DOCS), num_docs)
        base, _ = scale_corpus.families(numbers)
        values = np.where(is_shared, base[:, None], numbers[:, None])  # (num_docs, bands)
        hashes = scale_corpus.mixed(values * np.uint64(_BANDS) + multipliers)
        keys = columns.make_keys(1, np.repeat(rows, _BANDS))
        writer.add(pa.RecordBatch.from_arrays([pa.array(hashes.reshape(-1)), keys], schema=BANDS))
    return writer.finish()


# ------------------------------------------------------------------------------------------------ memory


def peaks(folder: Path, num_docs: int, stage: str, options: dict[str, object]) -> dict[str, tuple[int, int, int]]:
    """By kind of task: the greatest peak in bytes, the number of tasks, and the bytes of rows that they read in all."""
    corpus = scale_corpus.write(folder / "corpus", num_docs, _DOCS_PER_FILE)
    mixture = scale_corpus.write_mixture(folder, corpus, stage, options, _SMALL_EXECUTION)
    found: dict[str, tuple[int, int, int]] = {}
    with fresh_tasks() as tasks:
        for one in run_to_decisions(mixture, tasks):
            peak, count, num_bytes = found.get(one.kind, (0, 0, 0))
            num_bytes += sum(work.bytes for name, work in one.record.metrics.work.items() if name.endswith(f": {one.kind}"))
            found[one.kind] = max(peak, one.peak_bytes), count + 1, num_bytes
    shutil.rmtree(folder)
    return found


# ------------------------------------------------------------------------------------------------ printing


def _table(grown: Sequence[Grown], steps: Sequence[str]) -> None:
    """Microseconds and bytes by the document, one column a size."""
    print("\n| by the document | " + " | ".join(f"{one.num_docs:,}" for one in grown) + " |")
    print("|---|" + "---:|" * len(grown))
    for step in steps:
        print(f"| {step}, µs | " + " | ".join(f"{one.seconds[step] / one.num_docs * 1e6:.2f}" for one in grown) + " |")
    for step in steps:
        if any(one.rows_bytes[step] for one in grown):
            cells = (
                f"{one.rows_bytes[step] / one.num_docs:.1f} ({one.stored_bytes[step] / one.num_docs:.1f})" for one in grown
            )
            print(f"| {step}, bytes of rows (stored) | " + " | ".join(cells) + " |")
    if any(one.rounds for one in grown):
        print("| rounds of components | " + " | ".join(str(one.rounds) for one in grown) + " |")
        print("| dropped | " + " | ".join(f"{one.dropped / one.num_docs:.4f}" for one in grown) + " |")


_STEPS = (
    "read", "signatures", "match-bands", "fetch-signatures", "compare", "cluster", "decide", "decisions", "apply-dedup.minhash",
)  # fmt: skip


def _print_memory(folder: Path) -> None:
    print("\nMiB beyond the imports, buckets of 4 MiB (tasks, MB of rows read)\n")
    print("| stage | task | 20,000 documents | 200,000 |\n|---|---|---:|---:|")
    for name, stage, options in _MEMORY_STAGES:
        small, large = (peaks(folder / f"memory-{count}", count, stage, options) for count in _MEMORY_SIZES)
        for kind in large:
            cells = [
                f"{peak / (1 << 20):.0f} ({count}, {num_bytes / 1e6:.0f})"
                for peak, count, num_bytes in (small.get(kind, (0, 0, 0)), large[kind])
            ]
            print(f"| {name} | {kind} | " + " | ".join(cells) + " |", flush=True)


def table(settings: Settings) -> Table:
    """`dedup.minhash` of one size, step by step."""
    num_docs = _SIZES[0] if settings.quick else _SIZES[1]
    grown = near_duplicates(settings.folder / "near-duplicates", num_docs)
    rows = [
        (step, f"{seconds / num_docs * 1e6:.2f}", f"{grown.rows_bytes[step] / num_docs:.0f}")
        for step, seconds in grown.seconds.items()
    ]
    return Table(
        title="Near duplicates, by the document",
        note=f"`dedup.minhash` over {num_docs:,} made-up documents of 504 bytes, three in ten of them near duplicates; the "
        "time of every task summed, one run. `python -m tests.benchmarks.dedup_scale FOLDER` measures other sizes, memory.",
        header=("step", "µs", "bytes of rows"),
        rows=rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the corpora and outputs go; of a million documents about 4 GB")
    parser.add_argument("--largest", type=int, default=1_000_000, help="most documents with text")
    parser.add_argument("--rows", type=int, default=10_000_000, help="most documents of band rows alone")
    parser.add_argument("--run-mib", type=int, default=RUN_BYTES >> 20, help="size of the sorted runs of band rows")
    parser.add_argument("--plot", type=Path, help="where to draw the lines (needs matplotlib)")
    parser.add_argument("--no-memory", action="store_true")
    given = parser.parse_args()
    grown = [near_duplicates(given.folder / str(size), size) for size in _SIZES if size <= given.largest]
    _table(grown, _STEPS)
    bands = [band_rows(given.folder / f"rows-{size}", size, given.run_mib << 20) for size in _SIZES if size <= given.rows]
    _table(bands, ("emit", "bands", "merge", "bands-of-merged"))
    lines = {step: [(one.num_docs, one.seconds[step]) for one in grown] for step in _STEPS}
    lines["band rows alone, written"] = [(one.num_docs, one.seconds["emit"]) for one in bands]
    lines["band rows alone, reduced"] = [(one.num_docs, one.seconds["bands"]) for one in bands]
    if given.plot:
        draw(given.plot, "documents", "seconds on one core", lines, log=True)
    if not given.no_memory:
        _print_memory(given.folder)


if __name__ == "__main__":
    main()
