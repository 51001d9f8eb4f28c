"""Loaders beside each other: the first epoch of the same random rows, in the form that each library writes.

loader      from files, in one process
service     from another process: a service of ours, a worker of a DataLoader
store       from an S3 server that answers every request late, into an empty cache
"""

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from urllib.parse import parse_qs

from tests.benchmarks.loader import write_rows
from tests.benchmarks.peers.comparison import OURS, Comparison, run_program
from tests.benchmarks.peers.results import Figure
from tests.benchmarks.tables import Settings
from tests.support.object_store import object_store, upload
from tests.support.service import served

NUM_ROWS, FEWER_ROWS, QUICK_ROWS, LENGTH = 1 << 15, 1 << 13, 1 << 10, 2048
DELAY_S = 0.02
_IDS = ("input_ids",)
_WORKS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "loader, input_ids": ("loader", _IDS, ("numpy", "torch", "streaming", "litdata", "grain", "datasets")),
    "loader, input_ids and labels": ("loader", (), ("numpy", "megatron")),
    "loader, input_ids from another process": ("service", _IDS, ("torch",)),
    "loader, input_ids from S3": ("store", _IDS, ("streaming",)),
}
"""Programs, the fields of ours, and the peers."""

_SERVERS = ExitStack()
atexit.register(_SERVERS.close)


def comparisons(settings: Settings) -> Iterator[Comparison]:
    for work, (subject, fields, peers) in _WORKS.items():
        num_rows = QUICK_ROWS if settings.quick else NUM_ROWS if subject == "loader" else FEWER_ROWS
        folder = settings.folder / f"rows-{num_rows}"
        for peer in peers:
            yield Comparison(
                work=work,
                peer=peer,
                unit="µs a batch",
                prepare=partial(_prepare, peer, subject, folder, num_rows, fields),
                ours=partial(_measure, OURS, subject, folder, fields),
                theirs=partial(_measure, peer, subject, folder),
            )


@cache
def _write_rows(folder: Path, num_rows: int) -> None:
    write_rows(folder / "few", 64, LENGTH)
    write_rows(folder / "all", num_rows, LENGTH)


@cache
def _start_service(folder: Path) -> None:
    outputs = [f"{name}={folder / name / 'snapshot'}" for name in ("few", "all")]
    os.environ["SERVICE"] = _SERVERS.enter_context(served(folder / "server", *outputs, "--no-files")).location


@cache
def _start_store() -> str:
    query = _SERVERS.enter_context(object_store("rows", delay_s=DELAY_S))
    os.environ |= {"STORE_QUERY": query, "S3_ENDPOINT_URL": parse_qs(query[1:])["endpoint_override"][0]}
    return query


def _prepare(peer: str, subject: str, folder: Path, num_rows: int, fields: tuple[str, ...]) -> None:
    _write_rows(folder, num_rows)
    run_program(peer, subject, folder, "write", str(folder))
    if subject == "service":
        _start_service(folder)
    if subject == "store":
        for name in ("few", "all"):
            upload(folder / name, f"s3://rows/{name}{_start_store()}")
    _check(OURS, subject, folder, fields)
    _check(peer, subject, folder)


@cache
def _check(side: str, subject: str, folder: Path, fields: tuple[str, ...] = ()) -> None:
    run_program(side, subject, folder, "check", str(folder), *fields)


def _measure(side: str, subject: str, folder: Path, fields: tuple[str, ...] = ()) -> Figure:
    return Figure(value=run_program(side, subject, folder, "read", str(folder), *fields)["us"])
