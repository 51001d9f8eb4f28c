"""Web archives for tests: records of WARC and ARC, in every packing, and what a reader finds in them."""

import gzip
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from datapipe.stage import FieldNames, InputFile, ReadBatch, Reader, Rejected, Split
from tests.support import runs
from tests.support.reader_results import input_file


def warc_record(
    kind: str, body: bytes, number: int = 0, content_type: str = "text/plain", length: int | None = None, more: str = ""
) -> bytes:
    """A WARC record; `length` is a wrong Content-Length, `more` are further headers."""
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: <http://e.org/{number}>\r\n"
        f"WARC-Date: 2024-05-18T01:58:{number % 60:02d}Z\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\nContent-Type: {content_type}\r\n{more}"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body + b"\r\n\r\n"


def http(body: bytes, status: str = "200 OK", content_type: str = "text/html", more: str = "") -> bytes:
    """An HTTP response."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{more}\r\n".encode() + body


def response(body: bytes, number: int = 0, more: str = "", **of_http: str) -> bytes:
    """A WARC record of an HTTP response; `more` are further headers of the response."""
    return warc_record("response", http(body, more=more, **of_http), number, "application/http; msgtype=response")


def arc_record(body: bytes, number: int = 0, content_type: str = "text/html", length: str = "", more: str = "") -> bytes:
    """An ARC record; `more` are the fields of version 2 before the length."""
    head = f"http://e.org/{number} 192.0.2.7 200805091902{number % 60:02d} {content_type} {more}{length or len(body)}\n"
    return head.encode() + body + b"\n"


def filedesc(version: int = 1) -> bytes:
    """The record that describes an ARC file."""
    names = "Archive-length" if version == 1 else "Result-code Checksum Location Offset Filename Archive-length"
    body = f"{version} 0 ours\nURL IP-address Archive-date Content-type {names}\n".encode()
    more = "" if version == 1 else "200 - - 0 a.arc.gz "
    return f"filedesc://a.arc.gz 0.0.0.0 20080509190200 text/plain {more}{len(body)}\n".encode() + body + b"\n"


def _each(pack: Callable[[bytes], bytes]) -> Callable[[Sequence[bytes]], bytes]:
    return lambda parts: b"".join(map(pack, parts))


def _together(pack: Callable[[bytes], bytes]) -> Callable[[Sequence[bytes]], bytes]:
    return lambda parts: pack(b"".join(parts))


def _zstd(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(content)


def _lz4(content: bytes) -> bytes:
    import lz4.frame

    return lz4.frame.compress(content)


def _pairs(parts: Sequence[bytes]) -> bytes:
    return b"".join(gzip.compress(b"".join(parts[start : start + 2])) for start in range(0, len(parts), 2))


def _zstd_with_dictionary(parts: Sequence[bytes]) -> bytes:
    import zstandard

    dictionary = zstandard.ZstdCompressionDict(warc_record("conversion", b"some page of text") * 6)
    packer = zstandard.ZstdCompressor(dict_data=dictionary)
    content = dictionary.as_bytes()
    return b"\x5d\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content + b"".join(map(packer.compress, parts))


PACKINGS: dict[str, tuple[str, Callable[[Sequence[bytes]], bytes]]] = {
    "plain": ("", b"".join),
    "gzip, a member a record": (".gz", _each(gzip.compress)),
    "gzip, two records a member": (".gz", _pairs),
    "gzip, one member": (".gz", _together(gzip.compress)),
    "zstd, a frame a record": (".zst", _each(_zstd)),
    "zstd, one frame": (".zst", _together(_zstd)),
    "zstd with a dictionary": (".zst", _zstd_with_dictionary),
    "lz4": (".lz4", _each(_lz4)),
}


def packed(parts: Sequence[bytes], packing: str = "gzip, a member a record") -> bytes:
    """A file of records."""
    return PACKINGS[packing][1](parts)


def file_of(folder: Path, content: bytes, ending: str = ".gz", name: str = "a.warc") -> InputFile:
    return input_file(folder / f"{name}{ending}", content)


def read(reader: Reader, file: InputFile, keep: Sequence[str] = (), start: int = 0, stop: int | None = None) -> list[ReadBatch]:
    return list(reader.read(Split(file=file, start=start, stop=stop), FieldNames(keep=tuple(keep)), pa.OSFile))


def documents(batches: Sequence[ReadBatch]) -> dict[int, bytes]:
    """The texts or pages by their positions, in the order in which they are read."""
    found: dict[int, bytes] = {}
    for batch in batches:
        found |= zip(batch.positions.tolist(), batch.content.cast(pa.large_binary()).to_pylist(), strict=True)
    return found


def rejected(batches: Sequence[ReadBatch]) -> list[Rejected]:
    return [item for batch in batches for item in batch.rejected]


def passed_over(batches: Sequence[ReadBatch]) -> dict[str, int]:
    """Records that are no documents, by kind."""
    total: Counter[str] = Counter()
    for batch in batches:
        total.update(batch.passed_over)
    return dict(total)


def column(batches: Sequence[ReadBatch], name: str) -> list[str | int | None]:
    return [value for batch in batches for value in batch.extra[name].to_pylist()]


def errors(batches: Sequence[ReadBatch]) -> list[str]:
    return [item.error for item in rejected(batches)]


def write_unsplittable(folder: Path) -> Path:
    """A mixture of two WET files in small ranges. One can be cut; a record of the other holds an archive, stored as it is."""
    rng = random.Random(3)
    pages = [warc_record("conversion", rng.randbytes(60).hex().encode(), number) for number in range(60)]
    (folder / "good.warc.wet.gz").write_bytes(packed(pages))
    inner = b"".join(gzip.compress(page, 0) for page in pages[:20])
    outer = gzip.compress(warc_record("resource", inner, 99, "application/warc"), 0)
    (folder / "nested.warc.wet.gz").write_bytes(packed(pages[:5]) + outer + packed(pages[5:30]))
    tail = "tokenizer: none\ndocuments: {format: jsonl.zst}\nexecution: {split_bytes: 1KiB}\n"
    return runs.write_mixture(folder, f"  crawl: {{path: {folder}/*.warc.wet.gz, keep: [url]}}", "stages: []", tail)
