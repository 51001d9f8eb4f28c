"""Scores of models, and words of lists, become decisions, columns and shares."""

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from datapipe.errors import UserError
from datapipe.models.examples import Examples
from datapipe.models.fasttext_training import FastTextTrainer
from datapipe.stage import Filter
from datapipe.stage.base import KeptShare
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.models.classifier import open_classifier
from datapipe.stage.models.linear import LinearFile, file_bytes
from stages.filter._lists.word_lists import read_lists
from stages.filter.classifier import Classifier
from stages.filter.toxicity import Toxicity
from tests.support import corpora, runs
from tests.support.decisions import opened
from tests.support.fasttext_files import NEGATIVES, ONE_VS_ALL, SOFTMAX, TREE, LibraryModel, Recipe
from tests.support.global_stages import batch_of

TEXTS = ["the cat", "", "und der Hund", "ça va", "the and der", "word " * 50, "the"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    recipes = Recipe(labels=("0", "hq"), seed=1, scale=0.5), Recipe(labels=("hq", "0"), seed=2, scale=0.5)
    one, other = (recipe.write(folder / f"{number}.bin") for number, recipe in enumerate(recipes))
    return one, other


def _scores(path: Path, label: str, batch: DocumentBatch) -> list[float]:
    model = open_classifier(path)
    offsets, data = batch.buffers
    return model.scores(offsets[:-1], offsets[1:], data)[:, model.labels.index(label)].tolist()


def test_score_is_that_of_the_positive_label(models):
    batch = batch_of(TEXTS)
    for model in models:
        result = Classifier(model=model, score_column="quality").process(batch)
        assert result.columns["quality"].to_pylist() == _scores(model, "hq", batch)
        assert result.keep.all()
        assert result.value.tolist() == _scores(model, "hq", batch)
    negative = Classifier(model=models[0], label="0", score_column="quality").process(batch)
    assert negative.columns["quality"].to_pylist() == _scores(models[0], "0", batch)


def test_several_models_become_one_score_and_columns(models):
    batch, named = batch_of(TEXTS), dict(zip(("one", "other"), models))
    each = np.array([_scores(path, "hq", batch) for path in models])
    highest = Classifier(models=named, write_each=True, score_column="score").process(batch)
    assert {name: column.to_pylist() for name, column in highest.columns.items()} == {
        "score": each.max(axis=0).tolist(),
        "one": each[0].tolist(),
        "other": each[1].tolist(),
    }
    mean = Classifier(models=named, combine="mean", score_column="score").process(batch)
    assert mean.columns["score"].to_pylist() == pytest.approx(each.mean(axis=0).tolist())
    assert Classifier(models=named, write_each=True).writes == ("one", "other")


def test_bounds_drop_by_name_and_equal_scores_pass(models):
    batch = batch_of(TEXTS)
    scores = np.array(_scores(models[0], "hq", batch))
    low, high = np.unique(scores)[[1, -2]].tolist()
    result = Classifier(model=models[0], min_score=low, max_score=high).process(batch)
    assert result.rule.tolist() == np.where(scores < low, 0, np.where(scores > high, 1, -1)).tolist()
    assert {0, 1, -1} == set(result.rule.tolist())
    assert [rule.limit for rule in Classifier(model=models[0], keep_share=0.5).rules()] == [-math.inf, math.inf, -math.inf]


def test_only_the_first_characters_are_read(models):
    whole, beginning = batch_of(["ça va the cat and the dog"]), batch_of(["ça va"])
    one = Classifier(model=models[0], max_chars=5, score_column="score").process(whole)
    other = Classifier(model=models[0], score_column="score").process(beginning)
    assert one.columns["score"] == other.columns["score"]


@pytest.mark.parametrize(("written", "share"), [(0.29, Fraction(29, 100)), ("12.5%", Fraction(1, 8)), (1, Fraction(1))])
def test_share_is_the_decimal_number_that_was_written(models, written, share):
    assert Classifier.model_validate({"model": models[0], "keep_share": written}).kept_share() == KeptShare(share=share)


@pytest.mark.parametrize("loss", [TREE, NEGATIVES, SOFTMAX, ONE_VS_ALL])
def test_top_label_of_24_and_its_score_are_those_of_the_library(tmp_path: Path, loss: int) -> None:
    names = [f"topic {number}" for number in range(24)]
    path = Recipe(labels=names, loss=loss, seed=loss).write(tmp_path / "topics.bin")
    batch = batch_of([*TEXTS, "der der the", "ça ça"])
    result = opened(Classifier(model=path, label_column="topic", score_column="certainty")).process(batch)
    best, scores = LibraryModel(path, open_classifier(path).labels).best(*_parts(batch), 1)
    labels = [None if number < 0 else open_classifier(path).labels[number] for number in best[:, 0].tolist()]
    assert result.keep.all() and result.columns["topic"].to_pylist() == labels
    assert None in labels and len(set(labels)) > 2
    np.testing.assert_allclose(result.columns["certainty"].to_numpy(), scores[:, 0], atol=0.005)
    named = Classifier(model=path, label="topic 3", label_column="topic", score_column="certainty").process(batch)
    assert named.columns["topic"] == result.columns["topic"]
    assert named.columns["certainty"].to_pylist() == _scores(path, "topic 3", batch)
    least = float(np.median(scores))
    assert (
        Classifier(model=path, label_column="topic", min_score=least).process(batch).keep.tolist()
        == (result.columns["certainty"].to_numpy() >= least).tolist()
    )


def _parts(batch: DocumentBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    offsets, data = batch.buffers
    return offsets[:-1], offsets[1:], data


def _linear(path: Path, kind: Literal["classes", "number"], labels: tuple[str, ...]) -> Path:
    rng = np.random.default_rng(1)
    entries = rng.integers(-(1 << 31), 1 << 31, (1 << 10, len(labels))).astype(np.int32)
    entries = entries & ~0xFF | (entries[:, :1] & 0xFF)
    sizes: Any = {"word_bits": 10, "character_bits": 0, "scales": np.full(len(labels), 1e-9), "biases": np.zeros(len(labels))}
    path.write_bytes(file_bytes(LinearFile(kind=kind, labels=labels, entries=entries, **sizes)))
    return path


def test_top_label_of_a_linear_model_has_its_highest_score(tmp_path: Path) -> None:
    names, batch = tuple(f"topic {number}" for number in range(24)), batch_of(TEXTS)
    path = _linear(tmp_path / "topics.model", "classes", names)
    result = Classifier(model=path, label_column="topic", score_column="certainty").process(batch)
    every = np.array([_scores(path, name, batch) for name in names])
    assert result.columns["certainty"].to_pylist() == every.max(axis=0).tolist()
    assert result.columns["topic"].to_pylist() == [names[number] for number in every.argmax(axis=0)]


def test_label_column_without_a_meaning_is_refused(tmp_path: Path, models: tuple[Path, Path]) -> None:
    number = _linear(tmp_path / "number.model", "number", ("score",))
    for options, error in (
        ({"models": {"one": models[0]}, "label_column": "topic"}, "write a stage for each model"),
        ({"model": number, "label_column": "topic"}, "predicts a number and has no labels"),
        ({"model": models[0], "label_column": "a", "score_column": "a"}, "which is score_column too"),
    ):
        with pytest.raises(ValidationError, match=error):
            Classifier.model_validate(options)


@pytest.mark.medium
def test_topics_of_24_and_quality_are_columns_side_by_side_and_all_documents_stay(
    tmp_path: Path, models: tuple[Path, Path]
) -> None:
    rng, names = np.random.default_rng(1), tuple(f"topic-{number:02d}" for number in range(24))
    topics = rng.integers(0, 24, 600)
    texts = [" ".join(f"w{topic}x{word}" for word in rng.integers(0, 5, 12)) for topic in topics]
    known, targets = pa.array(texts[:400], pa.large_string()), topics[:400].astype(np.float64)
    examples = Examples(texts=known, targets=targets, labels=names, weights=np.ones(400))
    (tmp_path / "topics.bin").write_bytes(FastTextTrainer(dim=12, epochs=25, buckets=500, lr=0.5).train(examples))
    rows: list[Any] = [{"id": str(number), "text": text} for number, text in enumerate(texts[400:])]
    corpora.write_jsonl(tmp_path / "web.jsonl", rows)
    used = {"topic": tmp_path / "topics.bin", "quality": models[0]}
    stages = "".join(
        f"  - filter.classifier: {{as: {name}, model: {model}, label_column: {name}, score_column: {name}_score}}\n"
        for name, model in used.items()
    )
    path = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}\n", f"stages:\n{stages}", "tokenizer: none\n")
    run = runs.run_mixture(path, make_engine=runs.InProcess)
    rows = [row for file in run.snapshot.shards for row in pq.read_table(tmp_path / "out" / file.path).to_pylist()]
    assert len(rows) == 200 and not run.summary.total.documents.dropped
    assert np.mean([row["topic"] == names[topic] for row, topic in zip(rows, topics[400:])]) > 0.95
    assert all(0 < row["topic_score"] <= 1 and row["quality"] in ("0", "hq") and row["quality_score"] >= 0.5 for row in rows)


# ------------------------------------------------------------------------------------------------ toxicity


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
    batch = batch_of(["blorg 坏词"] * 4, language=pa.array(["en", "zh", "xx", None]))
    stage = Toxicity(lists=lists, language_column="language", mode="tag", write=True)
    assert stage.process(batch).columns["listed_words"].to_pylist() == [1, 1, 0, 0]
    assert stage.columns_read() == {"language": "language_column"}


def test_floor_of_hits_and_density_decide_together(lists):
    texts = ["blorg blorg", "blorg blorg blorg", "blorg blorg blorg" + " fine" * 97, "fine", "blorg " * 3 + "fine " * 27]
    result = Toxicity(lists=lists, drop_by_list=True, max_density=0.1, min_hits=3).process(batch_of(texts))
    assert result.keep.tolist() == [True, False, True, True, True]
    assert result.value[1] == 1.0
    tags = Toxicity(lists=lists, mode="tag", max_density=0.1, min_hits=3)  # whose measures are swept
    assert [(rule.name, rule.option, rule.limit) for rule in tags.rules()] == [("listed_words", "max_density", 0.1)]
    assert tags.process(batch_of(texts)).measured[0].tolist() == [0.0, 1.0, 0.03, 0.0, 0.1]


@pytest.fixture
def model(tmp_path) -> Path:
    return Recipe(labels=("0", "toxic"), seed=1, scale=0.5).write(tmp_path / "model.bin")


def test_lists_and_model_drop_what_fails_both_or_one(lists, model):
    batch = batch_of(["blorg the and", "the and der", "blorg und", "", "blorg the the the"])
    given: dict[str, Any] = {"lists": lists, "model": model, "min_hits": 1}
    stage = opened(Toxicity(**given, max_score=0.5, drop_if="either", write=True))
    assert set(stage.input_files()) == {str(model), *map(str, lists.values())}
    columns = stage.process(batch).columns
    listed = [hits > 0 for hits in columns["listed_words"].to_pylist()]
    scores = columns["toxicity_score"].to_pylist()
    assert len({(one, score > 0.5) for one, score in zip(listed, scores)}) > 2  # the texts tell the ways apart
    for limit in (0.5, min(score for one, score in zip(listed, scores) if one and score > 0.5)):  # an equal score passes
        scored = [score > limit for score in scores]
        either, both = (Toxicity(**given, max_score=limit, drop_if=way).process(batch).keep for way in ("either", "both"))
        assert either.tolist() == [not (one or other) for one, other in zip(listed, scored)]
        assert both.tolist() == [not (one and other) for one, other in zip(listed, scored)]
    at_density = Toxicity(**given, max_density=1 / 3, max_score=0.0)  # which the first text has
    assert at_density.process(batch).keep.tolist() == [True, True, False, True, True]
    alone = Toxicity(model=model, max_score=0.5)
    assert alone.process(batch).keep.tolist() == [score <= 0.5 for score in scores]
    assert [rule.name for rule in alone.rules()] == ["high_score"]


def test_notes_report_the_entries_and_those_that_are_never_found(lists):
    first, second = Toxicity(lists=lists, mode="tag").notes()
    assert "3 entries" in first and "🖕" in first
    assert "1 entry" in second


def test_one_long_line_is_searched_to_its_end(lists):
    assert _found(lists, "x" * 3_000_000 + " blorg")[0] == 1


# ------------------------------------------------------------------------------------------------ refusals

MANY = {f"l{number}": "LIST" for number in range(65)}


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        (Classifier, {}, "`model: FILE`"),
        (Classifier, {"model": "ONE", "models": {"a": "ONE"}, "min_score": 0.5}, "`model: FILE`"),
        (Classifier, {"model": "ONE"}, "min_score"),
        (Classifier, {"model": "ONE", "min_score": 0.5, "threshold_from": "runs/a"}, "threshold_from"),
        (Classifier, {"model": "ONE", "min_score": 0.5, "label": "hw"}, "'hw'.*'hq'"),
        (Classifier, {"models": {"a": "ONE"}, "min_score": 0.5, "label": {"b": "hq"}}, "'b'"),
        (Classifier, {"model": "FIVE", "min_score": 0.5}, "en, de, fr, zh, ga"),
        (Classifier, {"model": "absent.bin", "min_score": 0.5}, "absent.bin"),
        (Classifier, {"model": "ONE", "keep_share": 1.5}, "keep_share"),
        (Toxicity, {}, "`model` or `lists`"),
        (Toxicity, {"lists": {"en": "LIST"}}, "drop_by_list: true"),  # lists alone do not drop unless told to
        (Toxicity, {"model": "TOXIC", "language_column": "language"}, "language_column"),
        (Toxicity, {"model": "TOXIC", "label": "rude"}, "'rude'"),
        (Toxicity, {"model": "absent.bin"}, "absent.bin"),
        (Toxicity, {"lists": MANY, "mode": "tag"}, "65.*64"),
    ],
)
def test_options_that_do_not_fit_are_refused(models, model, lists, tmp_path, kind: type[Filter], options, named):
    paths = {"ONE": str(models[0]), "TOXIC": str(model), "LIST": str(lists["en"])}
    paths["FIVE"] = str(Recipe().write(tmp_path / "five.bin"))
    given = json.loads(re.sub("ONE|FIVE|TOXIC|LIST", lambda found: paths[found[0]], json.dumps(options)))
    with pytest.raises(ValidationError, match=named):
        kind.model_validate(given)


@pytest.mark.parametrize("content", [b"", "# only\n🖕\n".encode(), b"caf\xe9\n", None])
def test_lists_that_cannot_be_read_are_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"list\.txt"):
        read_lists({"en": tmp_path / "list.txt"})
