"""Distributions of runs: every document counted once, on its side of the threshold, whatever cut the source into tasks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from datapipe.inspect.distributions import distributions
from datapipe.storage import Root
from tests.support import runs

pytestmark = pytest.mark.medium

TAIL = """
tokenizer: none
execution: {split_bytes: SPLITBYTES, bucket_bytes: 16KiB}
"""
STAGES = """
stages:
  - filter.length: {min_chars: 100, max_chars: 1000MODE}
  - dedup.exact
"""


def _write(folder: Path) -> list[int]:
    """Documents of random lengths, every tenth a copy of the one before. Returns the lengths."""
    rng = random.Random(5)
    texts = ["x" * rng.choice([20, 99, 100, 101, 500, rng.randrange(1500)]) + str(number) for number in range(400)]
    texts = [texts[number - 1] if number % 10 == 0 and number else text for number, text in enumerate(texts)]
    (folder / "web").mkdir()
    for number in range(2):
        lines = [json.dumps({"text": text}) for text in texts[number::2]]
        (folder / f"web/{number}.jsonl").write_text("\n".join(lines) + "\n")
    return [len(text) for text in texts]


def _distributions(folder: Path, split_bytes: str = "1MiB", mode: str = "", **how: Any) -> dict[str, Any]:
    source = f"  web: {{path: {folder}/web/*.jsonl}}\n"
    tail = TAIL.replace("SPLITBYTES", split_bytes)
    path = runs.write_mixture(folder, source, STAGES.replace("MODE", mode), tail, f"{split_bytes}.yaml")
    run = runs.run_mixture(path, output=folder / f"out-{split_bytes}{bool(mode)}", make_engine=runs.InProcess, **how)
    return distributions(Root(run.mixture.output), run.plan.steps, lambda key: key.hex())


def test_every_document_is_counted_on_its_side_of_the_threshold(tmp_path: Path) -> None:
    lengths = _write(tmp_path)

    found = _distributions(tmp_path)

    rules = found["measured"]["web"]["filter.length"]
    too_few, too_many = rules["too_few_chars"], rules["too_many_chars"]
    assert too_few["passed"] == sum(length >= 100 for length in lengths)
    assert too_few["failed"] == too_few["dropped"] == sum(length < 100 for length in lengths)
    assert too_many["failed"] == sum(length > 1000 for length in lengths)
    assert too_few["passed_bytes"] == sum(length for length in lengths if length >= 100)
    assert (too_few["threshold"], too_few["side"], too_few["option"]) == (100, "min", "min_chars")
    for rule in (too_few, too_many):
        assert sum(passed for _, _, passed, _ in rule["bins"]) == rule["passed"]
        assert sum(failed for _, _, _, failed in rule["bins"]) == rule["failed"]
        assert len(rule["bins"]) <= 64
    for low, high, passed, failed in too_few["bins"]:
        inside = [length for length in lengths if low <= length < high]
        assert (passed, failed) == (sum(length >= 100 for length in inside), sum(length < 100 for length in inside))
    read, kept = found["lengths"]["web"]["read"], found["lengths"]["web"]["kept"]
    assert (sum(row[2] for row in read), sum(row[3] for row in read)) == (len(lengths), sum(lengths))
    assert (
        sum(row[2] for row in kept)
        == sum(100 <= length <= 1000 for length in lengths) - found["clusters"]["dedup.exact"]["dropped"]
    )


def test_the_borderline_documents_are_the_nearest_on_either_side(tmp_path: Path) -> None:
    lengths = _write(tmp_path)

    near = _distributions(tmp_path)["measured"]["web"]["filter.length"]["too_few_chars"]["borderline"]

    kept = sorted(length for length in lengths if 100 <= length <= 1000)[:10]
    dropped = sorted((length for length in lengths if length < 100), reverse=True)[:10]
    assert [document["value"] for document in near["kept"]] == kept
    assert [document["value"] for document in near["dropped"]] == dropped


def test_distributions_do_not_depend_on_splits(tmp_path: Path) -> None:
    _write(tmp_path)

    assert _distributions(tmp_path, "4KiB") == _distributions(tmp_path, "1MiB")
