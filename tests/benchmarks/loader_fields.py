"""Microseconds a batch by fields, types and prefetch, in the first epoch and later, beside a bare gather of the ids.

    taskset -c 0 python -m tests.benchmarks.loader_fields FOLDER

FOLDER is scratch room for 200 MB. `loader.py` measures sizes and peers, and says how.
"""

from __future__ import annotations

import sys
from pathlib import Path

from datapipe.loader import Loader
from datapipe.loader.field_table import FIELDS
from tests.benchmarks.loader_rows import gather, us_a_batch, write_rows
from tests.benchmarks.loader_timings import Timings
from tests.benchmarks.tables import Settings, Table

_LENGTH, _BATCH_SIZE, _NUM_ROWS = 2048, 16, 20_000
_ROUNDS, _QUICK_ROUNDS = 7, 1

VARIABLE_LENGTH = ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen", "document_keys")
"""The fields of a trainer with variable-length attention, and the origin of each token."""

_RUNS = {
    "input_ids": {"fields": ("input_ids",)},
    "input_ids, prefetch 2": {"fields": ("input_ids",), "prefetch": 2},
    "input_ids, prefetch 0": {"fields": ("input_ids",), "prefetch": 0},
    "input_ids, int32": {"fields": ("input_ids",), "dtype": "int32"},
    "input_ids and labels": {},
    "input_ids and labels, prefetch 0": {"prefetch": 0},
    "for variable-length attention": {"fields": VARIABLE_LENGTH},
    "every field": {"fields": tuple(FIELDS)},
    "every field, int32": {"fields": tuple(FIELDS), "dtype": "int32"},
}
"""The options of a loader, by the name of its line."""


def measure(folder: Path, num_rows: int, num_rounds: int) -> dict[str, Timings]:
    """By line, the figures of both epochs."""
    rows = write_rows(folder, num_rows, _LENGTH)
    num_batches = num_rows // _BATCH_SIZE
    baseline, every = gather(rows, _BATCH_SIZE), {name: Timings() for name in _RUNS}
    us_a_batch(baseline, num_batches)
    for _ in range(num_rounds):
        for name, options in _RUNS.items():
            gather_us = us_a_batch(baseline, num_batches // 2)
            loader = Loader(rows.snapshot, global_batch_size=_BATCH_SIZE, **options)
            batches = iter(loader)
            for epoch in ("first", "second"):
                every[name].add(epoch, us_a_batch(batches, num_batches), gather_us)
            del batches
            loader.close()
            every[name].add("gather", gather_us, gather_us)
    return every


def table(settings: Settings) -> Table:
    """The loader by fields, beside a bare gather."""
    num_rounds = _QUICK_ROUNDS if settings.quick else _ROUNDS
    every = measure(settings.folder / "loader-fields", _NUM_ROWS // 10 if settings.quick else _NUM_ROWS, num_rounds)
    return Table(
        title="The fields of the loader",
        note=f"Microseconds a batch of {_BATCH_SIZE} rows of {_LENGTH:,} tokens, int64 unless it says int32, and in brackets "
        f"the speed beside a gather of the ids from one warm memory map in the same round. The medians of {num_rounds} rounds.",
        header=("fields", "gather", "first epoch", "second epoch"),
        rows=[(name, *(timings.cell(column) for column in ("gather", "first", "second"))) for name, timings in every.items()],
    )


def main() -> None:
    print(table(Settings(quick=False, data=Path(), folder=Path(sys.argv[1]), web=Path())).to_markdown())


if __name__ == "__main__":
    main()
