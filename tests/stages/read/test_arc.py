"""Pages of ARC files of both versions, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.read.arc import Arc
from tests.support.web_archives import (
    PACKINGS,
    arc_record,
    column,
    documents,
    errors,
    file_of,
    filedesc,
    http,
    packed,
    passed_over,
    read,
    rejected,
)

pytestmark = [pytest.mark.needs("isal", "lz4", "zstandard", "brotli")]

PAGES = [b"<p>first\n\npage</p>", b"", b"<p>http://e.org/7 192.0.2.7 20080509190203 text/html 3\n</p>", b"<p>\xff last</p>\n"]
RECORDS = [arc_record(http(page), number) for number, page in enumerate(PAGES)]


@pytest.mark.parametrize("version", [1, 2])
def test_arc_columns_are_those_of_the_record_and_the_response(tmp_path: Path, version: int) -> None:
    more = "" if version == 1 else "200 sha1:A - 99 a.arc.gz "
    parts = [filedesc(version), *(arc_record(http(page), number, more=more) for number, page in enumerate(PAGES))]
    keep = ("url", "date", "mime", "status", "charset", "WARC-IP-Address", "Content-Type", "absent")
    batches = read(Arc(), file_of(tmp_path, packed(parts), name="a.arc"), keep)
    assert list(documents(batches).values()) == PAGES and rejected(batches) == []
    assert passed_over(batches) == {"filedesc": 1}
    assert [batch.ids.null_count for batch in batches] == [len(PAGES)]
    assert column(batches, "url") == [f"http://e.org/{number}" for number in range(len(PAGES))]
    assert column(batches, "date")[1] == "2008-05-09T19:02:01Z" and column(batches, "status") == [200] * len(PAGES)
    assert set(column(batches, "mime")) == {"text/html"} and set(column(batches, "WARC-IP-Address")) == {"192.0.2.7"}
    assert set(column(batches, "Content-Type")) == {"text/html"} and set(column(batches, "absent")) == {None}


def test_arc_addresses_and_types_may_hold_spaces(tmp_path: Path) -> None:
    body = http(b"<p>page</p>")
    head = f"http://e.org/a b 1.2.3.4 c 192.0.2.7 20080509190241 text/html; charset=x {len(body)}\n".encode()
    batches = read(Arc(), file_of(tmp_path, packed([filedesc(), head + body + b"\n"]), name="a.arc"), ["url", "mime"])
    assert column(batches, "url") == ["http://e.org/a b 1.2.3.4 c"] and column(batches, "mime") == ["text/html"]


def test_arc_counts_what_it_passes_over(tmp_path: Path) -> None:
    parts = [
        filedesc(),
        arc_record(http(b"%PDF", content_type="application/pdf"), 1, "application/pdf"),
        arc_record(http(b"gone", status="404 Not Found"), 2),
        arc_record(b"example.org. 60 IN A 192.0.2.7", 3, "text/dns"),
        arc_record(b"<p>an answer of HTTP/0.9</p>", 4),
        arc_record(b"", 5, "no-type"),
    ]
    batches = read(Arc(), file_of(tmp_path, packed(parts), name="a.arc"))
    assert list(documents(batches).values()) == [b"<p>an answer of HTTP/0.9</p>"] and rejected(batches) == []
    assert passed_over(batches) == {"filedesc": 1, "other_mime": 3, "other_status": 1}


@pytest.mark.parametrize(
    ("length", "error"),
    [
        ("-1", "'-1'"),
        ("abc", "'abc'"),
        ("9999", "cut off"),
        ("10", "no record"),
        ("999999999", "999,999,999 bytes"),
    ],
)
@pytest.mark.parametrize("packing", ["plain", "gzip, a member a record", "gzip, one member"])
def test_arc_wrong_length_is_told_and_reading_goes_on(tmp_path: Path, length: str, error: str, packing: str) -> None:
    parts = [filedesc(), RECORDS[0], arc_record(http(b"<p>wrong</p>"), 8, length=length), RECORDS[3]]
    batches = read(Arc(), file_of(tmp_path, packed(parts, packing), PACKINGS[packing][0], "a.arc"))
    assert any(error in item for item in errors(batches))
    found = list(documents(batches).values())
    assert found[0] == PAGES[0]
    if packing == "gzip, a member a record" or length in ("-1", "abc", "10"):
        assert found[-1] == PAGES[3]
    positions = [item.position for item in rejected(batches)]
    assert len(set(positions)) == len(positions)


@pytest.mark.parametrize("content", [b"<html>no archive</html>\n" * 99, b"\0" * 100_000])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_arc_file_without_records_is_damage(tmp_path: Path, content: bytes, ending: str) -> None:
    batches = read(Arc(), file_of(tmp_path, packed([content]) if ending else content, ending, "a.arc"))
    assert documents(batches) == {} and [told.is_file_damage for told in rejected(batches)] == [True]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "num_pages", "page_bytes", "others", "told"),
    [
        ("cc-2008_sample.arc.gz", 125, 2_888_099, "filedesc 1, other_mime 6, other_status 14", []),
        ("warcio/bad.arc", 0, 0, "other_mime 1", [0, 134, 262]),
        ("warcio/example.arc", 1, 1270, "filedesc 1", []),
        ("warcio/example.arc.gz", 1, 1270, "filedesc 1", []),
        ("warcio/example-space-in-url.arc", 0, 0, "filedesc 1", [151]),
    ],
)
def test_arc_files_of_others_have_their_expected_books(
    real_data: Path, tmp_path: Path, name: str, num_pages: int, page_bytes: int, others: str, told: list[int]
) -> None:
    content = (real_data / "warc" / name).read_bytes()
    batches = read(Arc(), file_of(tmp_path, content, ".gz" if name.endswith(".gz") else "", "a.arc"))
    pages = documents(batches)
    assert (len(pages), sum(map(len, pages.values()))) == (num_pages, page_bytes)
    assert ", ".join(f"{kind} {count}" for kind, count in sorted(passed_over(batches).items())) == others
    assert [item.position for item in rejected(batches)] == told
