"""Trained fastText models equal those of a slow trainer, are the same twice, and are read by the library."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

from datapipe import rng
from datapipe.classifier import fasttext_training
from datapipe.classifier.fasttext_training import FastTextTrainer
from datapipe.classifier.metrics import ranking
from datapipe.classifier.training import Examples
from datapipe.errors import UserError
from datapipe.stage.models.classifier import open_classifier
from datapipe.stage.models.fasttext import LibraryModel
from datapipe.stage.models.fasttext_file import read_model
from tests.benchmarks.classifiers import fasttext_trainer, ours
from tests.oracles import fasttext as oracle
from tests.oracles import fasttext_training as training
from tests.support.labelled_sets import NUM_FOLDS, labelled_sets

_SUBJECTS = {"sea": ("boat", "wave", "salt", "wïnd", "gull"), "city": ("street", "tram", "café", "smoke", "stairs")}


def _texts(num_docs: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts of a few common words and some of their subject, and their subjects."""
    draw = np.random.default_rng(seed)
    names = [str(draw.choice(list(_SUBJECTS))) for _ in range(num_docs)]
    texts = [" ".join(draw.choice([*_SUBJECTS[name], "the", "and", "a", "of"], draw.integers(2, 12))) for name in names]
    return texts, names


def _examples(texts: Sequence[str], names: Sequence[str], labels: tuple[str, ...] = ("sea", "city")) -> Examples:
    targets = np.array([labels.index(name) for name in names], np.float64)
    return Examples(texts=pa.array(texts, pa.large_string()), targets=targets, labels=labels, weights=np.ones(len(texts)))


def _scores(model: object, texts: Sequence[str]) -> np.ndarray:
    encoded = [text.encode() for text in texts]
    stops = np.cumsum(list(map(len, encoded)), dtype=np.int64)
    starts = stops - list(map(len, encoded))
    return model.scores(starts, stops, np.frombuffer(b"".join(encoded), np.uint8))  # type: ignore[attr-defined]


@pytest.mark.medium
def test_model_equals_that_of_a_slow_trainer(tmp_path: Path) -> None:
    texts, names = _texts(14)
    texts[3], texts[5] = "", "</s> __label__sea rare"
    trainer = FastTextTrainer(dim=17, epochs=3, min_char_ngram=2, max_char_ngram=3, buckets=50, min_count=2, seed=4)
    (tmp_path / "model.bin").write_bytes(trainer.train(_examples(texts, names)))
    file = read_model(tmp_path / "model.bin")

    words = [training.words(text.encode(), set()) for text in texts]
    counts = Counter(word for text in words for word in text)
    rows = {word: row for row, (word, count) in enumerate(counts.most_common(), start=1) if count >= 2}
    inputs = training.random_rows(rng.seed_for(4, "fasttext", "rows"), 1 + len(rows) + 50, 17)
    outputs = np.zeros((2, 17), np.float32)
    entries = [b"</s>", *rows]
    rows_by_text = [oracle.rows_of(text.encode(), entries, len(entries), None, (2, 3), 2, 50) for text in texts]
    num_read = sum(map(len, words)) + len(texts)
    for epoch in range(3):
        seed = np.uint64(rng.seed_for(4, "fasttext", "order", epoch))
        order = np.argsort(rng.mix64(np.arange(len(texts), dtype=np.uint64) + seed)).tolist()
        setting = training.Setting(rate=0.5, num_read=epoch * num_read, num_total=3 * num_read, is_softmax=True)
        training.read_once(
            [rows_by_text[doc] for doc in order],
            [len(words[doc]) for doc in order],
            [("sea", "city").index(names[doc]) for doc in order],
            [1.0] * len(texts),
            setting,
            inputs,
            outputs,
        )
    found = [file.data[start:stop].tobytes() for start, stop in zip(file.dictionary.starts, file.dictionary.stops)]
    assert found == [*entries, b"__label__sea", b"__label__city"]
    np.testing.assert_array_equal(file.matrix.dense, inputs)
    np.testing.assert_array_equal(file.output.dense, outputs)


OF_CHARACTERS = {"loss": "ova", "min_char_ngram": 2, "max_char_ngram": 4, "word_ngrams": 3}


@pytest.mark.parametrize("options", [{}, OF_CHARACTERS, {"word_ngrams": 1, "min_count": 3}])
def test_model_learns_and_the_library_gives_the_same_scores(options: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(FastTextTrainer(dim=10, epochs=20, buckets=1000, **options).train(_examples(*_texts(200))))  # type: ignore[arg-type]
    model, (texts, names) = open_classifier(path), _texts(200, seed=1)
    assert model.labels == ("sea", "city")
    scores = _scores(model, texts)
    is_told = np.array([any(word in text.split() for word in _SUBJECTS[name]) for text, name in zip(texts, names)])
    right = scores.argmax(axis=1) == [model.labels.index(name) for name in names]
    assert right[is_told].mean() > 0.98
    np.testing.assert_allclose(scores, _scores(LibraryModel(path, model.labels, "as the oracle"), texts), atol=0.009)


def test_model_is_the_same_twice_and_with_a_table_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    examples, trainer = _examples(*_texts(60)), FastTextTrainer(dim=20, min_char_ngram=3, max_char_ngram=5, buckets=300)
    first = trainer.train(examples)
    assert trainer.train(examples) == first
    assert trainer.model_copy(update={"seed": 1}).train(examples) != first
    monkeypatch.setattr(fasttext_training, "_FIRST_CAPACITY", 1)
    assert trainer.train(examples) == first


@pytest.mark.parametrize("loss", ["softmax", "ova"])
def test_model_has_these_bytes_on_every_machine(loss: Literal["softmax", "ova"]) -> None:
    words = ["tide", "north", "Großmutter", "日本", "a", "the", "</s>", "lamp"]
    texts = [" ".join(words[(doc * 7 + place * place) % len(words)] for place in range(doc % 9)) for doc in range(60)]
    examples = _examples(texts, ["sea" if doc * doc % 7 < 3 else "city" for doc in range(60)])
    content = FastTextTrainer(dim=20, min_char_ngram=3, max_char_ngram=5, buckets=300, loss=loss).train(examples)
    assert hashlib.sha256(content).hexdigest()[:16] == {"softmax": "bfb3cca601f175ae", "ova": "f0ba9fcfd086ce75"}[loss]


def test_training_that_cannot_succeed_is_refused() -> None:
    refused = [
        ("diverged", FastTextTrainer(lr=1000, epochs=20), _examples(["the same text"] * 60, ["sea", "city"] * 30)),
        ("2 texts", FastTextTrainer(), _examples(["", " \n</s>"], ["sea", "city"])),
        ("NUL", FastTextTrainer(), _examples(["x"], ["c"], labels=("a\0b", "c"))),
        ("8,590 GB", FastTextTrainer(buckets=1 << 30, dim=2000), _examples(["a b"], ["sea"])),
    ]
    for fact, trainer, examples in refused:
        with pytest.raises(UserError, match=fact):
            trainer.train(examples)
    with pytest.raises(ValueError, match="min_char_ngram"):
        FastTextTrainer(min_char_ngram=5, max_char_ngram=3)


LIBRARY = {"talk": 0.9126, "hatecheck": 0.7908, "dclm": 0.8371, "onestop": 0.9370, "web": 0.9942}
"""Mean AUC of fasttext-wheel 0.9.2: `python -m tests.benchmarks.classifiers DATA --fasttext FOLDER`."""


@pytest.mark.slow
@pytest.mark.real
def test_models_separate_labelled_sets_as_well_as_those_of_the_library(real_data: Path) -> None:
    for name, documents in labelled_sets(real_data).items():
        scores = ours(fasttext_trainer(name), documents).scores
        folds = [documents.test(fold) for fold in range(NUM_FOLDS)]
        auc = np.mean([ranking(documents.is_positive[rows], scores[rows]).auc.value for rows in folds])
        assert auc == pytest.approx(LIBRARY[name], abs=0.005), name
