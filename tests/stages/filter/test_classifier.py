"""Scores of models become decisions, columns and shares."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from datapipe.stage.documents import DocumentBatch
from datapipe.stage.models.classifier import open_classifier
from datapipe.stage.ranking import KeptShare
from stages.filter.classifier import Classifier
from tests.support import runs
from tests.support.fasttext_files import Recipe
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


def test_bounds_drop_by_name(models):
    batch = batch_of(TEXTS)
    scores = np.array(_scores(models[0], "hq", batch))
    low, high = np.quantile(scores, [0.3, 0.7]).tolist()
    result = Classifier(model=models[0], min_score=low, max_score=high).process(batch)
    assert result.rule.tolist() == np.where(scores < low, 0, np.where(scores > high, 1, -1)).tolist()
    assert [rule.limit for rule in Classifier(model=models[0], keep_share=0.5).rules()] == [-math.inf, math.inf, -math.inf]


def test_only_the_first_characters_are_read(models):
    whole, beginning = batch_of(["ça va the cat and the dog"]), batch_of(["ça va"])
    one = Classifier(model=models[0], max_chars=5, score_column="score").process(whole)
    other = Classifier(model=models[0], score_column="score").process(beginning)
    assert one.columns["score"] == other.columns["score"]


@pytest.mark.parametrize(("written", "share"), [(0.29, Fraction(29, 100)), ("12.5%", Fraction(1, 8)), (1, Fraction(1))])
def test_share_is_the_decimal_number_that_was_written(models, written, share):
    assert Classifier.model_validate({"model": models[0], "keep_share": written}).kept_share() == KeptShare(share=share)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "`model: FILE`"),
        ({"model": "ONE", "models": {"a": "ONE"}, "min_score": 0.5}, "`model: FILE`"),
        ({"model": "ONE"}, "min_score"),
        ({"model": "ONE", "min_score": 0.5, "threshold_from": "runs/a"}, "threshold_from"),
        ({"model": "ONE", "min_score": 0.5, "label": "hw"}, "'hw'.*'hq'"),
        ({"models": {"a": "ONE"}, "min_score": 0.5, "label": {"b": "hq"}}, "'b'"),
        ({"model": "FIVE", "min_score": 0.5}, "en, de, fr, zh, ga"),
        ({"model": "absent.bin", "min_score": 0.5}, "absent.bin"),
        ({"model": "ONE", "keep_share": 1.5}, "keep_share"),
    ],
)
def test_options_that_do_not_fit_are_refused(models, tmp_path, options, named):
    paths = {"ONE": str(models[0]), "FIVE": str(Recipe().write(tmp_path / "five.bin"))}
    given = json.loads(re.sub("ONE|FIVE", lambda found: paths[found[0]], json.dumps(options)))
    with pytest.raises(ValidationError, match=named):
        Classifier.model_validate(given)


@pytest.mark.medium
def test_share_of_a_source_is_kept_with_the_highest_scores(models, tmp_path):
    rows = [{"text": f"{text} {number}"} for number in range(30) for text in TEXTS]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stages = f"stages:\n  - filter.classifier: {{model: {models[0]}, keep_share: 30%, score_column: quality}}\n"
    path = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/a.jsonl}}\n", stages, "tokenizer: none\n")
    run = runs.run_mixture(path, make_engine=runs.InProcess)
    files = sorted(Path(run.mixture.output, "documents").rglob("*.parquet"))
    kept = pa.concat_tables([pq.read_table(file) for file in files]).column("quality").to_pylist()
    highest = sorted(_scores(models[0], "hq", batch_of([row["text"] for row in rows])))[-len(rows) * 30 // 100 :]
    assert sorted(kept) == highest
    found = run.report["thresholds"]["web"]["filter.classifier"]
    assert (found["share"], found["threshold"]) == (0.3, min(kept))
