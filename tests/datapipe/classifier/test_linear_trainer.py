"""Linear models are trained to the optimum of their loss, the same bytes each time."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datapipe.classifier.linear_trainer import LinearTrainer
from datapipe.classifier.metrics import ranking
from datapipe.classifier.training import Examples
from datapipe.columns import text_buffers
from datapipe.stage.models import linear
from datapipe.stage.models.classifier import open_classifier
from tests.benchmarks.classifiers import ours
from tests.oracles import case_folding
from tests.oracles import linear as oracle
from tests.support.labelled_sets import NUM_FOLDS, labelled_sets

LIBLINEAR = {("talk", False): 0.915, ("talk", True): 0.933, ("hatecheck", False): 0.748, ("hatecheck", True): 0.801}
LIBLINEAR |= {("dclm", False): 0.852, ("dclm", True): 0.865, ("onestop", False): 0.986, ("onestop", True): 0.992}
LIBLINEAR |= {("web", False): 0.997}
"""AUC of hashed TF-IDF and liblinear on the same folds, with and without characters, by `tests/benchmarks/classifiers.py`."""

_WORDS = {
    "good": ["calm", "clear", "kind", "true", "plain"],
    "bad": ["loud", "spam", "buy", "click", "now"],
    "other": ["uno", "dos", "tres"],
}


def _examples(number: int, labels: tuple[str, ...], seed: int = 1) -> Examples:
    """Texts of words that all labels share, with some of their own."""
    rng, shared = random.Random(seed), ["the", "of", "a", "and", "to", "in", "it"]
    targets = [rng.randrange(len(labels)) for _ in range(number)]
    own = [rng.choices(_WORDS[labels[target]], k=rng.randint(0, 2)) for target in targets]
    texts = [" ".join(rng.choices(shared, k=8) + words) for words in own]
    return Examples(
        texts=pa.array(texts, pa.large_string()),
        targets=np.array(targets, float),
        labels=labels,
        weights=np.array([rng.choice([0.5, 1.0, 2.0]) for _ in targets]),
    )


def _numbers(examples: Examples) -> Examples:
    """Targets that are the number of words of the first label, from 0 to 2."""
    words = [sum(word in _WORDS["good"] for word in text.split()) for text in examples.texts.to_pylist()]
    return replace(examples, targets=np.array(words, float), labels=("number",), predicts_number=True)


def _scores(tmp_path: Path, content: bytes, texts: pa.Array) -> np.ndarray:
    (tmp_path / "model").write_bytes(content)
    offsets, data = text_buffers(texts)
    return open_classifier(tmp_path / "model").scores(offsets[:-1].copy(), offsets[1:].copy(), data)


def _vectors(texts: list[str], bits: int) -> np.ndarray:
    """The dense vectors of texts with words and characters, and 1 for the bias: (num_docs, 2^(bits + 1) + 1)."""
    folded = [case_folding.folded(text.encode()) for text in texts]
    blocks = []
    for slots_of in (oracle.word_slots, oracle.character_slots):
        counts = np.zeros((len(texts), 1 << bits))
        for row, text in enumerate(folded):
            for slot, count in slots_of(text, bits).items():
                counts[row, slot] = count
        frequency = (counts > 0).sum(axis=0)
        importance = [round(16 * (1 + math.log((1 + len(texts)) / (1 + number)))) / 16 for number in frequency.tolist()]
        values = counts * importance
        blocks.append(values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-9))
    return np.concatenate([*blocks, np.ones((len(texts), 1))], axis=1)


@pytest.mark.medium
def test_linear_classes_have_the_scores_of_the_optimum_by_newtons_method(tmp_path):
    examples = _examples(60, ("bad", "good"))
    vectors, signs = _vectors(examples.texts.to_pylist(), 10), np.where(examples.targets == 1, 1.0, -1.0)
    costs, duals = 10.0 * examples.weights, np.zeros(60)  # weights are vectors.T @ duals, as the optimum lies in the rows
    kernel = vectors @ vectors.T
    for _ in range(50):
        margins = kernel @ duals
        chances = 1 / (1 + np.exp(-signs * margins))
        gradient = duals - costs * signs * (1 - chances)
        duals = duals - np.linalg.solve(np.eye(60) + (costs * chances * (1 - chances))[:, None] * kernel, gradient)
    content = LinearTrainer(bits=10, characters=True, tolerance=1e-9, max_passes=3000).train(examples)
    scores = _scores(tmp_path, content, examples.texts)
    np.testing.assert_allclose(scores[:, 1], 1 / (1 + np.exp(-kernel @ duals)), atol=2e-5)


@pytest.mark.medium
def test_linear_numbers_have_the_scores_of_ridge_regression(tmp_path):
    examples = _numbers(_examples(60, ("bad", "good")))
    vectors, costs = _vectors(examples.texts.to_pylist(), 10), 2 * 10.0 * examples.weights
    middle = np.average(examples.targets, weights=examples.weights)
    spread = math.sqrt(np.average((examples.targets - middle) ** 2, weights=examples.weights))
    targets, kernel = (examples.targets - middle) / spread, vectors @ vectors.T
    duals = np.linalg.solve(kernel + np.diag(1 / costs), targets)
    content = LinearTrainer(bits=10, characters=True, tolerance=1e-9, max_passes=3000).train(examples)
    scores = _scores(tmp_path, content, examples.texts)
    np.testing.assert_allclose(scores[:, 0], kernel @ duals * spread + middle, atol=2e-5)


@pytest.mark.parametrize("labels", [("bad", "good"), ("bad", "good", "other")])
def test_linear_training_tells_labels_apart(tmp_path, labels):
    content = LinearTrainer(bits=12).train(_examples(400, labels))
    test = _examples(200, labels, seed=2)
    has_word = np.array(
        [any(word in text.split() for words in _WORDS.values() for word in words) for text in test.texts.to_pylist()]
    )
    scores = _scores(tmp_path, content, test.texts)
    assert (scores.argmax(axis=1) == test.targets)[has_word].mean() > 0.97
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-6)


def test_linear_training_gives_the_same_bytes_and_another_seed_the_same_model_nearly(tmp_path, monkeypatch):
    examples = _examples(100, ("bad", "good"))
    trainer = LinearTrainer(bits=10, tolerance=1e-7, max_passes=1000)
    content = trainer.train(examples)
    assert content == trainer.train(examples)
    monkeypatch.setattr(linear, "SLICE_BYTES", 100)
    assert content == trainer.train(examples)
    other = LinearTrainer(bits=10, tolerance=1e-7, max_passes=1000, seed=1).train(examples)
    difference = _scores(tmp_path, content, examples.texts) - _scores(tmp_path, other, examples.texts)
    assert np.abs(difference).max() < 1e-4


def test_linear_training_of_equal_numbers_predicts_the_number(tmp_path):
    examples = replace(_numbers(_examples(20, ("bad", "good"))), targets=np.full(20, 3.5), weights=np.ones(20))
    scores = _scores(tmp_path, LinearTrainer(bits=10).train(examples), examples.texts)
    assert scores.tolist() == [[3.5]] * 20


@pytest.mark.real
def test_linear_auc_is_within_half_a_percent_of_liblinear(real_data):
    sets = labelled_sets(real_data)
    for (name, characters), auc in LIBLINEAR.items():
        documents = sets[name]
        scores = ours(LinearTrainer(characters=characters), documents).scores
        folds = [documents.test(fold) for fold in range(NUM_FOLDS)]
        found = np.mean([ranking(documents.is_positive[rows], scores[rows]).auc.value for rows in folds])
        assert found > auc - 0.005, (name, characters)
