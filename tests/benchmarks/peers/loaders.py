"""Loaders beside each other: the first epoch of the same random rows, in the form that each library writes."""

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from tests.benchmarks.loader import write_rows
from tests.benchmarks.peers.comparison import OURS, Comparison, run_program
from tests.benchmarks.peers.results import Figure
from tests.benchmarks.tables import Settings

NUM_ROWS, QUICK_ROWS, LENGTH = 1 << 15, 1 << 10, 2048
_INPUT_IDS = {"loader, input_ids": ("numpy", "torch", "streaming", "litdata", "grain", "datasets")}
_LABELS = {"loader, input_ids and labels": ("numpy", "megatron")}
FIELDS = {"loader, input_ids": ("input_ids",), "loader, input_ids and labels": ()}


def comparisons(settings: Settings) -> Iterator[Comparison]:
    folder, num_rows = settings.folder / "loaders", QUICK_ROWS if settings.quick else NUM_ROWS
    for work, peers in (_INPUT_IDS | _LABELS).items():
        for peer in peers:
            yield Comparison(
                work=work,
                peer=peer,
                unit="µs a batch",
                prepare=partial(_prepare, peer, folder, num_rows, FIELDS[work]),
                ours=partial(_measure, OURS, folder, FIELDS[work]),
                theirs=partial(_measure, peer, folder),
            )


@cache
def _write_rows(folder: Path, num_rows: int) -> None:
    write_rows(folder / "few", 64, LENGTH)
    write_rows(folder / "all", num_rows, LENGTH)


def _prepare(peer: str, folder: Path, num_rows: int, fields: tuple[str, ...]) -> None:
    _write_rows(folder, num_rows)
    run_program(OURS, "loader", folder, "check", str(folder), *fields)
    for command in ("write", "check"):
        run_program(peer, "loader", folder, command, str(folder))


def _measure(side: str, folder: Path, fields: tuple[str, ...] = ()) -> Figure:
    return Figure(value=run_program(side, "loader", folder, "read", str(folder), *fields)["us"])
