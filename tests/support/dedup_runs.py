"""Runs of all four dedup stages over a corpus with duplicates for each of them, and their complete results.

    exact copies │ chains of pages that differ in two words │ repeated lines │ passages of other pages

Duplicates cross files and sources. Buckets are small, so every exchange has several, and components are computed in rounds.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipe.exchange.tables import read_documents, read_table
from datapipe.metrics import TaskMetrics
from datapipe.storage.root import Root
from tests.support import corpora, runs

FILES = {"web": ("a", "b", "c"), "books": ("x", "y")}
STAGES = """
stages:
  - dedup.exact
  - dedup.minhash: {size_column: copies, components_bytes: COMPONENTS}
  - dedup.lines
  - dedup.substring: {length: 20}
"""
IN_ROUNDS = STAGES.replace("COMPONENTS", "0")
AT_ONCE = STAGES.replace("COMPONENTS", "100000000")
TAIL = """
tokenizer:
  train: {vocab_size: 300, sample_bytes: 16KiB}
pack: {sequence_length: 64}
shards: {target_bytes: 64KiB}
execution: {split_bytes: 32KiB, bucket_bytes: 16KiB}
"""


def _words(rng: random.Random, count: int) -> list[str]:
    return [f"w{rng.randrange(2000)}" for _ in range(count)]


def _page(words: Sequence[str]) -> str:
    return "\n".join(" ".join(words[start : start + 10]) for start in range(0, len(words), 10))


def pages(seed: int, count: int) -> list[str]:
    """Pages of which about half repeat an earlier page in one of the four ways."""
    rng = random.Random(seed)
    earlier: list[list[str]] = []
    link = _words(rng, 150)
    lines = [_page(_words(rng, 10)) for _ in range(5)]
    texts: list[str] = []
    for _ in range(count):
        words, way = _words(rng, rng.randint(60, 200)), rng.random()
        if earlier and way < 0.1:
            words = rng.choice(earlier)
        elif earlier and way < 0.35:
            words = link = words if rng.random() < 0.08 else [*link]
            for _ in range(2):
                link[rng.randrange(len(link))] = f"other{rng.randrange(10**6)}"
        elif earlier and way < 0.45:
            start, other = rng.randint(0, 9), rng.choice(earlier)
            words[13:13] = other[start : start + 47]
        earlier.append(words)
        texts.append(_page(words) + ("\n" + rng.choice(lines) if rng.random() < 0.2 else ""))
    return texts


def write_corpus(folder: Path, num_pages: int = 150) -> Path:
    """Writes the files of both sources, with the pages distributed over all of them."""
    files = [(source, name) for source, names in FILES.items() for name in names]
    texts = pages(7, num_pages)
    for number, (source, name) in enumerate(files):
        own = [{"text": text} for text in texts[number :: len(files)]]
        corpora.write_jsonl(folder / source / f"{name}.jsonl", own)
    return folder


def write_mixture(folder: Path, corpus: Path, stages: str = IN_ROUNDS, is_reversed: bool = False) -> Path:
    """Writes a mixture in `folder` with the output `folder/out`.

    Args:
        is_reversed: whether files are listed from the last to the first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = ""
    for source, names in FILES.items():
        listed = [f"{corpus}/{source}/{name}.jsonl" for name in (reversed(names) if is_reversed else names)]
        sources += f"  {source}: {{path: [{', '.join(listed)}]}}\n"
    return runs.write_mixture(folder, sources, stages, TAIL)


@dataclass(frozen=True)
class Outcome:
    """The decisions and the output of a run.

    Attributes:
        drops: key, stage, rule, measured value and survivor of all stages, sorted.
        kept: text after all cuts and size of the cluster of each kept document, by key.
        shards: checksums by path.
    """

    drops: list[tuple[Any, ...]]
    kept: dict[bytes, tuple[str, int]]
    shards: dict[str, str]


def outcome(finished: runs.Finished) -> Outcome:
    """The decisions and the output of a finished run."""
    root = Root(finished.mixture.output)
    steps = finished.plan.of_kind("map")
    dropped = [output for step in steps for output in step.outputs("drops")]
    rows = [row for output in dropped for batch in read_table(root, output) for row in batch.to_pylist()]
    last = [output for name in FILES for output in finished.plan.of_kind("map", name)[-1].outputs("documents")]
    kept: dict[bytes, tuple[str, int]] = {}
    for batch in read_documents(root, last, TaskMetrics()):
        sizes = batch.record.column("copies").to_pylist()
        kept |= dict(zip(batch.keys.to_pylist(), zip(batch.texts.to_pylist(), sizes)))
    drops = sorted((row["key"], row["stage"], row["rule"], row["value"], row["survivor"] or b"") for row in rows)
    return Outcome(drops=drops, kept=kept, shards=finished.checksums)
