"""Records that are parsed by their bytes are those that fastwarc finds."""

from __future__ import annotations

import io
import random
from typing import Any, cast

import pytest

from stages.read._archives.warc_records import regular_records
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


def test_regular_records_are_those_of_fastwarc_or_left_to_it() -> None:
    rng = random.Random(17)
    num_regular = 0
    for _ in range(4000):
        content = b"".join(_random_record(rng) for _ in range(rng.randrange(1, 4)))
        found = regular_records(content, 7 << 24, 1 << 20)
        if found is None:
            continue
        num_regular += 1
        assert [record.position for record in found] == [(7 << 24) + number for number in range(len(found))]
        ours = [(record.kind, {name: record.headers.get(name) for name in NAMES}, record.body) for record in found]
        assert ours == _by_fastwarc(content)
    assert num_regular > 1000


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


def test_regular_records_larger_than_allowed_are_left_to_fastwarc() -> None:
    content = warc_record("response", b"x" * 100)
    assert regular_records(content, 0, 100) is not None and regular_records(content, 0, 99) is None
