"""WET and ARC files in every packing, whole and damaged: their documents and columns."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datapipe.errors import UserError
from datapipe.inspect.documents import DocumentQuery, Inspector
from datapipe.loader import Loader
from datapipe.stage import FieldNames, InputFile, ReadBatch
from stages.read.arc import Arc
from stages.read.wet import Wet
from tests.support import runs
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
    warc_record,
)

pytestmark = [pytest.mark.needs("fastwarc", "isal", "lz4", "zstandard", "brotli")]

TEXTS = [
    "A first page.\nWith two lines.\n",
    "",
    "Zwölf Boxkämpfer\r\n\r\nüber 中文\r\n",
    "WARC/1.0\r\n\r\nis how records begin\n",
    "x" * 3000,
]


def wet(texts: Sequence[str] = TEXTS) -> list[bytes]:
    """A file's records: its own description, then pages."""
    pages = [warc_record("conversion", text.encode(), number) for number, text in enumerate(texts)]
    return [warc_record("warcinfo", b"software: ours\r\n"), *pages]


def wet_file(folder: Path, content: bytes, ending: str = "") -> InputFile:
    return file_of(folder, content, ending, "a.warc.wet")


def read_wet(file: InputFile, keep: Sequence[str] = (), **options: Any) -> list[ReadBatch]:
    return read(Wet(**options), file, keep)


def wet_texts(batches: Sequence[ReadBatch]) -> dict[int, str]:
    return {position: text.decode() for position, text in documents(batches).items()}


def test_wet_columns_are_those_of_the_record(tmp_path: Path) -> None:
    batches = read_wet(
        wet_file(tmp_path, PACKINGS["gzip, a member a record"][1](wet()), ".gz"), ["url", "date", "mime", "WARC-Type", "x"]
    )
    [batch] = [batch for batch in batches if len(batch.positions)]
    assert batch.ids.to_pylist() == [f"urn:uuid:00000000-0000-0000-0000-{number:012d}" for number in range(len(TEXTS))]
    assert batch.extra["url"].to_pylist() == [f"http://e.org/{number}" for number in range(len(TEXTS))]
    assert batch.extra["date"][1].as_py() == "2024-05-18T01:58:01Z" and batch.extra["mime"][0].as_py() == "text/plain"
    assert set(batch.extra["WARC-Type"].to_pylist()) == {"conversion"} and batch.extra["x"].null_count == len(TEXTS)
    assert batch.input_bytes == sum(len(text.encode()) for text in TEXTS)
    assert passed_over(batches) == {"warcinfo": 1}


def test_wet_positions_are_offsets_of_members_and_numbers_in_them(tmp_path: Path) -> None:
    parts, plain = [gzip.compress(part) for part in wet()], wet()
    offsets = [sum(map(len, parts[:number])) for number in range(1, len(parts))]
    assert list(wet_texts(read_wet(wet_file(tmp_path, b"".join(parts), ".gz")))) == [offset << 24 for offset in offsets]
    one = wet_file(tmp_path, gzip.compress(b"".join(plain)), ".gz")
    assert list(wet_texts(read_wet(one))) == [1, 2, 3, 4, 5]
    begins = [len(b"".join(plain[:number])) for number in range(1, len(plain))]
    assert list(wet_texts(read_wet(wet_file(tmp_path, b"".join(plain))))) == begins
    assert Wet().read_document(one, 0, FieldNames(), pa.OSFile) is None  # the file's own description


@pytest.mark.parametrize(
    "gap", [b"\0" * 700, b"no member\n" * 9, b"\x1f\x8b\x08", gzip.compress(b"no record"), b"\x1f\x8b\x08" * 99], ids=range(5)
)
def test_wet_bytes_between_members_are_told_and_passed_over(tmp_path: Path, gap: bytes) -> None:
    first, *others = [gzip.compress(part) for part in wet(["one", "two"])]
    batches = read_wet(wet_file(tmp_path, first + gap + b"".join(others), ".gz"))
    assert list(wet_texts(batches).values()) == ["one", "two"]
    assert rejected(batches) and all(item.is_file_damage for item in rejected(batches))


@pytest.mark.parametrize(
    ("length", "error"),
    [
        (3, "expected a record that begins with WARC/1"),
        (40, "the record is cut off: "),
        (10**7, "the record is cut off: "),
        (10**15, "the most that this reader takes is"),
    ],
)
@pytest.mark.parametrize("ending", [".gz", ""])
def test_wet_wrong_content_length_never_takes_from_the_next_record_in_silence(
    tmp_path: Path, length: int, error: str, ending: str
) -> None:
    wrong = warc_record("conversion", b"a page whose length is wrong", 1, length=length)
    parts = [*wet(["before"]), wrong, warc_record("conversion", b"behind", 2)]
    content = b"".join(gzip.compress(part) if ending else part for part in parts)
    batches = read_wet(wet_file(tmp_path, content, ending))
    texts = list(wet_texts(batches).values())
    assert texts[0] == "before" and texts[-1] in ("behind", "before", "a p")
    if ending:
        assert "behind" in texts and any(error in item.error for item in rejected(batches))
    assert rejected(batches)


_DICTIONARY = b"\x5d\x2a\x4d\x18" + (100).to_bytes(4, "little") + b"x" * 100


@pytest.mark.parametrize(
    ("ending", "content"),
    [(".gz", b""), (".zst", b""), (".lz4", b""), *((".zst", _DICTIONARY[:size]) for size in (3, 4, 7, 8, 107))],
)
def test_wet_archive_that_is_empty_or_ends_within_its_dictionary_is_damage(tmp_path: Path, ending: str, content: bytes) -> None:
    [item] = rejected(read_wet(wet_file(tmp_path, content, ending)))
    assert item.is_file_damage and item.position == 0


def test_wet_text_that_is_not_utf8_is_told_at_its_byte(tmp_path: Path) -> None:
    parts = [*wet(["before"]), warc_record("conversion", b"caf\xe9", 1), warc_record("conversion", b"behind", 2)]
    batches = read_wet(wet_file(tmp_path, b"".join(map(gzip.compress, parts)), ".gz"))
    assert list(wet_texts(batches).values()) == ["before", "behind"]
    [item] = rejected(batches)
    assert item.error.startswith("invalid UTF-8 at byte 3") and item.excerpt == b"caf\xe9"


def test_wet_dictionary_without_bounds_is_told(tmp_path: Path) -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(b"\0" * (32 << 20))
    for content, error in (
        (bomb, "a dictionary of more than 16,777,216 bytes"),
        (bomb[:-9], "a dictionary of more than 16,777,216 bytes"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 40, "the dictionary"),
    ):
        head = b"\x5d\x2a\x4d\x18" + len(content).to_bytes(4, "little")
        batches = read_wet(wet_file(tmp_path, head + content + PACKINGS["zstd, a frame a record"][1](wet()), ".zst"))
        [item] = rejected(batches)
        assert error in item.error and item.is_file_damage and wet_texts(batches) == {}


@pytest.mark.medium
def test_wet_files_become_training_rows_and_damage_stops_the_run(tmp_path: Path) -> None:
    pages = [f"Page {number} of the crawl has some words, and a few more of them. " * 5 for number in range(40)]
    for name, pack in (("a", PACKINGS["gzip, a member a record"][1]), ("b", PACKINGS["gzip, one member"][1])):
        (tmp_path / f"{name}.warc.wet.gz").write_bytes(pack(wet([page + name for page in pages])))
    source = f"  crawl: {{path: {tmp_path}/*.warc.wet.gz, keep: [url, date]}}"
    tail = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}\n"
    mixture = runs.write_mixture(tmp_path, source, "stages: [filter.url: {domains: [other.org]}]", tail)
    done = runs.run_mixture(mixture, make_engine=runs.InProcess)
    assert done.report["total"]["documents"]["kept"] == 80
    assert next(iter(Loader(done.mixture.output, batch_size=2)))["input_ids"].shape == (2, 64)
    kept = Inspector.open(done.mixture.output).find(DocumentQuery(outcome="kept", count=99))
    assert {document.text for document in kept} == {page + name for page in pages for name in "ab"}
    content = (tmp_path / "a.warc.wet.gz").read_bytes()
    (tmp_path / "a.warc.wet.gz").write_bytes(content[:-20])
    with pytest.raises(UserError, match=r"1 input file .* a\.warc\.wet\.gz"):
        runs.run_mixture(mixture, make_engine=runs.InProcess)


@pytest.mark.real
def test_wet_files_of_common_crawl_have_their_expected_books(real_data: Path) -> None:
    found = {}
    for name in ("cc-2016-50_sample.warc.wet.gz", "cc-2016-50_sample.per-record.warc.wet.gz", "whirlwind.warc.wet.gz"):
        path = real_data / "warc" / name
        file = InputFile(url=str(path), path=name, num_bytes=path.stat().st_size, stamp="", compression="gzip")
        batches = read_wet(file, keep=["url"])
        assert rejected(batches) == []
        found[name] = list(wet_texts(batches).values())
    one, each, escopete = found.values()
    assert one == each and len(one) == 25 and len(escopete) == 1 and "Escopete" in escopete[0]


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
