"""Pages of WARC files: which records are pages, their columns, bodies in every encoding, damage, and bounded memory."""

import gzip
import multiprocessing
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datapipe.errors import UserError
from datapipe.stage import FieldNames, InputFile, ReadBatch, Split
from stages.read.arc import Arc
from stages.read.warc import Warc
from stages.read.wet import Wet
from tests.support.web_archives import (
    column,
    documents,
    errors,
    file_of,
    http,
    packed,
    passed_over,
    read,
    rejected,
    response,
    warc_record,
)

pytestmark = [pytest.mark.needs("fastwarc", "brotli")]

PAGE = "<html><title>Größe</title><p>Some text of a page, and a bit more of it.</p></html>".encode()


def read_parts(folder: Path, *parts: bytes, keep: tuple[str, ...] = (), **options: object) -> list[ReadBatch]:
    return read(Warc.model_validate(options), file_of(folder, packed(parts)), keep)


def chunked(body: bytes, size: int = 16, last: bytes = b"0\r\n\r\n") -> bytes:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(f"{len(chunk):x};ext=1\r\n".encode() + chunk + b"\r\n" for chunk in chunks) + last


def _zstd(body: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(body)


def _brotli(body: bytes) -> bytes:
    import brotli

    return brotli.compress(body)


def _deflate(body: bytes) -> bytes:
    return zlib.compress(body)[2:-4]


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "chunked": ("Transfer-Encoding: chunked", chunked),
    "chunked without its last chunk": ("Transfer-Encoding: Chunked", lambda body: chunked(body, last=b"")),
    "gzip": ("Content-Encoding: gzip", gzip.compress),
    "gzip as a transfer encoding": ("Transfer-Encoding: gzip, chunked", lambda body: chunked(gzip.compress(body))),
    "x-gzip, two members": ("content-encoding: X-GZIP", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
    "gzip, and bytes behind it": ("Content-Encoding: gzip", lambda body: gzip.compress(body) + b"\0\0\r\n"),
    "deflate": ("Content-Encoding: deflate", zlib.compress),
    "deflate without a header": ("Content-Encoding: deflate", _deflate),
    "br": ("Content-Encoding: br", _brotli),
    "zstd": ("Content-Encoding: zstd", _zstd),
    "br and chunked": ("Content-Encoding: br\r\nTransfer-Encoding: chunked", lambda body: chunked(_brotli(body))),
    "gzip, then br": ("Content-Encoding: gzip, br", lambda body: _brotli(gzip.compress(body))),
    "two headers": ("Content-Encoding: gzip\r\nContent-Encoding: br", lambda body: _brotli(gzip.compress(body))),
    "identity": ("Content-Encoding: identity", bytes),
    "a name that is no encoding": ("Content-Encoding: utf-8", bytes),
}


@pytest.mark.parametrize("coding", CODINGS)
def test_warc_takes_encodings_off(tmp_path: Path, coding: str) -> None:
    header, encode = CODINGS[coding]
    for page in (PAGE, b"", PAGE * 3000):
        batches = read_parts(tmp_path, response(encode(page), more=f"{header}\r\n"))
        assert rejected(batches) == [] and list(documents(batches).values()) == [page]


@pytest.mark.parametrize("claimed", ["gzip", "deflate", "br", "zstd", "gzip, br", "compress"])
@pytest.mark.parametrize("transfer", ["", "Transfer-Encoding: chunked\r\n"])
def test_warc_body_that_is_not_encoded_as_it_claims_is_kept(tmp_path: Path, claimed: str, transfer: str) -> None:
    for page in (PAGE, b"Face it\nthis is no chunk", b"a\nlist\nof lines\n"):
        batches = read_parts(tmp_path, response(page, more=f"{transfer}Content-Encoding: {claimed}\r\n"))
        assert rejected(batches) == [] or (transfer and page.startswith(b"Face"))
        assert rejected(batches) or list(documents(batches).values()) == [page]


@pytest.mark.parametrize(
    ("coding", "body", "error"),
    [
        ("gzip", gzip.compress(PAGE * 9)[:-20], "the gzip body is damaged: it breaks off"),
        ("gzip", gzip.compress(PAGE * 9)[:40] + b"\xff" * 99, "the gzip body is damaged"),
        ("deflate", zlib.compress(PAGE * 9)[:-9], "the deflate body is damaged: it breaks off"),
        ("br", _brotli(PAGE * 9)[:-5], "the br body is damaged: it breaks off"),
        ("zstd", _zstd(PAGE * 9)[:-9], "the zstd body is damaged: it breaks off"),
        ("chunked", chunked(PAGE)[:-30], "the chunked body breaks off: "),
        ("chunked", chunked(PAGE, last=b"what\r\n"), "of the chunked body is not the size of a chunk"),
        ("chunked", chunked(PAGE)[:24] + b"?" + chunked(PAGE)[25:60], "the chunked body"),
        (", ".join(["gzip"] * 7), gzip.compress(PAGE), "the body has 7 encodings"),
    ],
    ids=range(9),
)
def test_warc_body_that_breaks_off_is_reported_unless_the_crawler_cut_it(
    tmp_path: Path, coding: str, body: bytes, error: str
) -> None:
    header = "Transfer-Encoding" if coding == "chunked" else "Content-Encoding"
    block = http(body, more=f"{header}: {coding}\r\n")
    told = read_parts(tmp_path, warc_record("response", block, 1, "application/http"), response(PAGE, 2))
    assert list(documents(told).values()) == [PAGE]
    [item] = rejected(told)
    assert error in item.error and not item.is_file_damage and body.startswith(item.excerpt)
    cut_off = warc_record("response", block, 1, "application/http", more="WARC-Truncated: length\r\n")
    kept = list(documents(read_parts(tmp_path, cut_off)).values())
    assert kept == [] or kept[0][:9] == PAGE[:9]


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate"])
def test_warc_chunks_that_the_crawler_cut_off_are_inflated_as_far_as_they_go(tmp_path: Path, coding: str) -> None:
    page = random.Random(23).randbytes(200_000).hex().encode()
    body = chunked(CODINGS[coding][1](page), 4096)
    block = http(body[: len(body) // 2], more=f"Content-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n")
    cut_off = warc_record("response", block, 1, "application/http", more="WARC-Truncated: length\r\n")
    [kept] = documents(read_parts(tmp_path, cut_off)).values()
    assert page.startswith(kept) and kept
    assert errors(read_parts(tmp_path, warc_record("response", block, 1, "application/http")))[0].startswith("the chunked body")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_warc_body_that_inflates_without_an_end_is_reported_by_name(tmp_path: Path, coding: str) -> None:
    bomb = CODINGS[coding][1](b"\0" * (8 << 20))
    assert len(bomb) < 9000
    batches = read_parts(
        tmp_path, response(bomb, 1, more=f"Content-Encoding: {coding}\r\n"), response(PAGE, 2), max_record_bytes=1 << 20
    )
    assert list(documents(batches).values()) == [PAGE]
    [error] = errors(batches)
    assert coding in error and "max_record_bytes" in error


def test_warc_columns_are_those_of_the_record_and_the_response(tmp_path: Path) -> None:
    parts = [
        response(PAGE, 1, content_type='Text/HTML; Charset="GBK"; x=y', more="X-Crawler: a\r\nx-crawler: b\r\n"),
        response(PAGE, 2, status="200", content_type="application/xhtml+xml"),
        warc_record("resource", PAGE, 3, "text/html; charset=utf-8"),
        warc_record(
            "response",
            http(PAGE, content_type="", more="Server:  s\r\n folded\r\n"),
            4,
            "application/http",
            more="WARC-Identified-Payload-Type: text/html\r\n",
        ),
    ]
    keep = ("url", "date", "mime", "status", "charset", "x-crawler", "server", "Content-Type", "warc-type")
    batches = read_parts(tmp_path, *parts, keep=keep)
    assert [batch.ids.to_pylist() for batch in batches] == [
        [f"urn:uuid:00000000-0000-0000-0000-{number:012d}" for number in range(1, 5)]
    ]
    assert column(batches, "url") == [f"http://e.org/{number}" for number in range(1, 5)]
    assert column(batches, "date")[0] == "2024-05-18T01:58:01Z"
    assert column(batches, "mime") == ["text/html", "application/xhtml+xml", "text/html", "text/html"]
    assert column(batches, "status") == [200, 200, None, 200] and batches[0].extra["status"].type == pa.int64()
    assert column(batches, "charset") == ["gbk", None, "utf-8", None]
    assert column(batches, "x-crawler") == ["a, b", None, None, None]
    assert column(batches, "server") == [None, None, None, "s folded"]
    assert column(batches, "Content-Type")[0] == "application/http; msgtype=response"  # that of the record wins
    assert column(batches, "warc-type") == ["response", "response", "resource", "response"]


def test_warc_counts_what_it_passes_over_by_kind(tmp_path: Path) -> None:
    parts = [
        warc_record("warcinfo", b"software: ours"),
        warc_record("warcinfo", b"software: ours, again"),
        warc_record("request", b"GET / HTTP/1.1\r\n\r\n", 1, "application/http; msgtype=request"),
        response(PAGE, 2),
        warc_record("metadata", b"a: b", 3, "application/warc-fields"),
        warc_record("revisit", http(b""), 4, "application/http; msgtype=response"),
        warc_record("conversion", b"text", 5),
        warc_record("continuation", b"text", 6),
        warc_record("of-our-own", b"text", 7),
        response(b"%PDF", 8, content_type="application/pdf"),
        response(PAGE, 9, status="404 Not Found"),
        response(PAGE, 10, status="HTTP"),
        response(PAGE, 11, content_type=""),
        warc_record("response", b"example.org. 60 IN A 192.0.2.7", 12, "text/dns"),
    ]
    batches = read_parts(tmp_path, *parts)
    assert list(documents(batches).values()) == [PAGE] and rejected(batches) == []
    assert passed_over(batches) == {
        "warcinfo": 2,
        "request": 1,
        "metadata": 1,
        "revisit": 1,
        "conversion": 1,
        "continuation": 1,
        "unknown": 1,
        "other_mime": 2,
        "other_status": 2,
        "no_mime": 1,
    }
    wider = read_parts(tmp_path, *parts, mime=["application/pdf", "text/html", ""], status=[200, 404])
    assert list(documents(wider).values()) == [PAGE, b"%PDF", PAGE, PAGE]


def test_warc_record_without_a_status_line_is_reported(tmp_path: Path) -> None:
    batches = read_parts(tmp_path, warc_record("response", b"\r\nHTTP/1.1 200 OK", 1, "application/http; msgtype=response"))
    assert "no HTTP status line" in errors(batches)[0]
    assert rejected(batches)[0].excerpt == b"\r\nHTTP/1.1 200 OK"


@pytest.mark.parametrize(
    ("block", "page"),
    [
        (b"HTTP/1.1 200 OK\nContent-Type: text/html\n\n" + PAGE, PAGE),
        (b"HTTP/1.0 200\r\ncontent-type:text/html\r\nno header\r\n: \r\n\r\n" + PAGE, PAGE),
        (
            b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Go\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + PAGE,
            PAGE,
        ),
        (b"HTTP/2 200 \r\nX: \xff\xfe\r\nContent-Type: text/html, text/html\r\n\n" + PAGE, PAGE),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html", b""),
    ],
    ids=range(5),
)
def test_warc_odd_heads_are_read(tmp_path: Path, block: bytes, page: bytes) -> None:
    batches = read_parts(tmp_path, warc_record("response", block, 1, "application/http"))
    assert list(documents(batches).values()) == [page]


def test_warc_damage_reports_where_reading_goes_on(tmp_path: Path) -> None:
    parts = [gzip.compress(response(PAGE, number)) for number in range(3)]
    parts[1] = parts[1][:40] + b"\xff" * 60 + parts[1][100:] + b"between members"
    batches = read(Warc(), file_of(tmp_path, b"".join(parts)))
    assert list(documents(batches).values()) == [PAGE, PAGE]
    [*_, last] = errors(batches)
    begin, goes_on = len(parts[0]), len(parts[0]) + len(parts[1])
    assert last.startswith(f"the gzip member that begins at byte {begin:,} is damaged: ")
    assert last.endswith(f"; reading goes on at byte {goes_on:,} of the stored file")


def test_warc_random_bytes_in_bodies_end_in_a_page_or_in_quarantine(tmp_path: Path) -> None:
    rng = random.Random(13)
    headers = [header for header, _ in CODINGS.values()]
    for _ in range(150):
        body = rng.randbytes(rng.randrange(200))
        if rng.random() < 0.5:
            body = bytearray(rng.choice(list(CODINGS.values()))[1](PAGE * 3))
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        batches = read_parts(tmp_path, response(bytes(body), more=f"{rng.choice(headers)}\r\n"))
        assert len(documents(batches)) + len(rejected(batches)) == 1


def test_warc_in_a_compression_without_members_is_refused_when_planning(tmp_path: Path) -> None:
    file = replace(file_of(tmp_path, b"", ".gz"), compression="bzip2")
    with pytest.raises(UserError, match="bzip2"):
        Warc().probe(file, pa.OSFile)


_REAL: list[tuple[str, int, int, str, list[int]]] = [
    ("dolma_sample-0000.warc.gz", 22, 741_963, "metadata 1, other_mime 2, request 22, warcinfo 1", []),
    ("dolma_sample-0001.warc.gz", 15, 988_604, "metadata 1, other_mime 2, request 15, warcinfo 1", []),
    ("resiliparse_block-sized-records.warc", 0, 0, "unknown 3", []),
    ("resiliparse_clipped.warc.gz", 0, 0, "", [0, 1]),
    ("resiliparse_warcfile.warc", 16, 513_225, "metadata 16, request 17, warcinfo 1", []),
    ("resiliparse_warcfile.warc.gz", 16, 513_225, "metadata 16, request 17, warcinfo 1", []),
    ("resiliparse_warcfile.warc.lz4", 16, 513_225, "metadata 16, request 17, warcinfo 1", []),
    ("whirlwind.warc.gz", 1, 72_848, "metadata 1, request 1, warcinfo 1", []),
    ("whirlwind.warc.wat.gz", 0, 0, "metadata 1, warcinfo 1", []),
    ("warcio/example-bad-non-chunked.warc.gz", 1, 1270, "request 2, revisit 1, warcinfo 2", []),
    ("warcio/example-bad.warc.gz.bad", 1, 1270, "other_status 1, request 2, revisit 1, warcinfo 1", []),
    ("warcio/example-digest.warc", 0, 0, "request 4", []),
    ("warcio/example-iana.org-chunked.warc", 1, 7223, "request 1, warcinfo 1", []),
    ("warcio/example-resource.warc.gz", 1, 1303, "warcinfo 2", []),
    ("warcio/example-space-in-target-uri.warc.gz", 0, 0, "other_mime 1, warcinfo 1", []),
    ("warcio/example-trunc.warc", 1, 1270, "request 1, short_length 1, warcinfo 2", []),
    ("warcio/example-wget-bad-target-uri.warc.gz", 1, 1270, "metadata 1, other_mime 2, request 1, warcinfo 1", []),
    ("warcio/example-wrong-chunks.warc.gz", 1, 1270, "request 1", []),
    ("warcio/example.warc", 1, 1270, "request 2, revisit 1, warcinfo 2", []),
    ("warcio/post-test.warc.gz", 0, 0, "other_mime 3, request 3", []),
    ("cc-2008_sample.arc.gz", 125, 2_888_099, "filedesc 1, other_mime 6, other_status 14", []),
    ("warcio/bad.arc", 0, 0, "other_mime 1", [0, 134, 262]),
    ("warcio/example.arc", 1, 1270, "filedesc 1", []),
    ("warcio/example.arc.gz", 1, 1270, "filedesc 1", []),
    ("warcio/example-space-in-url.arc", 0, 0, "filedesc 1", [151]),
]


@pytest.mark.real
@pytest.mark.parametrize(("name", "num_pages", "page_bytes", "others", "told"), _REAL)
def test_archives_of_others_have_their_expected_books(
    real_data: Path, tmp_path: Path, name: str, num_pages: int, page_bytes: int, others: str, told: list[int]
) -> None:
    content = (real_data / "warc" / name).read_bytes()
    ending = next((ending for ending in (".gz", ".lz4") if ending in name), "")
    reader, file = Arc() if ".arc" in name else Warc(), file_of(tmp_path, content, ending)
    batches = read(reader, file)
    pages = documents(batches)
    assert (len(pages), sum(map(len, pages.values()))) == (num_pages, page_bytes)
    assert ", ".join(f"{kind} {count}" for kind, count in sorted(passed_over(batches).items())) == others
    assert [item.position for item in rejected(batches)] == told
    for cut in range(1, file.num_bytes, 1 + file.num_bytes // 40) if reader == Warc() else []:
        halves = [*read(reader, file, stop=cut), *read(reader, file, start=cut, stop=file.num_bytes)]
        assert documents(halves) == pages and rejected(halves) == rejected(batches)


@pytest.mark.real
def test_texts_of_common_crawl_are_the_same_in_one_member_and_in_many(real_data: Path, tmp_path: Path) -> None:
    names = ("cc-2016-50_sample.warc.wet.gz", "cc-2016-50_sample.per-record.warc.wet.gz")
    found = [read(Wet(), file_of(tmp_path, (real_data / "warc" / name).read_bytes())) for name in names]
    assert [rejected(batches) for batches in found] == [[], []]
    one, each = (list(documents(batches).values()) for batches in found)
    assert one == each and len(one) == 25


PAGE_BYTES = 200 << 20


def _read(connection: Connection, file: InputFile, options: dict[str, Any]) -> None:
    """Sends documents, rejected records, and MiB of peak memory beyond that of reading a small file before."""
    read(Warc(), file_of(Path(file.url).parent, packed([response(b"small")]), name="small.warc"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, num_documents, num_rejected = _memory("VmRSS"), 0, 0
    for batch in Warc(**options).read(Split(file=file), FieldNames(keep=("url",)), pa.OSFile):
        num_documents += len(batch.positions)
        num_rejected += len(batch.rejected)
    connection.send((num_documents, num_rejected, _memory("VmHWM") - before))


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(name))


def _measured(file: InputFile, **options: Any) -> tuple[int, int, int]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read, args=(theirs, file, options))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


@pytest.mark.slow
@pytest.mark.parametrize("coding", ["", "Content-Encoding: gzip\r\n"])
def test_memory_of_a_large_page_is_bounded_by_the_option(tmp_path: Path, coding: str) -> None:
    page = b"<p>a large page</p>" * (PAGE_BYTES // 19)
    block = http(gzip.compress(page, 1) if coding else page, more=coding)
    records = [response(b"first", 1), warc_record("response", block, 2, "application/http"), response(b"last", 3)]
    file = file_of(tmp_path, b"".join(gzip.compress(part, 1) for part in records))
    del page, block, records
    num_documents, num_rejected, peak_mib = _measured(file)
    assert (num_documents, num_rejected) == (2, 1) and peak_mib < 150
    num_documents, num_rejected, peak_mib = _measured(file, max_record_bytes=256 << 20)
    assert (num_documents, num_rejected) == (3, 0) and peak_mib < 4 * 256
