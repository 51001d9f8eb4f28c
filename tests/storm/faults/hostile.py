"""Damaged archives in bulk: gzip, zstd, bzip2, xz, WARC, Parquet and CSV beside sound ones, whose documents must be there.

Bits are flipped; ranges are cut off, repeated, zeroed or removed; bombs and garbage are added.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
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


FAULTS = (HostileArchives(),)
