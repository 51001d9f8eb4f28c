"""Runs of a source that is split: a crawl in 40 languages through two stages to a grid, and its slow oracle.

A document's language and topic are kept fields, and its quality is the score of a small random model. A few documents have no
language, and a few appear twice.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.columns import matrix_halves
from datapipe.rng import keyed_hash, seed_for, shuffle_hash
from datapipe.shards.manifest import Snapshot
from datapipe.snapshots.export.export import shard_batches
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.fasttext_files import Recipe

LANGUAGES = [f"{first}{second}" for first in "abcdefgh" for second in "klmno"]
TOPICS = ("science", "sport", "a/b")
PARTS = 4  # of the quality
SEED = 3

SPLIT = f"""
      by: [language, topic, {{column: quality, quantiles: {PARTS}}}]
      repeat: {{"*/*/3": 2.5, "*/*/0": 0.5, "ak/*/3": 1.25}}
      weights: {{default: 1, "*/science/3": 3}}
"""
TAIL = """
validation: 5%
tokenizer: {train: {vocab_size: 300, sample_bytes: 64KiB}}
pack: {sequence_length: [32, 64]}
shards: {target_bytes: 16KiB}
execution: {split_bytes: 32KiB, bucket_bytes: 32KiB, check_disk: false}
"""


def write_corpus(folder: Path, numbers: Sequence[int] = range(4), count: int = 80) -> None:
    for number in numbers:
        rng = random.Random(number)
        documents: list[dict[str, Any]] = []
        for position in range(count):
            language = LANGUAGES[min(int(rng.expovariate(0.05)), len(LANGUAGES) - 1)]
            text = documents[-1]["text"] if documents and rng.random() < 0.05 else corpora.prose(rng, rng.randint(5, 60))
            known = {"id": f"{number}-{position}", "text": f"{language} {text}", "topic": rng.choice(TOPICS)}
            documents.append(known | ({"language": language} if rng.random() < 0.98 else {}))
        corpora.write_jsonl(folder / f"crawl/{number}.jsonl", documents)


def write_mixture(folder: Path, corpus: Path, split: str = SPLIT, tail: str = TAIL, name: str = "mixture.yaml") -> Path:
    model = Recipe(labels=("0", "hq")).write(folder / "quality.bin")
    source = f"  crawl:\n    path: {corpus}/crawl/*.jsonl\n    keep: [language, topic]\n    split:{split}"
    stages = f"stages: [dedup.exact, filter.classifier: {{model: {model}, score_column: quality}}]"
    return runs.write_mixture(folder, source, stages, tail, name)


class Kept:
    """What a source keeps, with the scores of its documents, by key."""

    def __init__(self, root: Root, finished: runs.Finished) -> None:
        from datapipe.exchange.tables import read_documents
        from datapipe.metrics import TaskMetrics

        step = finished.plan.of_kind("map", "crawl")[-1]
        files = [file for record in step.records for file in record.outputs["documents"]]
        self.documents: dict[bytes, dict[str, Any]] = {}
        for batch in read_documents(root, files, TaskMetrics()):  # pyright: ignore[reportArgumentType]
            for row in batch.record.to_pylist():
                self.documents[row["key"]] = row

    def cells(self) -> dict[bytes, str]:
        """The cell of each document, by sorting all of them by their score and the keyed hash that decides between equals."""
        ties = seed_for(SEED, "split", "quality")
        ranked = sorted(self.documents, key=lambda key: (self.documents[key]["quality"], _hash(keyed_hash, key, ties)))
        whole = len(ranked)
        found: dict[bytes, str] = {}
        for place, key in enumerate(ranked):
            # a part begins where at most its share of the documents, rounded down, is left
            part = sum(whole - place <= Fraction(PARTS - number, PARTS) * whole // 1 for number in range(1, PARTS))
            row = self.documents[key]
            found[key] = f"{row['language'] or 'none'}/{row['topic'].replace('/', '%2F')}/{part}"
        return found


def is_again(key: bytes, times: Fraction) -> bool:
    """Whether an epoch has a document once more than the whole number of times."""
    return (_hash(shuffle_hash, key, SEED) >> 14) < (times % 1) * 2**50


def shuffled(key: bytes) -> int:
    """The position of a document in the shuffle of a source with cells."""
    return _hash(shuffle_hash, key, SEED) >> 14


def repeat_of(cell: str) -> Fraction:
    language, _, part = cell.split("/")
    return (
        Fraction(5, 4) if (language, part) == ("ak", "3") else {"3": Fraction(5, 2), "0": Fraction(1, 2)}.get(part, Fraction(1))
    )


def _hash(of: Any, key: bytes, seed: int) -> int:
    return int(of(matrix_halves(np.frombuffer(key, np.uint8).reshape(1, 16)), seed)[0])


def in_shards(
    root: Root, snapshot: Snapshot, length: int
) -> tuple[dict[tuple[str, bool], set[bytes]], Counter[str], set[bytes]]:
    """By cell, and whether an epoch has them once more: the documents of training rows; the tokens of each cell; and the
    documents of validation rows."""
    rows_of = snapshot.of_length(length)
    cells = rows_of.sources["crawl"].cells
    assert cells is not None
    found: dict[tuple[str, bool], set[bytes]] = defaultdict(set)
    tokens, held_out = Counter[str](), set[bytes]()
    for entry in rows_of.shards:
        rows = [row for batch in shard_batches(root, rows_of, (entry,)) for row in batch.to_pylist()]
        if entry.split == "validation":
            assert entry.cells is None
            held_out.update(key for row in rows for key in row["keys"])
            continue
        assert entry.cells is not None
        assert entry.hashes is None
        for run in entry.cells:
            own, rows = rows[: run.rows], rows[run.rows :]
            found[cells.names[run.cell], run.again].update(key for row in own for key in row["keys"])
            assert sum(sum(row["lengths"]) for row in own) == run.tokens
            assert sum(start == 0 for row in own for start in row["starts"]) == run.documents
            tokens[cells.names[run.cell]] += run.tokens
        assert rows == []
    return found, tokens, held_out
