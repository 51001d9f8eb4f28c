"""WET and ARC files whole and damaged, records of WARC in the habits of all writers, and archives in byte ranges."""

import gzip
import io
import random
from pathlib import Path
from typing import Any, cast

import pytest
import zstandard

from datapipe.errors import UserError
from datapipe.stage import FieldNames, InputFile, Rejected, Split
from datapipe.stage.decoding import opened_members
from datapipe.storage.root import open_input
from stages.read._archives.warc_records import WARC, Record, regular_records, warc_records
from stages.read.arc import Arc
from stages.read.warc import Warc
from stages.read.wet import Wet
from tests.support import runs
from tests.support.reader_formats import wet
from tests.support.reader_results import ReadResult, in_ranges, input_file, read_file, read_splits, text_at
from tests.support.web_archives import (
    PACKINGS,
    arc_record,
    file_of,
    filedesc,
    http,
    packed,
    response,
    warc_record,
    write_unsplittable,
)

pytestmark = [pytest.mark.needs("fastwarc", "brotli")]

TEXTS = [
    "A first page.\nWith two lines.\n",
    "",
    "Zwölf Boxkämpfer\r\n\r\nüber 中文\r\n",
    "WARC/1.0\r\n\r\nis how records begin\n",
    "x" * 3000,
]


def read_wet(folder: Path, content: bytes, ending: str = "", keep: tuple[str, ...] = ()) -> ReadResult:
    return read_file(Wet(), file_of(folder, content, ending, "a.warc.wet"), FieldNames(keep=keep))


def test_wet_columns_are_those_of_the_record(tmp_path: Path) -> None:
    found = read_wet(tmp_path, packed(wet(TEXTS)), ".gz", ("url", "date", "mime", "WARC-Type", "x"))
    assert found.ids == [f"urn:uuid:00000000-0000-0000-0000-{number:012d}" for number in range(len(TEXTS))]
    assert found.extra["url"] == [f"http://e.org/{number}" for number in range(len(TEXTS))]
    assert (found.extra["date"][1], found.extra["mime"][0]) == ("2024-05-18T01:58:01Z", "text/plain")
    assert (set(found.extra["WARC-Type"]), set(found.extra["x"])) == ({"conversion"}, {None})
    assert found.input_bytes == sum(len(text.encode()) for text in TEXTS)
    assert found.passed_over == {"warcinfo": 1}


def test_wet_positions_are_offsets_of_members_and_numbers_in_them(tmp_path: Path) -> None:
    plain = wet(TEXTS)
    parts = [gzip.compress(part) for part in plain]
    offsets = [sum(map(len, parts[:number])) for number in range(1, len(parts))]
    assert read_wet(tmp_path, b"".join(parts), ".gz").places == [offset << 24 for offset in offsets]
    assert read_wet(tmp_path, b"".join(plain)).places == [len(b"".join(plain[:number])) for number in range(1, len(plain))]
    one = gzip.compress(b"".join(plain))
    assert read_wet(tmp_path, one, ".gz").places == [1, 2, 3, 4, 5]
    file = file_of(tmp_path, one, ".gz", "a.warc.wet")
    assert text_at(Wet(), file, 0) is None  # the file's own description


@pytest.mark.parametrize(
    "gap", [b"\0" * 700, b"no member\n" * 9, b"\x1f\x8b\x08", gzip.compress(b"no record"), b"\x1f\x8b\x08" * 99], ids=range(5)
)
def test_wet_bytes_between_members_are_reported_and_passed_over(tmp_path: Path, gap: bytes) -> None:
    first, *others = [gzip.compress(part) for part in wet(["one", "two"])]
    found = read_wet(tmp_path, first + gap + b"".join(others), ".gz")
    assert (found.texts, set(found.is_damage)) == (["one", "two"], {True})


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
    found = read_wet(tmp_path, b"".join(gzip.compress(part) if ending else part for part in parts), ending)
    assert found.texts[0] == "before" and found.texts[-1] in ("behind", "before", "a p")
    if ending:
        assert "behind" in found.texts and any(error in told for _, told in found.rejected)
    assert found.rejected


def _dictionary(content: bytes) -> bytes:
    return b"\x5d\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content


@pytest.mark.parametrize(
    ("ending", "content"),
    [(".gz", b""), (".zst", b""), (".lz4", b""), *((".zst", _dictionary(b"x" * 100)[:size]) for size in (3, 4, 7, 8, 107))],
)
def test_wet_archive_that_is_empty_or_ends_within_its_dictionary_is_damage(tmp_path: Path, ending: str, content: bytes) -> None:
    found = read_wet(tmp_path, content, ending)
    assert (found.rejected_places, found.is_damage) == ([0], [True])


def test_wet_text_that_is_not_utf8_is_reported_at_its_byte(tmp_path: Path) -> None:
    parts = [*wet(["before"]), warc_record("conversion", b"caf\xe9", 1), warc_record("conversion", b"behind", 2)]
    found = read_wet(tmp_path, packed(parts), ".gz")
    assert (found.texts, found.excerpts) == (["before", "behind"], [b"caf\xe9"])
    assert found.rejected[0][1].startswith("invalid UTF-8 at byte 3")


def test_wet_dictionary_without_bounds_is_reported(tmp_path: Path) -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\0" * (32 << 20))
    for content, error in (
        (bomb, "a dictionary of more than 16,777,216 bytes"),
        (bomb[:-9], "a dictionary of more than 16,777,216 bytes"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 40, "the dictionary"),
    ):
        found = read_wet(tmp_path, _dictionary(content) + packed(wet(TEXTS), "zstd, a frame a record"), ".zst")
        assert (found.documents, found.is_damage) == ([], [True])
        assert error in found.rejected[0][1]


@pytest.mark.medium
def test_wet_files_are_run_and_damage_stops_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.wet.gz"
    content = packed(wet([f"Page {number} of the crawl has some words." for number in range(40)]))
    path.write_bytes(content)
    source = f"  crawl: {{path: {path}, keep: [url, date]}}"
    mixture = runs.write_mixture(tmp_path, source, "stages: [filter.url: {domains: [other.org]}]", "tokenizer: none\n")
    assert runs.run_mixture(mixture, make_engine=runs.InProcess).report["total"]["documents"]["kept"] == 40
    path.write_bytes(content[:-20])
    with pytest.raises(UserError, match=r"1 input file .* a\.warc\.wet\.gz"):
        runs.run_mixture(mixture, make_engine=runs.InProcess)


PAGES = [b"<p>first\n\npage</p>", b"", b"<p>http://e.org/7 192.0.2.7 20080509190203 text/html 3\n</p>", b"<p>\xff last</p>\n"]
TEXTS_OF_PAGES = [page.decode(errors="replace") for page in PAGES]


def read_arc(
    folder: Path, parts: list[bytes], packing: str = "gzip, a member a record", keep: tuple[str, ...] = ()
) -> ReadResult:
    return read_file(Arc(), file_of(folder, packed(parts, packing), PACKINGS[packing][0], "a.arc"), FieldNames(keep=keep))


@pytest.mark.parametrize("version", [1, 2])
def test_arc_columns_are_those_of_the_record_and_the_response(tmp_path: Path, version: int) -> None:
    more = "" if version == 1 else "200 sha1:A - 99 a.arc.gz "
    parts = [filedesc(version), *(arc_record(http(page), number, more=more) for number, page in enumerate(PAGES))]
    keep = ("url", "date", "mime", "status", "charset", "WARC-IP-Address", "Content-Type", "absent")
    found = read_arc(tmp_path, parts, keep=keep)
    assert (found.texts, found.rejected) == (TEXTS_OF_PAGES, [])
    assert (found.passed_over, set(found.ids)) == ({"filedesc": 1}, {None})
    assert found.extra["url"] == [f"http://e.org/{number}" for number in range(len(PAGES))]
    assert found.extra["date"][1] == "2008-05-09T19:02:01Z"
    of_all = {"mime": "text/html", "status": 200, "WARC-IP-Address": "192.0.2.7", "Content-Type": "text/html", "absent": None}
    assert {name: found.extra[name] for name in of_all} == {name: [value] * len(PAGES) for name, value in of_all.items()}


def test_arc_addresses_and_types_may_hold_spaces(tmp_path: Path) -> None:
    body = http(b"<p>page</p>")
    head = f"http://e.org/a b 1.2.3.4 c 192.0.2.7 20080509190241 text/html; charset=x {len(body)}\n".encode()
    found = read_arc(tmp_path, [filedesc(), head + body + b"\n"], keep=("url", "mime"))
    assert found.extra == {"url": ["http://e.org/a b 1.2.3.4 c"], "mime": ["text/html"]}


def test_arc_counts_what_it_passes_over(tmp_path: Path) -> None:
    parts = [
        filedesc(),
        arc_record(http(b"%PDF", content_type="application/pdf"), 1, "application/pdf"),
        arc_record(http(b"gone", status="404 Not Found"), 2),
        arc_record(b"example.org. 60 IN A 192.0.2.7", 3, "text/dns"),
        arc_record(b"<p>an answer of HTTP/0.9</p>", 4),
        arc_record(b"", 5, "no-type"),
    ]
    found = read_arc(tmp_path, parts)
    assert (found.texts, found.rejected) == (["<p>an answer of HTTP/0.9</p>"], [])
    assert found.passed_over == {"filedesc": 1, "other_mime": 3, "other_status": 1}


@pytest.mark.parametrize(
    ("length", "error"),
    [("-1", "'-1'"), ("abc", "'abc'"), ("9999", "cut off"), ("10", "no record"), ("999999999", "999,999,999 bytes")],
)
@pytest.mark.parametrize("packing", ["plain", "gzip, a member a record", "gzip, one member"])
def test_arc_wrong_length_is_reported_and_reading_goes_on(tmp_path: Path, length: str, error: str, packing: str) -> None:
    wrong = arc_record(http(b"<p>wrong</p>"), 8, length=length)
    parts = [filedesc(), arc_record(http(PAGES[0])), wrong, arc_record(http(PAGES[3]), 3)]
    found = read_arc(tmp_path, parts, packing)
    assert any(error in told for _, told in found.rejected)
    assert found.texts[0] == TEXTS_OF_PAGES[0]
    if packing == "gzip, a member a record" or length in ("-1", "abc", "10"):
        assert found.texts[-1] == TEXTS_OF_PAGES[3]
    assert len(set(found.rejected_places)) == len(found.rejected)


NAMES = ["WARC-Type", "warc-target-uri", "X-Own", "Content-Type", "WARC-Date", "X-OWN"]
VALUES = ["a", " spaced  ", "", "http://e.org/é", "a: b", "\xff\x00", "tab\t"]
LINES = [" folded", "\tfolded", "no header", "X Y: spaced name", "X-B : b", ": no name", "X-Bare: a\rb"]


def _by_fastwarc(content: bytes) -> list[tuple[str, dict[str, str | None], bytes]]:
    from fastwarc.warc import ArchiveIterator

    records = ArchiveIterator(cast(Any, io.BytesIO(content)), parse_http=False)
    return [
        (
            str(record.record_type).rpartition(".")[2],
            {name: value.strip() if (value := record.headers.get(name)) is not None else None for name in NAMES},
            record.reader.read(),
        )
        for record in records
    ]


def _random_record(rng: random.Random) -> bytes:
    body = rng.randbytes(rng.randrange(30)) + rng.choice([b"", b"\r\n\r\n", b"WARC/1.0\r\n\r\n"])
    kind = rng.choice(["response", "warcinfo", "conversion", "metadata", "request", "resource", "revisit", "continuation"])
    lines = [f"WARC-Type: {kind}", f"Content-Length: {len(body)}"]
    names = rng.sample(NAMES[1:5], rng.randrange(4))
    lines += [f"{name}:{rng.choice(['', ' '])}{rng.choice(VALUES)}" for name in names]
    if rng.random() < 0.3:
        lines.append(rng.choice([*LINES, "WARC-Type: other", "Content-Length: 3", "X-OWN: twice", "X-Own: twice"]))
    rng.shuffle(lines)
    version = rng.choice(["WARC/1.0", "WARC/1.1", "WARC/1.0", "WARC/1.1", "WARC/0.18"])
    head = "\r\n".join([version, *lines]).encode("utf-8") + b"\r\n\r\n"
    return head + body + rng.choice([b"\r\n\r\n"] * 9 + [b"\r\n", b"\n\n", b""])


def test_regular_records_are_those_of_fastwarc_or_left_to_others() -> None:
    rng = random.Random(17)
    num_regular = 0
    for _ in range(2000):
        content = b"".join(_random_record(rng) for _ in range(rng.randrange(1, 4)))
        found = regular_records(content, 7 << 24, 1 << 20)
        if found is None:
            continue
        num_regular += 1
        assert [record.position for record in found] == [(7 << 24) + number for number in range(len(found))]
        ours = [(record.kind, {name: record.headers.get(name) for name in NAMES}, record.body) for record in found]
        assert ours == _by_fastwarc(content)
    assert num_regular > 450


def _records(content: bytes, folder: Path, packing: str = "", max_bytes: int = 1 << 20) -> list[Record | Rejected]:
    ending, compression = {"": ("", None), "gz": (".gz", "gzip"), "zst": (".zst", "zstd")}[packing]
    pack = {"": bytes, "gz": gzip.compress, "zst": zstandard.compress}[packing]
    file = input_file(folder / f"a.warc{ending}", pack(content))
    with open_input(file.url) as stream:
        return list(warc_records(opened_members(stream, compression, beginning=WARC), max_bytes))


_HABITS = {
    "bare LF": lambda record: record.replace(b"\r\n", b"\n"),
    "bare LF, one behind the body": lambda record: record.replace(b"\r\n", b"\n").removesuffix(b"\n"),
    "lower names": lambda record: record.replace(b"WARC-T", b"warc-t").replace(b"Content-", b"content-"),
    "capital type": lambda record: record.replace(b": conversion", b": Conversion"),
    "folded line": lambda record: record.replace(b"Content-Type: ", b"Content-Type:\r\n\t ").replace(
        b"ARC-Date: ", b"ARC-Date: \r\n "
    ),
    "blanks before colons": lambda record: record.replace(b"Length: ", b"Length \t:").replace(b"URI: ", b"URI : "),
    "old version": lambda record: record.replace(b"WARC/1.0", b"WARC/0.18"),
    "a length of a byte less": lambda record: record.replace(b"Length: 18", b"Length: 17"),
    "a length of eight bytes less": lambda record: record.replace(b"Length: 18", b"Length: 10"),
}


@pytest.mark.parametrize("packing", ["", "gz", "zst"])
@pytest.mark.parametrize("habit", _HABITS)
def test_records_of_every_habit_are_read(tmp_path: Path, habit: str, packing: str) -> None:
    """ClueWeb09 has bare LF and version 0.18; its lengths count CRLF as one byte."""
    written = [_HABITS[habit](warc_record("conversion", b"the text of page %d" % number, number)) for number in range(3)]
    found = [record for record in _records(b"".join(written), tmp_path, packing) if isinstance(record, Record)]
    assert [record.body for record in found] == [b"the text of page %d" % number for number in range(3)]
    assert {record.kind for record in found} == {"conversion"}
    assert [record.headers.get("WARC-Target-URI") for record in found] == [f"<http://e.org/{number}>" for number in range(3)]
    assert [record.headers.get("content-type") for record in found] == ["text/plain"] * 3
    assert {record.has_short_length for record in found} == {habit.startswith("a length")}
    assert len({record.position for record in found}) == 3


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (b"WARC/1.0\nWARC-Type: conversion\n\n", "the record has no Content-Length"),
        (b"WARC/1.0\nContent-Length: x\n\n", "the record has the Content-Length 'x'"),
        (b"WARC/1.0\nContent-Length: 5", "the headers of the record are cut off"),
        (b"WARC/1.0\n" + b"A: b\n" * 100_000, "the headers do not end"),
        (b"no record\n", "the bytes are no record"),
    ],
)
def test_head_that_is_none_is_reported_as_what_it_is(tmp_path: Path, head: bytes, error: str) -> None:
    _, rejected = _records(warc_record("conversion", b"a") + head, tmp_path)
    assert isinstance(rejected, Rejected) and rejected.is_file_damage
    assert rejected.error.startswith(error)


@pytest.mark.parametrize("num_zeros", [1, 512, 70_000])
@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_zeros_behind_members_are_padding(tmp_path: Path, packing: str, num_zeros: int) -> None:
    pack = {"gz": gzip.compress, "zst": zstandard.compress}[packing]
    file = input_file(tmp_path / f"a.warc.{packing}", pack(warc_record("conversion", b"a")) + bytes(num_zeros))
    for split in (Split(file=file), Split(file=file, start=0, stop=file.num_bytes // 2)):
        with open_input(file.url) as stream:
            members = opened_members(stream, file.compression, beginning=WARC)
            (record,) = warc_records(members, 1 << 20, split.start, split.stop)
        assert isinstance(record, Record) and record.body == b"a"


RESPONSES = [response(f"<p>page {number} {'x' * (37 * number)}".encode(), number) for number in range(5)]


@pytest.mark.medium
@pytest.mark.parametrize("size", [37, 411])
def test_members_that_end_within_records_are_read_as_one_stream(tmp_path: Path, size: int) -> None:
    parts = [warc_record("warcinfo", b"ours"), *RESPONSES]
    content = b"".join(parts)
    members = b"".join(gzip.compress(content[start : start + size]) for start in range(0, len(content), size))
    file = file_of(tmp_path, members)
    found = read_file(Warc(), file)
    assert found.texts == read_file(Warc(), file_of(tmp_path, packed(parts), name="b.warc")).texts
    assert found.rejected == []
    for position, page, _ in found.documents:
        assert text_at(Warc(), file, position) == page
    for cut in range(1, file.num_bytes, 29):
        assert in_ranges(Warc(), file, [cut]) == found.told


def test_ranges_of_frames_with_large_blocks_begin_at_them(tmp_path: Path) -> None:
    rng = random.Random(7)
    pages = [response(rng.randbytes(90_000).hex().encode(), number) for number in range(6)]
    for packing in ("zstd, a frame a record", "lz4", "gzip, a member a record"):
        file = file_of(tmp_path, packed(pages, packing), PACKINGS[packing][0])
        sizes = []
        for number in range(6):
            start, stop = file.num_bytes * number // 6, file.num_bytes * (number + 1) // 6
            sizes.append(len(read_splits(Warc(), [Split(file=file, start=start, stop=stop)]).documents))
        assert sum(sizes) == 6 and max(sizes) <= 2


def _archive_in_a_record() -> list[bytes]:
    """Records of which one holds an archive that is stored as it is, so that its magic bytes stand in the file."""
    inner = b"".join(gzip.compress(response(f"<p>inside {number}".encode(), number), 0) for number in range(3))
    return [
        gzip.compress(RESPONSES[0]),
        gzip.compress(warc_record("resource", inner + b"tail", 7, "application/warc"), 0),
        *map(gzip.compress, RESPONSES[1:3]),
    ]


def _refused_cuts(file: InputFile) -> list[int]:
    """The places at which the file cannot be cut. Cut at any other, it gives the books of one reading."""
    whole = read_file(Warc(), file).told
    found = {cut: in_ranges(Warc(), file, [cut]) for cut in range(1, file.num_bytes, 2)}
    assert [cut for cut, told in found.items() if told not in (whole, None)] == []
    return [cut for cut, told in found.items() if told is None]


def test_ranges_of_an_archive_in_an_archive_are_right_or_refused(tmp_path: Path) -> None:
    parts = _archive_in_a_record()
    file = file_of(tmp_path, b"".join(parts))
    assert len(read_file(Warc(), file).documents) == 3
    refused = _refused_cuts(file)
    first, last = len(parts[0]) + 1, len(parts[0]) + len(parts[1])
    assert refused == [cut for cut in refused if first <= cut < last]
    assert len(refused) > len(parts[1]) // 4


@pytest.mark.slow
def test_run_reads_a_file_whole_that_cannot_be_cut_and_reports_it(tmp_path: Path) -> None:
    mixture = write_unsplittable(tmp_path)
    whole = runs.run_mixture(
        mixture, make_engine=runs.InProcess, output=tmp_path / "whole", overrides=["execution.split_bytes=1GB"]
    )
    assert whole.report["warnings"] == [] and len(whole.plan.of_kind("map")[0].tasks or ()) == 1
    cut = runs.run_mixture(mixture, make_engine=runs.InProcess)
    assert cut.report["total"]["documents"]["kept"] == 90
    assert cut.snapshot.shards == whole.snapshot.shards  # type: ignore[attr-defined]
    [warning] = cut.report["warnings"]
    assert warning["kind"] == "read_whole" and warning["files"] == ["nested.warc.wet.gz"]
    splits = [split for task in cut.plan.of_kind("map")[0].tasks or () for split in task.splits]  # type: ignore[attr-defined]
    assert len([split for split in splits if split.file.path.startswith("good")]) > 3
    assert [split.stop for split in splits if split.file.path.startswith("nested")] == [None]
    assert runs.run_mixture(mixture, make_engine=runs.InProcess).watcher.records == []
