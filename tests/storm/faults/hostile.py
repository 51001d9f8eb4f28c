"""Hostile input in bulk: lines whose fate is known line by line, and damaged archives, whose sound neighbours must be there.

lines      JSONL of good, odd and broken lines; each is kept with the very text, or quarantined
archives   gzip, zstd, bzip2, xz, WARC, Parquet, CSV: bits flipped, cut off, ranges repeated, zeroed or removed, bombs
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.storm import checks
from tests.storm.rounds import Round
from tests.support import corpora, runs, web_archives

_TAIL = """
tokenizer: none
documents: {format: jsonl.zst}
max_quarantined: 100%
max_unreadable_files: 1000
"""
_LINES = 100_000
_NUM_FILES = 4
_ALPHABET = 'abcdefg 0123äöü漢字🙂"\\/\t\n\u2028\x7f'


class HostileLines:
    """A hundred thousand lines a round; the fate of each is known by how it was made, or from Python's own JSON."""

    name = "lines"
    aim = 1_000_000
    is_short = False

    def play(self, round: Round) -> None:
        count = 3_000 if round.storm.is_small else _LINES
        kept: Counter[str] = Counter()
        num_read = 0
        for number in range(_NUM_FILES):
            lines = [(_good(round.rng, text := "the first line"), text)]
            lines += [hostile_line(round.rng) for _ in range(count // _NUM_FILES - 1)]
            with open(round.folder / f"{number}.jsonl", "wb") as file:
                file.writelines(line + b"\n" for line, _ in lines)
            kept.update(text for _, text in lines if text is not None)
            num_read += len(lines)
        round.fault(f"{num_read:,} lines, {num_read - kept.total():,} of them broken", num_read)
        mixture = _mixture(round, "*.jsonl")
        ended = round.run(mixture=mixture).wait()
        assert ended.status == 0, ended.errors[-2000:]
        round.check_processes()
        report = json.loads((round.output / "report.json").read_bytes())
        checks.check_counts(report)
        checks.check_residue(round.output)
        found = kept_texts(round.output)
        assert found == kept, f"lost {_shown(kept - found)}; too many {_shown(found - kept)}"
        documents = report["total"]["documents"]
        assert documents["read"] == num_read, f"{documents['read']} read of {num_read} lines"
        assert documents["quarantined"] == num_read - kept.total(), documents
        round.same()


def hostile_line(rng: random.Random) -> tuple[bytes, str | None]:
    """A line without its end, and the text that is kept of it; None where it is quarantined."""
    text = "".join(rng.choices(_ALPHABET, k=rng.randint(1, 60))) + "."
    return rng.choice(_KINDS)(rng, text)


def _good(rng: random.Random, text: str) -> bytes:
    record = {"text": text, "id": rng.choice((1, "a", None, 7.5, 10**40, True, {"a": [1]}))}
    return json.dumps(record, ensure_ascii=rng.random() < 0.5).encode()


def _odd(rng: random.Random, text: str) -> tuple[bytes, str | None]:
    quoted = json.dumps(text).encode()
    depth = rng.choice((1, 10, 200, 2_000))
    forms = (
        b'\t{ "text" :%s }\r' % quoted,
        b'{"text": %s, "x": NaN, "y": -Infinity}' % quoted,
        b'{"id": 1, "id": "2", "text": %s}' % quoted,
        b'{"x": %s, "text": %s}' % (b"[" * depth + b"]" * depth, quoted),
        b'{"te\\u0078t": %s}' % quoted,
        b'{"": "", "text": %s, "\\ud83d\\ude42": 1e308}' % quoted,
    )
    return rng.choice(forms), text


def _broken(rng: random.Random, text: str) -> tuple[bytes, str | None]:
    quoted, line = json.dumps(text).encode(), _good(rng, text)
    forms = (
        b'{"text": %s, "text": %s}' % (quoted, quoted),
        b'{"text": %s}' % rng.choice((b"null", b"3", b"[]", b"{}", b"true", b"[%s]" % quoted)),
        b"{}",
        b"[%s]" % line,
        line + line,
        line + b",",
        quoted,
        line[: rng.randint(1, len(line) - 1)],
        line[:-1] + b",}",
        b'{"text": "a \xff b"}',
        b'{"text": "%s"}' % bytes([rng.randrange(1, 9)]),
        b'{"text": %s, "x": "\\ud%x00"}' % (quoted, rng.randrange(0x800, 0xFFF) >> 4 & 0xFF | 0x80),
        b"\xef\xbb\xbf" + line,
        b"#" + rng.randbytes(rng.randint(0, 40)).replace(b"\n", b"").replace(b"\r", b""),
        b"\0" * rng.randint(1, 9),
    )
    return rng.choice(forms), None


def _mutated(rng: random.Random, text: str) -> tuple[bytes, str | None]:
    """A good line with a byte that is not its own; Python's JSON tells what it is."""
    line = bytearray(_good(rng, text))
    line[rng.randrange(1, len(line))] = rng.choice(b'\x00\t "\\{}[],:0e-\x80\xc3\xf0au')
    return bytes(line), text_of(bytes(line))


_KINDS: tuple[Callable[[random.Random, str], tuple[bytes, str | None]], ...] = (
    lambda rng, text: (_good(rng, text), text),
    _odd,
    _broken,
    _mutated,
)


def text_of(line: bytes) -> str | None:
    """The text of a line by Python's own JSON, in UTF-8, with one `text` that is a string, and no number beyond a float; None
    for any other line."""

    def record(pairs: list[tuple[str, object]]) -> object:
        names = [name for name, _ in pairs]
        if names.count("text") > 1:
            raise ValueError("two texts")
        return dict(pairs)

    def number(digits: str) -> float:
        if math.isinf(value := float(digits)):
            raise ValueError("beyond a float")
        return value

    try:
        value = json.loads(line.decode(), object_pairs_hook=record, parse_float=number)
        json.dumps(value, ensure_ascii=False).encode()  # fails on lone surrogates
    except (ValueError, RecursionError):
        return None
    text = value.get("text") if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


class HostileArchives:
    """Ten damaged files of one format beside two sound ones."""

    name = "archives"
    aim = 300
    is_short = False

    def play(self, round: Round) -> None:
        ending = (*ARCHIVES, "warc.gz")[round.number % (len(ARCHIVES) + 1)]
        for number in range(12):
            content = archive(ending, random.Random(f"{round.name}/{number}"))
            if number >= 2:
                content, what = damaged(content, round.rng, ending)
                round.fault(f"{number}.{ending}: {what}")
            (round.folder / f"{number:02d}.{ending}").write_bytes(content)
        found = []
        for split in ("32MiB", "4KiB"):
            round.output = round.folder / f"out-{split}"
            ended = round.run("--set", f"execution.split_bytes={split}", mixture=_mixture(round, f"*.{ending}")).wait()
            assert ended.status == 0, ended.errors[-2000:]
            round.check_processes()
            report = json.loads((round.output / "report.json").read_bytes())
            checks.check_counts(report)
            checks.check_residue(round.output)
            peak = report["peak_worker_bytes"]
            assert peak < 3 << 30, f"a worker took {peak:,} bytes"
            found.append(kept_texts(round.output))
        whole, cut = found
        assert whole == cut, f"another split, other documents: {_shown(whole - cut)}; {_shown(cut - whole)}"
        sound = Counter(text for number in range(2) for text in _texts(random.Random(f"{round.name}/{number}")))
        assert not sound - whole, f"lost from sound files: {_shown(sound - whole)}"
        round.same()


def _texts(rng: random.Random) -> list[str]:
    return [row["text"] for row in corpora.documents(rng.randrange(1 << 30), 60, exact=0, near=0, short=0)]


def _zstd_frames(content: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(write_checksum=True)
    return b"".join(packer.compress(content[start : start + 8_000]) for start in range(0, len(content), 8_000))


def _lines_of(texts: list[str]) -> bytes:
    return corpora.jsonl([{"text": text} for text in texts])


def _table_of(texts: list[str]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": texts}), sink, row_group_size=10, compression="zstd")
    return sink.getvalue().to_pybytes()


def _csv_of(texts: list[str]) -> bytes:
    return b"text\n" + b"".join(b'"%s"\n' % text.replace('"', '""').encode() for text in texts)


ARCHIVES: dict[str, Callable[[list[str]], bytes]] = {
    "jsonl.gz": lambda texts: b"".join(gzip.compress(_lines_of(texts[at : at + 20]), mtime=0) for at in range(0, 60, 20)),
    "jsonl.zst": lambda texts: _zstd_frames(_lines_of(texts)),
    "jsonl.bz2": lambda texts: bz2.compress(_lines_of(texts)),
    "jsonl.xz": lambda texts: lzma.compress(_lines_of(texts)),
    "parquet": _table_of,
    "csv": _csv_of,
}


def archive(ending: str, rng: random.Random) -> bytes:
    """A sound file of 60 documents."""
    texts = _texts(rng)
    if ending == "warc.gz":
        records = [web_archives.warc_record("conversion", text.encode(), number) for number, text in enumerate(texts)]
        return web_archives.packed(records)
    return ARCHIVES[ending](texts)


def damaged(content: bytes, rng: random.Random, ending: str) -> tuple[bytes, str]:
    """The file with one kind of damage, and which."""
    start = rng.randrange(len(content))
    stop = min(len(content), start + rng.randint(1, 400))
    how = rng.choice(("flipped", "cut off", "repeated", "zeroed", "removed", "garbage", "bomb"))
    if how == "bomb" and (bomb := _bomb(ending)):
        return content + bomb, "a bomb behind it"
    if how == "cut off":
        return content[:start], f"cut off at {start} of {len(content)}"
    if how == "repeated":
        return content[:stop] + content[start:], f"bytes {start} to {stop} twice"
    if how == "zeroed":
        return content[:start] + bytes(stop - start) + content[stop:], f"bytes {start} to {stop} are zero"
    if how == "removed":
        return content[:start] + content[stop:], f"bytes {start} to {stop} are gone"
    if how == "garbage":
        return content + rng.randbytes(300), "garbage behind it"
    bits = rng.randint(1, 5)
    flipped = bytearray(content)
    for _ in range(bits):
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(flipped), f"{bits} flipped bits"


def _bomb(ending: str) -> bytes:
    """A line of 400 MB in a few hundred kB."""
    size, part = 400 << 20, bytes(1 << 20).replace(b"\0", b"z")
    if ending.endswith(".gz"):
        import zlib

        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    elif ending.endswith(".zst"):
        packer = zstandard.ZstdCompressor().compressobj()
    else:
        return b""
    return b"".join(packer.compress(part) for _ in range(size >> 20)) + packer.flush()


def kept_texts(output: Path) -> Counter[str]:
    """The texts of all kept documents."""
    found: Counter[str] = Counter()
    for path in (output / "documents").rglob("*.jsonl.zst"):
        with open(path, "rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as stream:
            found.update(json.loads(line)["text"] for line in stream.read().splitlines())
    return found


def _mixture(round: Round, pattern: str) -> Path:
    return runs.write_mixture(round.folder, f"  hostile: {{path: {round.folder}/{pattern}}}\n", "stages: []", _TAIL)


def _shown(texts: Counter[str]) -> str:
    return f"{texts.total():,} texts, such as {[text[:200] for text, _ in texts.most_common(3)]}"


FAULTS = (HostileLines(), HostileArchives())
