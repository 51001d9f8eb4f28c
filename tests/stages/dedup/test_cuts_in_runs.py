"""Stages that cut, in whole runs: the documents that come out are those of brute force, whatever a task may hold."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from datapipe.executor.partitions import read_documents
from datapipe.metrics import TaskMetrics
from datapipe.storage import Root
from tests import corpora, runs
from tests.oracles import substring as substring_oracle
from tests.oracles import text_units as lines_oracle

_TAIL = """
tokenizer: {train: {vocab_size: 300}}
pack: {sequence_length: 64}
execution: {split_bytes: 16KiB, bucket_bytes: 64KiB}
"""


def _texts() -> list[str]:
    """Pages of lines of words, in which lines and longer passages of other pages come again."""
    rng = random.Random(11)
    words = [f"w{number}" for number in range(400)]
    pages: list[list[str]] = []
    for _ in range(150):
        lines = [" ".join(rng.choices(words, k=rng.randint(3, 12))) + "." for _ in range(rng.randint(1, 12))]
        if pages and rng.random() < 0.6:
            other = rng.choice(pages)
            at = rng.randint(0, len(other))
            lines[rng.randint(0, len(lines)) :] = other[at : at + rng.randint(1, 8)]
        pages.append(lines)
    return ["\n".join(lines) for lines in pages]


def _gone(texts: list[str], stage: str) -> list[set[int]]:
    """Bytes that go, by comparing all with all."""
    if stage == "dedup.substring":
        return substring_oracle.repeated([text.encode() for text in texts], False, 20, "first")
    seen: set[tuple[int, int]] = set()
    gone: list[set[int]] = [set() for _ in texts]
    for document, text in enumerate(texts):
        for start, stop, hashed in lines_oracle.units(text, "line", "ccnet", 1):
            gone[document].update(range(start, stop) if hashed in seen else ())
            seen.add(hashed)
    return gone


def _expected(texts: list[str], stage: str, max_removed_share: float) -> list[str]:
    left = []
    for text, gone in zip(texts, _gone(texts, stage)):
        if len(gone) <= max_removed_share * len(text.encode()):
            left.append(bytes(byte for at, byte in enumerate(text.encode()) if at not in gone).decode())
    return left


@pytest.mark.parametrize("stage", ["dedup.lines", "dedup.substring", "dedup.substring by suffix array"])
def test_cuts_documents_of_a_run_are_those_of_brute_force(stage: str, tmp_path: Path) -> None:
    name, _, method = stage.partition(" by ")
    texts = _texts()
    corpora.write_jsonl(tmp_path / "web/a.jsonl", [{"text": text} for text in texts])
    options = "max_removed_share: 0.4" + (", length: 20" if "substring" in name else "")
    options += ", method: suffix_array" if method else ""
    stages = f"stages:\n  - {name}: {{{options}}}\n"
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl}}", stages=stages, tail=_TAIL)
    finished = runs.run_mixture(mixture, make_engine=runs.InProcess)
    (step,) = [step for step in finished.plan.of_kind("map", "web") if step.id.endswith("clean-1")]
    batches = read_documents(Root(finished.mixture.output), step.outputs("documents"), TaskMetrics())
    expected = _expected(texts, name, 0.4)
    assert [text for batch in batches for text in batch.texts.to_pylist()] == expected
    assert 30 < len(expected) < len(texts)
    assert any(record.metrics.books.dropped[f"{name}:too_much_removed"] for record in finished.watcher.records)
