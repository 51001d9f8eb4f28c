"""What is wrong with a validation split is told: nothing is in it, or texts that training has, too."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.engine import held_out
from datapipe.plan.splits import file_hash
from datapipe.rng import below_fraction, keyed_hash, seed_for
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

TAIL = "validation: %s\ntokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 32}\n"


def _run(folder: Path, texts: dict[str, list[str]], share: str, stages: str = "[]", more: str = "") -> runs.Finished:
    for name, own in texts.items():
        corpora.write_jsonl(folder / f"{name}/0.jsonl", [{"text": text} for text in own])
    sources = "".join(f"  {name}: {{path: {folder}/{name}/*.jsonl}}\n" for name in texts)
    return runs.run_mixture(
        runs.write_mixture(folder, sources, f"stages: {stages}", TAIL % share + more), make_engine=runs.InProcess
    )


def _of_kind(finished: runs.Finished, kind: str) -> list[dict[str, Any]]:
    return [warning for warning in json.loads(json.dumps(finished.report["warnings"])) if warning["kind"] == kind]


def _texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [corpora.prose(rng, 12) for _ in range(count)]


def _held_out(folder: Path, name: str, share: float) -> tuple[list[str], list[str]]:
    """The texts of a source that are trained on, and those that are held out."""
    content = (folder / f"{name}/0.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    positions = np.cumsum([0, *map(len, lines)])[:-1].astype(np.uint64)
    hashes = np.full(len(lines), file_hash(name, "0.jsonl"), np.uint64)
    chosen = below_fraction(keyed_hash((hashes, positions), seed_for(3, "validation")), share)
    texts = [json.loads(line)["text"] for line in lines]
    return (
        [text for text, is_out in zip(texts, chosen) if not is_out],
        [text for text, is_out in zip(texts, chosen) if is_out],
    )


@pytest.mark.parametrize("most_texts", [1 << 25, 60], ids=["all", "a sample"])
def test_texts_that_training_has_too_are_told_with_the_numbers(tmp_path: Path, most_texts: int, monkeypatch) -> None:
    """Against sets of texts; in several ranges of hashes, and in a sample."""
    monkeypatch.setattr(held_out, "MOST_TEXTS", most_texts)
    monkeypatch.setattr(held_out, "_RANGE_TEXTS", 16)
    shared = _texts(30)
    texts = {"a": [*_texts(60, 1), *shared, "", ""], "b": [*_texts(40, 2), *shared, *shared[:5], "", ""], "c": _texts(30, 3)}
    finished = _run(tmp_path, texts, "30%", more="execution: {split_bytes: 4KiB}\n")
    told = {warning["source"]: warning for warning in _of_kind(finished, "held_out_copies")}
    assert set(told) == {"a", "b"}
    training = {name: set(_held_out(tmp_path, name, 0.3)[0]) - {""} for name in texts}
    for name, warning in told.items():
        compared = [text for text in _held_out(tmp_path, name, 0.3)[1] if text]
        copies = [text for text in compared if any(text in own for own in training.values())]
        if most_texts == 60:
            assert 0 < warning["copied"] <= warning["compared"] < len(compared)
            assert warning["is_sample"]
            continue
        sources = [other for other, own in training.items() if own & set(copies)]
        assert (warning["copied"], warning["training_sources"]) == (len(copies), sources)
        assert (warning["compared"], warning["is_sample"]) == (len(compared), False)
        document, position = warning["document"].rsplit(":", 1)
        assert document == f"{name}/0.jsonl"
        line = (tmp_path / document).read_bytes()[int(position) :].splitlines()[0]
        assert json.loads(line)["text"] in copies


def test_texts_without_copies_are_not_told(tmp_path: Path) -> None:
    shared = _texts(40)
    assert _of_kind(_run(tmp_path, {"a": shared, "b": shared}, "20%", "[dedup.exact]"), "held_out_copies") == []


@pytest.mark.parametrize(
    ("texts", "share", "sources", "facts"),
    [
        ({"a": 30, "b": 3}, "0.001%", ["a", "b"], ["none of 33 documents", "`validation: 30.4%` would hold out about 10"]),
        ({"a": 30, "b": 3}, "0", None, []),
        ({"a": 200, "small": 1}, "5%", ["small"], ["`validation: 50%` would hold out about 1"]),
    ],
)
def test_share_that_holds_out_nothing_of_a_source_is_told_with_one_that_does(
    tmp_path: Path, texts, share, sources, facts
) -> None:
    done = _run(tmp_path, {name: _texts(count, number) for number, (name, count) in enumerate(texts.items())}, share)
    told = _of_kind(done, "nothing_held_out")
    assert [warning.get("sources") or [warning["source"]] for warning in told] == ([sources] if sources else [])
    assert all(fact in warning["text"] for warning in told for fact in facts)
