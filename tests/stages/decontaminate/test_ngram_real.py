"""decontaminate.ngram on real benchmarks, planted into real prose and searched for in prose as it is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import zstandard

from stages.decontaminate._evaluation_files import Benchmark, Item, read_set
from stages.decontaminate.ngram import Ngram
from tests.support.evaluation_files import batch, found

pytestmark = pytest.mark.real

MOST_UNDETECTABLE = 0.02
FORMS: dict[str, Callable[[str], str]] = {
    "capitals": str.upper,
    "a line for each word": lambda text: "\n".join(text.split()),
    "no punctuation but underscores": lambda text: "".join(c for c in text if c.isalnum() or c.isspace() or c == "_"),
}


@lru_cache(maxsize=2)
def _stage(against: str, profile: str) -> Ngram:
    """The stage with its index, which takes two seconds to build."""
    return Ngram.model_validate({"against": (against,), "profile": profile})


@pytest.fixture(scope="module")
def prose(real_data: Path) -> list[str]:
    texts = []
    for path in sorted((real_data / "prose").glob("*.jsonl.zst")):
        with zstandard.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    return texts


@pytest.fixture(scope="module")
def against(real_data: Path) -> str:
    return str(real_data / "benchmarks" / "*")


@pytest.mark.parametrize("profile", ["strict", "coverage"])
@pytest.mark.parametrize("form", FORMS)
def test_every_item_of_real_benchmarks_is_found_or_listed(form: str, profile: str, against: str, prose: list[str]) -> None:
    stage = _stage(against, profile)
    lost = {listed.name: set(listed.undetectable) for listed in stage.searched_lists()}
    items = [(each.name, item) for each in map(read_set, Benchmark(path=against).sets()) for item in each.items]
    assert sum(map(len, lost.values())) < MOST_UNDETECTABLE * len(items)
    rng, long = random.Random(11), [text for text in prose if len(text) > 900]
    texts = [_planted(FORMS[form], item, rng.choice(long)) for _, item in items]
    told = found(stage.process(batch(texts)))
    missed = [(name, item.name) for (name, item), names in zip(items, told) if item.name not in names]
    assert [(name, item) for name, item in missed if item not in lost[name]] == []


def _planted(form: Callable[[str], str], item: Item, text: str) -> str:
    return f"{text[:400]}\n{form(f'{item.question} {item.answer}')}\n{text[400:800]}"


@pytest.mark.parametrize("profile", ["strict", "coverage"])
def test_real_prose_is_clean_but_for_quotations(profile: str, against: str, prose: list[str]) -> None:
    stage = _stage(against, profile)
    contaminated = [names for names in found(stage.process(batch(prose))) if names]
    assert len(contaminated) <= 0.001 * len(prose)
