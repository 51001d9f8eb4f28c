"""Documents of any number, made by whole arrays, of which a fixed share repeats others: what is found grows with the documents.

Of every ten documents three are a family: the second and the third are the first with a word changed. A document has lines of
twelve words; the last is one of a pool that has a twentieth as many lines as there are documents.

    document 10 k      its own words              a line of the pool
    document 10 k + 1  the same words, one changed   the same line
    document 10 k + 2  the same words, one changed   the same line
    the others         their own words            a line of the pool
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe import columns

_WORDS_PER_LINE, _OWN_LINES, _WORD_BYTES = 12, 5, 7
_VOCABULARY = 1 << 17
_CHUNK_DOCS, _ROW_GROUP_DOCS = 20_000, 2_000
_STEP = 7919
"""Documents are dealt out to places by multiples of this prime, so that families are spread over all files."""


def mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _drawn(seeds: np.ndarray, count: int) -> np.ndarray:
    """Words by the seed of each row: (num_rows, count) int64."""
    places = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed(seeds[:, None] * np.uint64(0xD1342543DE82EF95) + places) % np.uint64(_VOCABULARY)).astype(np.int64)


def families(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The document that each is made from, and its place in its family, 0 where it is itself; (num_docs,) uint64 both."""
    member = numbers % np.uint64(10)
    is_member = member < 3
    return np.where(is_member, numbers - member, numbers), np.where(is_member, member, 0)


def numbers_at(start: int, stop: int, num_docs: int) -> np.ndarray:
    """The documents at places [start, stop), (stop - start,) uint64."""
    return (np.arange(start, stop, dtype=np.uint64) * np.uint64(_STEP)) % np.uint64(num_docs)


def texts(numbers: np.ndarray, num_docs: int) -> pa.Array:
    """The documents of these numbers, 504 bytes each."""
    base, member = families(numbers)
    own = _drawn(base, _WORDS_PER_LINE * _OWN_LINES)
    changed = np.flatnonzero(member)
    places = (mixed(numbers[changed]) % np.uint64(own.shape[1])).astype(np.int64)
    own[changed, places] = _drawn(numbers[changed] + np.uint64(1 << 40), 1)[:, 0]
    pool = mixed(base + np.uint64(1 << 50)) % np.uint64(max(1, num_docs // 20)) + np.uint64(1 << 60)
    words = np.concatenate([own, _drawn(pool, _WORDS_PER_LINE)], axis=1)  # (num_docs, 72)
    digits = (words[:, :, None] >> np.arange(20, -1, -4)) & 15  # (num_docs, 72, 6)
    written = np.full((*words.shape, _WORD_BYTES), ord(" "), np.uint8)
    written[:, :, :-1] = np.frombuffer(b"ghijklmnopqrstuv", np.uint8)[digits]
    written[:, _WORDS_PER_LINE - 1 :: _WORDS_PER_LINE, -1] = ord("\n")
    offsets = np.arange(len(numbers) + 1, dtype=np.int64) * (words.shape[1] * _WORD_BYTES)
    return columns.texts_from(offsets, written.reshape(-1))


def _to_split_by(numbers: np.ndarray) -> dict[str, pa.Array]:
    """A topic of a thousand, and a score, of each document."""
    drawn = mixed(numbers + np.uint64(1 << 41))
    topics = pa.array((drawn % np.uint64(1000)).astype(np.int64)).cast(pa.string())
    return {"topic": topics, "score": pa.array(drawn.astype(np.float64) / 2.0**64)}


def write(folder: Path, num_docs: int, docs_per_file: int = 200_000, *, to_split: bool = False) -> Path:
    """Parquet files of `num_docs` documents, a number that the prime 7919 does not divide. `to_split`: with the columns
    "topic" and "score"."""
    folder.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([pa.field("text", pa.large_string())])
    if to_split:
        schema = schema.append(pa.field("topic", pa.string())).append(pa.field("score", pa.float64()))
    for first in range(0, num_docs, docs_per_file):
        with pq.ParquetWriter(folder / f"{first:010d}.parquet", schema, compression="lz4") as writer:
            last = min(num_docs, first + docs_per_file)
            for start in range(first, last, _CHUNK_DOCS):
                numbers = numbers_at(start, min(last, start + _CHUNK_DOCS), num_docs)
                rows = {"text": texts(numbers, num_docs), **(_to_split_by(numbers) if to_split else {})}
                writer.write_table(pa.table(rows, schema=schema), row_group_size=_ROW_GROUP_DOCS)
    return folder


def write_mixture(folder: Path, corpus: Path, stage: str, options: dict[str, object], execution: dict[str, str]) -> Path:
    """A mixture of one source with one stage, in `folder`; its output is `folder/out`."""
    folder.mkdir(parents=True, exist_ok=True)
    mixture = {
        "name": "scale",
        "output": str(folder / "out"),
        "sources": {"web": {"path": f"{corpus}/*.parquet"}},
        "stages": [{stage: options}],
        "tokenizer": {"train": {"vocab_size": 300}},
        "pack": {"sequence_length": 64},
        "execution": execution,
    }
    path = folder / "mixture.yaml"
    path.write_text(json.dumps(mixture), encoding="utf-8")  # JSON is YAML
    return path
