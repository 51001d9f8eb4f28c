"""Generated corpora: English-like prose, code, exact and near duplicates, all from a seed."""

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

_STOP = ["the", "be", "to", "of", "and", "that", "have", "with"]
# fmt: off
_SYLLABLES = [
    "ba", "con", "der", "est", "fi", "gra", "hol", "in", "jor", "ka", "lum", "men", "nor", "op", "per", "qua", "ri", "sta",
]
# fmt: on


def prose(rng: random.Random, num_words: int = 120) -> str:
    """Text that the Gopher rules keep: sentences with stop words, no line twice."""
    words: list[str] = []
    for _ in range(num_words):
        if rng.random() < 0.4:
            words.append(rng.choice(_STOP))
        else:
            words.append("".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))))
    lines, start = [], 0
    while start < len(words):
        length = rng.randint(8, 15)
        lines.append(" ".join(words[start : start + length]).capitalize() + ".")
        start += length
    return "\n".join(lines)


def near_duplicate(rng: random.Random, text: str) -> str:
    """The text with one word changed."""
    words = text.split(" ")
    words[rng.randrange(len(words))] = "changed"
    return " ".join(words)


def documents(seed: int, count: int, exact: float = 0.1, near: float = 0.1, short: float = 0.1) -> list[dict[str, str]]:
    """Documents of which some are too short, some exact and some near duplicates of others."""
    rng = random.Random(seed)
    texts: list[str] = []
    for number in range(count):
        roll = rng.random()
        if texts and roll < exact:
            texts.append(rng.choice(texts))
        elif texts and roll < exact + near:
            texts.append(near_duplicate(rng, rng.choice(texts)))
        elif roll < exact + near + short:
            texts.append(f"too short, number {number}")
        else:
            texts.append(prose(rng, rng.randint(60, 300)))
    return [{"id": f"doc-{seed}-{number}", "text": text} for number, text in enumerate(texts)]


def jsonl(rows: Sequence[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def write_jsonl(path: Path, rows: Sequence[dict]) -> Path:
    """JSON lines; compressed by its ending."""
    content = jsonl(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    elif path.suffix == ".zst":
        content = zstandard.ZstdCompressor().compress(content)
    path.write_bytes(content)
    return path


def write_parquet(path: Path, rows: Sequence[dict], row_group_size: int = 50) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=row_group_size)
    return path
