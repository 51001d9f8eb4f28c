"""Words of lists and scores of a model become decisions, by lists alone only where that is asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from datapipe.errors import UserError
from datapipe.stage.documents import DocumentBatch
from stages.filter._lists.word_lists import read_lists
from stages.filter.toxicity import Toxicity
from tests.support.decisions import opened
from tests.support.fasttext_files import Recipe
from tests.support.global_stages import batch_of


@pytest.fixture
def lists(tmp_path) -> dict[str, Path]:
    (tmp_path / "en.txt").write_text("\ufeff# invented words\nblorg\r\nsnarf wobble\n\nblorg\nfée\n🖕\n", encoding="utf-8")
    (tmp_path / "zh.txt").write_text("坏词\n", encoding="utf-8")
    return {"en": tmp_path / "en.txt", "zh": tmp_path / "zh.txt"}


def _found(lists: dict[str, Path], text: str) -> tuple[int, float]:
    result = Toxicity(lists=lists, mode="tag", write=True).process(batch_of([text]))
    return result.columns["listed_words"][0].as_py(), round(result.columns["listed_density"][0].as_py(), 6)


@pytest.mark.parametrize(
    ("text", "hits", "density"),
    [
        ("a blorg b", 1, 1 / 3),
        ("BLORG! Blorg? «blorg»", 3, 1.0),
        ("blorgs ablorg blor g", 0, 0.0),
        ("snarf\n\t wobble snarf, wobble snarf", 2, 0.8),
        ("une f\u00e9e et une FE\u0301E", 2, 2 / 5),
        ("blorg\u200b and bl\u00adorg", 2, 2 / 3),
        ("这个坏词在这里", 1, 2 / 7),
        ("b\u0301lorg blorg\u0301", 0, 0.0),
        ("🖕 \ufffd", 0, 0.0),
        ("", 0, 0.0),
        (" \n", 0, 0.0),
    ],
)
def test_words_are_found_between_boundaries_in_any_case_and_script(lists, text, hits, density):
    assert _found(lists, text) == (hits, pytest.approx(density, abs=1e-6))


def test_only_the_list_of_the_language_counts(lists):
    record = batch_of(["blorg 坏词"] * 4).record
    languages = pa.array(["en", "zh", "xx", None])
    batch = DocumentBatch(record.append_column("language", languages))
    stage = Toxicity(lists=lists, language_column="language", mode="tag", write=True)
    assert stage.process(batch).columns["listed_words"].to_pylist() == [1, 1, 0, 0]
    assert stage.columns_read() == {"language": "language_column"}


def test_floor_of_hits_and_density_decide_together(lists):
    texts = ["blorg blorg", "blorg blorg blorg", "blorg blorg blorg" + " fine" * 97, "fine"]
    result = Toxicity(lists=lists, drop_by_list=True, max_density=0.1, min_hits=3).process(batch_of(texts))
    assert result.keep.tolist() == [True, False, True, True]
    assert result.value[1] == 1.0
    tags = Toxicity(lists=lists, mode="tag", max_density=0.1, min_hits=3)  # whose measures are swept
    assert [(rule.name, rule.option, rule.limit) for rule in tags.rules()] == [("listed_words", "max_density", 0.1)]
    assert tags.process(batch_of(texts)).measured[0].tolist() == [0.0, 1.0, 0.03, 0.0]


@pytest.fixture
def model(tmp_path) -> Path:
    return Recipe(labels=("0", "toxic"), seed=1, scale=0.5).write(tmp_path / "model.bin")


def test_lists_and_model_drop_what_fails_both_or_one(lists, model):
    texts = ["blorg the and", "the and der", "blorg und", "", "blorg the the the"]
    batch = batch_of(texts)
    stage = Toxicity(lists=lists, model=model, min_hits=1, max_score=0.5, drop_if="either", write=True)
    assert set(stage.input_files()) == {str(model), *map(str, lists.values())}
    either = opened(stage).process(batch)
    both = Toxicity(lists=lists, model=model, min_hits=1, max_score=0.5).process(batch)
    listed = [hits > 0 for hits in either.columns["listed_words"].to_pylist()]
    scored = [score > 0.5 for score in either.columns["toxicity_score"].to_pylist()]
    assert len({(one, other) for one, other in zip(listed, scored)}) > 2  # the texts tell the ways apart
    assert either.keep.tolist() == [not (one or other) for one, other in zip(listed, scored)]
    assert both.keep.tolist() == [not (one and other) for one, other in zip(listed, scored)]
    assert [rule.name for rule in Toxicity(model=model).rules()] == ["high_score"]


def test_lists_alone_do_not_drop_unless_told_to(lists):
    with pytest.raises(ValidationError, match="drop_by_list: true"):
        Toxicity(lists=lists)
    assert Toxicity(lists=lists, mode="tag").rules()[0].name == "listed_words"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "`model` or `lists`"),
        ({"model": "MODEL", "language_column": "language"}, "language_column"),
        ({"model": "MODEL", "label": "rude"}, "'rude'"),
        ({"model": "absent.bin"}, "absent.bin"),
        ({"lists": {f"l{number}": "LIST" for number in range(65)}, "mode": "tag"}, "65.*64"),
    ],
)
def test_options_that_do_not_fit_are_refused(lists, model, options, named):
    paths = {"MODEL": str(model), "LIST": str(lists["en"])}
    given = json.loads(re.sub("MODEL|LIST", lambda found: paths[found[0]], json.dumps(options)))
    with pytest.raises(ValidationError, match=named):
        Toxicity.model_validate(given)


@pytest.mark.parametrize("content", [b"", "# only\n🖕\n".encode(), b"caf\xe9\n", None])
def test_lists_that_cannot_be_read_are_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"list\.txt"):
        read_lists({"en": tmp_path / "list.txt"})


def test_notes_tell_the_entries_and_those_that_are_never_found(lists):
    first, second = Toxicity(lists=lists, mode="tag").notes()
    assert "en: 3 entries" in first
    assert "🖕" in first
    assert "zh: 1 entry" in second


def test_one_long_line_is_searched_to_its_end(lists):
    assert _found(lists, "x" * 3_000_000 + " blorg")[0] == 1
