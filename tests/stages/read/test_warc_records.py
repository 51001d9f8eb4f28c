"""Records of WARC against fastwarc, in the habits of all writers, and archives that are read in byte ranges."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import zstandard

from datapipe.errors import UnsplittableInputError
from datapipe.ledger import pending
from datapipe.stage import FieldNames, InputFile, Reader, Rejected, Split
from datapipe.stage.reader import ReadBatch
from datapipe.storage import open_input
from stages.read._archives.record import Record
from stages.read._archives.warc_records import regular_records, warc_records, warc_records_of_split
from stages.read.warc import Warc
from tests.support import runs, web_archives
from tests.support.reader_results import input_file
from tests.support.web_archives import PACKINGS, documents, packed, read, response, warc_record

pytestmark = [pytest.mark.needs("fastwarc", "isal", "lz4", "zstandard", "brotli")]

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
        return list(warc_records(stream, compression, max_bytes))


_HABITS = {
    "bare LF": lambda record: record.replace(b"\r\n", b"\n"),
    "bare LF, one behind the body": lambda record: record.replace(b"\r\n", b"\n").removesuffix(b"\n"),
    "capital names": lambda record: record.replace(b"WARC-Target-URI", b"WARC-TARGET-URI").replace(b"Content-L", b"CONTENT-L"),
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


def test_record_whose_length_is_short_by_more_is_damage(tmp_path: Path) -> None:
    bad = warc_record("conversion", b"the text of page 1", 1, length=5)
    first, wrong, last = _records(warc_record("conversion", b"a") + bad + warc_record("conversion", b"b"), tmp_path)
    assert isinstance(first, Record) and isinstance(last, Record) and isinstance(wrong, Rejected)
    assert (first.body, last.body, wrong.is_file_damage) == (b"a", b"b", True)
    assert wrong.error.startswith("the Content-Length of the record, 5, is wrong")


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
def test_head_that_is_none_is_told_as_what_it_is(tmp_path: Path, head: bytes, error: str) -> None:
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
            (record,) = warc_records_of_split(stream, split, 1 << 20)
        assert isinstance(record, Record) and record.body == b"a"


PAGES = [response(f"<p>page {number} {'x' * (37 * number)}".encode(), number) for number in range(5)]


def in_ranges(reader: Reader, file: InputFile, cuts: Sequence[int]) -> list[ReadBatch]:
    """The batches of all ranges between some cuts."""
    borders = [0, *cuts, file.num_bytes]
    return [batch for start, stop in zip(borders, borders[1:]) for batch in read(reader, file, start=start, stop=stop)]


def books(batches: Sequence[ReadBatch]) -> tuple[object, ...]:
    """All that a reading finds: documents in their order, kinds that are passed over, rejected records."""
    return list(documents(batches).items()), web_archives.passed_over(batches), web_archives.rejected(batches)


def _cut_anywhere(content: bytes, size: int) -> bytes:
    return b"".join(gzip.compress(content[start : start + size]) for start in range(0, len(content), size))


@pytest.mark.medium
@pytest.mark.parametrize("size", [37, 411])
def test_members_that_end_within_records_are_read_as_one_stream(tmp_path: Path, size: int) -> None:
    parts = [warc_record("warcinfo", b"ours"), *PAGES]
    pages = list(documents(read(Warc(), web_archives.file_of(tmp_path, packed(parts)))).values())
    file = web_archives.file_of(tmp_path, _cut_anywhere(b"".join(parts), size))
    expected = books(read(Warc(), file))
    assert list(documents(read(Warc(), file)).values()) == pages and expected[2] == []
    for position, page in documents(read(Warc(), file)).items():
        assert Warc().read_document(file, position, FieldNames(), pa.OSFile) == page.decode()
    for cut in range(1, file.num_bytes, 29):
        assert books(in_ranges(Warc(), file, [cut])) == expected


def test_ranges_of_frames_with_large_blocks_begin_at_them(tmp_path: Path) -> None:
    rng = random.Random(7)
    pages = [response(rng.randbytes(90_000).hex().encode(), number) for number in range(6)]
    for packing in ("zstd, a frame a record", "lz4", "gzip, a member a record"):
        file = web_archives.file_of(tmp_path, packed(pages, packing), PACKINGS[packing][0])
        sizes = []
        for number in range(6):
            start, stop = file.num_bytes * number // 6, file.num_bytes * (number + 1) // 6
            sizes.append(len(documents(read(Warc(), file, start=start, stop=stop))))
        assert sum(sizes) == 6 and max(sizes) <= 2


def _archive_in_a_record() -> list[bytes]:
    """Records of which one holds an archive that is stored as it is, so that its magic bytes stand in the file."""
    inner = b"".join(gzip.compress(response(f"<p>inside {number}".encode(), number), 0) for number in range(3))
    return [
        gzip.compress(PAGES[0]),
        gzip.compress(warc_record("resource", inner + b"tail", 7, "application/warc"), 0),
        *map(gzip.compress, PAGES[1:3]),
    ]


def _refused_cuts(file: InputFile) -> list[int]:
    """The places at which the file cannot be cut. Cut at any other, it gives the books of one reading."""
    expected, refused = books(read(Warc(), file)), []
    for cut in range(1, file.num_bytes, 2):
        try:
            assert books(in_ranges(Warc(), file, [cut])) == expected, cut
        except UnsplittableInputError:
            refused.append(cut)
    return refused


def test_ranges_of_an_archive_in_an_archive_are_right_or_refused(tmp_path: Path) -> None:
    parts = _archive_in_a_record()
    file = web_archives.file_of(tmp_path, b"".join(parts))
    assert len(documents(read(Warc(), file))) == 3
    refused = _refused_cuts(file)
    first, last = len(parts[0]) + 1, len(parts[0]) + len(parts[1])
    assert refused == [cut for cut in refused if first <= cut < last]
    assert len(refused) > len(parts[1]) // 4


def test_ranges_of_a_plain_archive_in_a_record_are_right_or_refused(tmp_path: Path) -> None:
    inner = b"".join(PAGES[:2])
    content = b"".join([PAGES[2], warc_record("resource", inner, 7, "application/warc"), PAGES[3]])
    refused = _refused_cuts(web_archives.file_of(tmp_path, content, ""))
    assert 0 < len(refused) < (len(inner) + 500) // 2


def _documents_of(done: runs.Finished) -> dict[str, str]:
    return {file.path: file.checksum for file in done.snapshot.documents}


@pytest.mark.medium
def test_run_reads_a_file_whole_that_cannot_be_cut_and_says_so(tmp_path: Path) -> None:
    mixture = web_archives.write_unsplittable(tmp_path)
    whole = runs.run_mixture(
        mixture, make_engine=runs.InProcess, output=tmp_path / "whole", overrides=["execution.split_bytes=1GB"]
    )
    assert whole.report["warnings"] == [] and len(whole.plan.of_kind("map")[0].tasks or ()) == 1
    cut = runs.run_mixture(mixture, make_engine=runs.InProcess)
    assert cut.report["total"]["documents"]["kept"] == 90
    assert _documents_of(cut) == _documents_of(whole)
    [warning] = cut.report["warnings"]
    assert warning["kind"] == "read_whole" and warning["files"] == ["nested.warc.wet.gz"]
    splits = [split for task in cut.plan.of_kind("map")[0].tasks or () for split in task.splits]  # type: ignore[attr-defined]
    assert len([split for split in splits if split.file.path.startswith("good")]) > 3
    assert [split.stop for split in splits if split.file.path.startswith("nested")] == [None]
    assert runs.run_mixture(mixture, make_engine=runs.InProcess).watcher.records == []


@pytest.mark.slow
def test_run_that_is_stopped_knows_which_file_cannot_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LONGEST_WAIT_S", 0.0)  # each task is committed by itself
    mixture = web_archives.write_unsplittable(tmp_path)
    expected = _documents_of(runs.run_mixture(mixture, make_engine=runs.InProcess, output=tmp_path / "undisturbed"))
    steps: list[str] = []

    class StoppedError(Exception):
        pass

    for _ in range(200):
        watcher = runs.Watcher()

        def stop(committed: object, watcher: runs.Watcher = watcher) -> None:
            steps.append(watcher.records[-1].fingerprint)
            raise StoppedError

        watcher.on_commit = stop
        try:
            done = runs.run_mixture(mixture, make_engine=runs.InProcess, watcher=watcher)
            break
        except StoppedError:
            continue
    assert _documents_of(done) == expected
    assert len(set(steps)) == len(steps) > 10  # no task ran twice
    assert [warning["kind"] for warning in done.report["warnings"]] == ["read_whole"]
