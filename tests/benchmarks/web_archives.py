"""How fast web archives are read, beside fastwarc and warcio: `python -m tests.benchmarks.write_readme --only web_archives`.

The shared archives are repeated to a few ten million bytes and packed anew. Peers read every record with its body, and parse
the HTTP heads; they decode no body and make no columns. warcio is measured where it is installed.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any, cast

import lz4.frame
import pyarrow as pa
import zstandard

from datapipe.stage import FieldNames, InputFile, Reader, Split
from stages.read.arc import Arc
from stages.read.warc import Warc
from stages.read.wet import Wet
from tests.benchmarks.tables import NOT_MEASURED, Settings, Table

_KEEP = ("url", "date", "mime", "status", "charset")
_CONTENT_BYTES = 60 << 20
_COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4"}


def table(settings: Settings) -> Table:
    content_bytes = 1 << 20 if settings.quick else _CONTENT_BYTES
    rows = [_row(*case, times=1 if settings.quick else 5) for case in _cases(settings, content_bytes)]
    return Table(
        title="Web archives, beside fastwarc and warcio",
        note=f"MB/s of uncompressed archive and records/s of one core, {', '.join(_KEEP)} kept; CPU time, the best of 5. "
        "fastwarc and warcio read the records and parse HTTP heads, and make no columns.",
        header=("archive", "MB/s", "records/s", "pages or texts/s", "fastwarc MB/s", "ratio", "warcio MB/s", "ratio"),
        rows=rows,
    )


def _cases(settings: Settings, content_bytes: int) -> Iterator[tuple[str, Reader, InputFile, int]]:
    """Name, reader, file, and bytes of content."""
    crawl = (settings.data / "warc/resiliparse_warcfile.warc.gz").read_bytes()
    parts = list(_members(crawl))
    count = max(1, content_bytes // sum(map(len, parts)))
    packings: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        "Common Crawl WARC, plain": (".warc", bytes),
        "gzip": (".warc.gz", gzip.compress),
        "zstd": (".warc.zst", zstandard.ZstdCompressor().compress),
        "lz4": (".warc.lz4", lz4.frame.compress),
    }
    for name, (ending, pack) in packings.items():
        content = b"".join(map(pack, parts)) * count
        yield name, Warc(), _file(settings.folder / f"crawl{ending}", content), count * sum(map(len, parts))
    for name, reader, shared in (
        ("wget WARC, gzip", Warc(), "dolma_sample-0000.warc.gz"),
        ("Common Crawl WET, gzip", Wet(), "cc-2016-50_sample.per-record.warc.wet.gz"),
        ("Common Crawl ARC, one gzip member", Arc(), "cc-2008_sample.arc.gz"),
    ):
        stored = (settings.data / "warc" / shared).read_bytes()
        unpacked = len(gzip.decompress(stored))
        count = max(1, content_bytes // unpacked)
        yield name, reader, _file(settings.folder / shared, stored * count), count * unpacked


def _members(archive: bytes) -> Iterator[bytes]:
    from isal import isal_zlib

    while archive:
        decompressor = isal_zlib.decompressobj(31)
        yield decompressor.decompress(archive)
        archive = decompressor.unused_data


def _file(path: Path, content: bytes) -> InputFile:
    path.write_bytes(content)
    return InputFile(url=str(path), path=path.name, num_bytes=len(content), stamp="", compression=_COMPRESSION.get(path.suffix))


def _row(name: str, reader: Reader, file: InputFile, content_bytes: int, times: int) -> tuple[str, ...]:
    counts: list[tuple[int, int]] = []
    ours = _best(lambda: counts.append(_read(reader, file)), times)
    num_records, num_documents = counts[0]
    peers = _peer_cells(_fastwarc, file, content_bytes, ours, times) + _peer_cells(_warcio, file, content_bytes, ours, times)
    rates = f"{content_bytes / ours / 1e6:,.0f}", f"{num_records / ours:,.0f}", f"{num_documents / ours:,.0f}"
    return (name, *rates, *peers)


def _peer_cells(peer: Callable[[str], int], file: InputFile, content_bytes: int, ours: float, times: int) -> tuple[str, str]:
    """The rate of a peer, and how many times as fast we are."""
    if ".arc" in file.path or (peer is _warcio and file.compression not in (None, "gzip")):
        return ("cannot", "")
    if peer is _warcio and find_spec("warcio") is None:
        return (NOT_MEASURED, "")
    seconds = _best(lambda: peer(file.url), times)
    return f"{content_bytes / seconds / 1e6:,.0f}", f"{seconds / ours:.2f}"


def _read(reader: Reader, file: InputFile) -> tuple[int, int]:
    num_records = num_documents = 0
    for batch in reader.read(Split(file=file), FieldNames(keep=_KEEP), pa.OSFile):
        assert not batch.rejected, batch.rejected[0]
        num_documents += len(batch.positions)
        num_records += len(batch.positions) + sum(batch.passed_over.values())
    return num_records, num_documents


def _fastwarc(path: str) -> int:
    from fastwarc.warc import ArchiveIterator

    with open(path, "rb") as file:
        return sum(len(record.reader.read()) for record in ArchiveIterator(cast(Any, file), parse_http=True))


def _warcio(path: str) -> int:
    from warcio.archiveiterator import ArchiveIterator  # type: ignore[import-not-found]

    with open(path, "rb") as file:
        return sum(len(record.raw_stream.read()) for record in ArchiveIterator(file))


def _best(work: Callable[[], object], times: int) -> float:
    found: list[float] = []
    for _ in range(times):
        started = process_time()
        work()
        found.append(process_time() - started)
    return max(min(found), 1e-9)
