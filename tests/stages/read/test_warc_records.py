"""Records of WARC: those that are parsed by their bytes are those that fastwarc finds, and writers' habits are all read."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path
from typing import Any, cast

import pytest
import zstandard

from datapipe.stage import Rejected, Split
from datapipe.storage import open_input
from stages.read._archives.record import Record
from stages.read._archives.warc_records import regular_records, warc_records, warc_records_of_split
from tests.support.reader_results import input_file
from tests.support.web_archives import response, warc_record

pytestmark = [pytest.mark.needs("fastwarc")]

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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        response(b"<p>page</p>")[:-1],
        response(b"<p>page</p>") + b"\r\n",
        b"\r\n" + response(b"<p>page</p>"),
        warc_record("response", b"page", length=3),
        warc_record("response", b"page", length=10**16),
        warc_record("own", b"page"),
        warc_record("response", b"page").replace(b"\r\n", b"\n"),
        b"WARC/1.0\r\n\r\n\r\n\r\n",
    ],
    ids=range(9),
)
def test_regular_records_are_none_for_anything_odd(content: bytes) -> None:
    assert not regular_records(content, 0, 1 << 20)


def test_regular_records_larger_than_allowed_are_left_to_others() -> None:
    content = warc_record("response", b"x" * 100)
    assert regular_records(content, 0, 100) is not None and regular_records(content, 0, 99) is None


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
