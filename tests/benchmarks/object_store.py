"""pyarrow beside obstore on an object store far away, and the commits of a run there.

    python -m tests.benchmarks.object_store

An S3 server on loopback (moto) behind a proxy that holds every answer back for 20 ms, each a process of its own. The server is
Python and slower than a real one, so small requests are also told in CPU of the client, which no server changes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import obstore
import pyarrow.fs as pafs

from datapipe.ledger.commit_files import MOST_RECORDS
from datapipe.ledger.conditional import _open
from datapipe.ledger.ledger import Ledger
from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.plan.outputs import TableFile
from datapipe.plan.work import Record
from datapipe.storage import Root
from tests.benchmarks.tables import Settings, Table
from tests.support.object_store import CREDENTIALS
from tests.support.slow_network import slow_object_store

_DELAY_MS = 20
_SMALL_BYTES, _LARGE_BYTES = 2_000, 64 << 20
_AT_ONCE = 16
_GROUPS = (50, MOST_RECORDS)
"""Records of a commit: those that come in 0.1 s at 500 tasks a second, and the most."""


class _Arrow:
    """The file system of pyarrow, as `Root` asks it: a large object by several requests at once."""

    name = "pyarrow"

    def __init__(self, root: Root) -> None:
        self._root, self._files = root, root.filesystem

    def put(self, path: str, content: bytes) -> None:
        with self._files.open_output_stream(self._root.path(path), compression=None) as stream:
            stream.write(content)

    def get(self, path: str) -> int:
        return len(self._root.read_bytes(path))

    def count(self, folder: str) -> int:
        return len(self._files.get_file_info(pafs.FileSelector(self._root.path(folder))))


class _Obstore:
    name = "obstore"

    def __init__(self, root: Root) -> None:
        self._store = _open(root)

    def put(self, path: str, content: bytes) -> None:
        obstore.put(self._store, path, content)

    def get(self, path: str) -> int:
        return len(memoryview(obstore.get(self._store, path).bytes()))

    def count(self, folder: str) -> int:
        return sum(len(part) for part in obstore.list(self._store, folder))


def _taken(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by clock, and of CPU of this process."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


def _requests(client: _Arrow | _Obstore, count: int) -> list[tuple[str, str, str]]:
    """What small and large objects take: name of the work, by clock, of CPU."""
    small, large = b"x" * _SMALL_BYTES, os.urandom(_LARGE_BYTES)
    paths = [f"{client.name}/small/{number}" for number in range(count)]

    def at_once(function: Callable[[str], object]) -> Callable[[], object]:
        def work() -> None:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(function, paths))

        return work

    def a_request(taken: tuple[float, float]) -> tuple[str, str]:
        return f"{1e3 * taken[0] / count:.1f} ms", f"{1e3 * taken[1] / count:.2f} ms"

    put = lambda path: client.put(path, small)  # noqa: E731
    rows = [
        ("put 2 kB", *a_request(_taken(lambda: [put(path) for path in paths]))),
        (f"put 2 kB, {_AT_ONCE} at once", *a_request(_taken(at_once(put)))),
        ("get 2 kB", *a_request(_taken(lambda: [client.get(path) for path in paths]))),
        (f"get 2 kB, {_AT_ONCE} at once", *a_request(_taken(at_once(client.get)))),
    ]
    listed = _taken(lambda: client.count(f"{client.name}/small"))
    rows.append((f"list {count} objects", f"{1e3 * listed[0]:.0f} ms", f"{1e3 * listed[1]:.1f} ms"))
    for name, work in (("put 64 MiB", lambda path: client.put(path, large)), ("get 64 MiB", client.get)):
        wall, cpu = min(_taken(lambda work=work: work(f"{client.name}/large")) for _ in range(3))
        rows.append((name, f"{wall:.2f} s", f"{cpu:.3f} s"))
    return rows


def record(number: int) -> Record:
    """A record as a map task has it."""
    name = f"{number:064x}"
    metrics = TaskMetrics(seconds=0.001, peak_bytes=1 << 28)
    metrics.document_counts = DocumentCounts(read=1, read_bytes=1024, kept=1, kept_bytes=1024)
    for work in ("read", "filter.length", "write documents"):
        metrics.spent(work, 0.0001, 1024, 1)
    path = f"work/attempts/web.read/{name[:16]}-0123456789ab/documents.arrow"
    table = TableFile(path=path, rows=1, bytes=1200, checksum=f"xxh3_128:{name[:32]}", row_bytes=1024)
    return Record(step="web/read", fingerprint=name, outputs={"documents": (table,)}, metrics=metrics)


def _commits(root: Root, count: int) -> list[Sequence[str]]:
    """Commits a second by the size of their groups, and the time to read all of them back."""
    rows: list[Sequence[str]] = []
    for size in _GROUPS:
        own = root.within(f"group-{size}")
        records, ledger = [record(number) for number in range(count if size == MOST_RECORDS else count // 10)], Ledger(own)
        groups = [records[start : start + size] for start in range(0, len(records), size)]
        wall, cpu = _taken(lambda ledger=ledger, groups=groups: [ledger.commit(group) for group in groups])
        rows.append(
            (f"commit {len(records):,} records, {size} at a time", f"{len(records) / wall:,.0f} a second", f"{cpu:.1f} s")
        )
    again = Ledger(root.within(f"group-{MOST_RECORDS}"))
    wall, cpu = _taken(again.load)
    assert len(again.fingerprints()) == count
    rows.append((f"read {count:,} records back", f"{wall:.1f} s", f"{cpu:.1f} s"))
    return rows


def measure(settings: Settings) -> Table:
    count, num_records = (20, 2_000) if settings.quick else (200, 100_000)
    os.environ.update(CREDENTIALS)
    rows: list[Sequence[str]] = []
    with slow_object_store("far", _DELAY_MS) as query:
        root = Root(f"s3://far/benchmark{query}")
        pairs = zip(*(_requests(client(root), count) for client in (_Arrow, _Obstore)))
        rows += [(ours[0], *ours[1:], *theirs[1:]) for ours, theirs in pairs]
        rows += [(*row, "", "") for row in _commits(root, num_records)]
    return Table(
        title="An object store 20 ms away",
        note="An S3 server on loopback (moto) behind a proxy that holds every answer back for 20 ms. "
        "By clock, and CPU of the client.",
        header=("", "pyarrow", "CPU", "obstore", "CPU"),
        rows=rows,
    )


if __name__ == "__main__":
    from pathlib import Path

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes")
    given = parser.parse_args()
    print(measure(Settings(quick=given.quick, data=Path(), folder=Path(), web=Path())).to_markdown())
