"""Stages that cut, in whole runs: the documents that come out are those of brute force, whatever a task may hold."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from datapipe.exchange.partitions import read_documents
from datapipe.metrics import TaskMetrics
from datapipe.plan.splits import file_hash
from datapipe.storage import Root
from tests.oracles import substring as substring_oracle
from tests.oracles import text_units as lines_oracle
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_TAIL = """
tokenizer: {train: {vocab_size: 300}}
pack: {sequence_length: 64}
execution: {split_bytes: 16KiB, bucket_bytes: 64KiB}
"""


def _texts() -> list[str]:
    """Pages of lines of words that repeat lines and longer passages of other pages. The text around such a passage is a page of
    its own, which the page would repeat if cut text were joined."""
    rng = random.Random(11)
    words = [f"w{number}" for number in range(400)]
    pages: list[list[str]] = []
    for _ in range(120):
        lines = [" ".join(rng.choices(words, k=rng.randint(3, 12))) + "." for _ in range(rng.randint(1, 12))]
        if pages and rng.random() < 0.6:
            other = rng.choice(pages)
            at = rng.randint(0, len(other))
            lines[rng.randint(0, len(lines)) :] = other[at : at + rng.randint(1, 8)]
        pages.append(lines)
    for number in range(4):
        passage, before, behind = (" ".join(f"{name}{number}x{n}" for n in range(25)) + "." for name in "pab")
        pages += [[passage], [before, passage, behind], [before[-70:], behind[:70]]]
    return ["\n".join(lines) for lines in pages]


def _removed(texts: list[str], stage: str) -> list[set[int]]:
    """Bytes to cut, by comparing all with all."""
    if stage == "dedup.substring":
        return substring_oracle.repeated([text.encode() for text in texts], False, 20, "first")
    seen: set[tuple[int, int]] = set()
    removed: list[set[int]] = [set() for _ in texts]
    for document, text in enumerate(texts):
        for start, stop, hashed in lines_oracle.units(text, "line", "ccnet", 1):
            removed[document].update(range(start, stop) if hashed in seen else ())
            seen.add(hashed)
    return removed


def _expected(texts: list[str], stage: str, max_removed_share: float) -> list[str]:
    left = []
    for text, removed in zip(texts, _removed(texts, stage)):
        if len(removed) <= max_removed_share * len(text.encode()):
            left.append(bytes(byte for at, byte in enumerate(text.encode()) if at not in removed).decode())
    return left


def _mixture(folder: Path, stages: str) -> Path:
    """The first pages are the source that comes first in the mixture and last by the keys of its documents."""
    texts, half = _texts(), 60
    corpora.write_jsonl(folder / "books/a.jsonl", [{"text": text} for text in texts[:half]])
    corpora.write_jsonl(folder / "web/a.jsonl", [{"text": text} for text in texts[half:]])
    assert file_hash("books", "a.jsonl") > file_hash("web", "a.jsonl")
    sources = "\n".join(f"  {name}: {{path: {folder}/{name}/*.jsonl}}" for name in ("books", "web"))
    return runs.write_mixture(folder, sources, stages=stages, tail=_TAIL)


def _documents(finished: runs.Finished, segment: str) -> list[str]:
    """The texts after a part of the cleaning, in the order of the sources."""
    root = Root(finished.mixture.output)
    steps = [step for name in ("books", "web") for step in finished.plan.of_kind("map", name) if step.id.endswith(segment)]
    outputs = [output for step in steps for output in step.outputs("documents")]
    return [text for batch in read_documents(root, outputs, TaskMetrics()) for text in batch.texts.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["dedup.lines", "dedup.substring", "dedup.substring by suffix array"])
def test_cuts_documents_of_a_run_are_those_of_brute_force_and_a_second_pass_cuts_none(stage: str, tmp_path: Path) -> None:
    name, _, method = stage.partition(" by ")
    options = "keep: source_order" + (", length: 20" if "substring" in name else "")
    options += ", method: suffix_array" if method else ""
    stages = f"stages:\n  - {name}: {{{options}, max_removed_share: 0.4}}\n  - {name}: {{{options}, as: again}}\n"
    finished = runs.run_mixture(_mixture(tmp_path, stages), make_engine=runs.InProcess)
    texts = _texts()
    expected = _expected(texts, name, 0.4)
    assert _documents(finished, f"apply-{name}") == expected
    assert 30 < len(expected) < len(texts)
    assert _documents(finished, "apply-again") == expected
    document_counts = [record.metrics.document_counts for record in finished.watcher.records]
    assert any(one.dropped[f"{name}:too_much_removed"] for one in document_counts)
    assert not any(counted.startswith("again:") and count for one in document_counts for counted, count in one.counts.items())
    if "substring" in name:
        assert any(_removed(expected, name)), "without cut points the second pass would cut something"
