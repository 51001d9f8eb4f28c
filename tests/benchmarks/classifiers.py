"""Trained classifiers on labelled sets, each model on the documents of the fold that it was not trained on.

AUC is the mean of the folds; the best F1, with its precision and recall, is over all documents together.

Scoring, beside fasttext-predict: the models have the words of the texts and random numbers, since training changes neither
the size of a model nor which rows a text adds. `--only SET` measures one set.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.models.examples import Trainer
from datapipe.models.fasttext_training import FastTextTrainer
from datapipe.models.linear_trainer import LinearTrainer
from datapipe.models.metrics import ranking
from datapipe.stage.models.classifier import open_classifier
from datapipe.stage.models.fasttext import open_model
from stages.filter.language import bundled_model
from tests.benchmarks.tables import Bound, Settings, Table, both_best_s
from tests.benchmarks.texts import made_up_texts, read_texts
from tests.support.fasttext_files import Recipe
from tests.support.labelled_sets import NUM_FOLDS, LabelledSet, labelled_sets

_CHARACTERS = {"min_char_ngram": 3, "max_char_ngram": 5}
_FASTTEXT: Mapping[str, dict[str, Any]] = {
    "talk": {"epochs": 25, **_CHARACTERS},
    "hatecheck": {"epochs": 25, **_CHARACTERS},
    "dclm": {"epochs": 25},
    "onestop": {"epochs": 25},
    "web": {},
}
"""Options that differ from those of `classifier train`, for short texts and small sets."""

_SCORED_BYTES, _BUCKETS = 4_000_000, 100_000
_RANDOM_MODELS = {
    "50 dimensions, pairs of words": (50, (0, 0)),
    "100 dimensions, pairs of words": (100, (0, 0)),
    "50 dimensions, pairs of words, 3 to 5 characters": (50, (3, 5)),
}


def tables(settings: Settings) -> Iterator[Table]:
    sets = labelled_sets(settings.data)
    names = ["dclm"] if settings.quick else [name for name in sets if settings.only in name]
    yield Table(
        title="Trained classifiers on labelled sets",
        note="Five folds; a document has its score from the model that was not trained on it. AUC is the mean of the folds.",
        header=("set", "trainer", "AUC", "best F1", "precision", "recall", "CPU s of 5 trainings", "MB", "scores, MB/s"),
        rows=[row for name in names for row in _rows(name, sets[name])],
        kept_in="tests/benchmarks/README.md",
    )
    if not settings.only:
        yield _scoring(settings)


def bounds(folder: Path) -> Iterator[Bound]:
    texts = _on_one_line(made_up_texts(300))
    path = _random_model(folder / "model.bin", texts, 50, (0, 0))
    ours_s, library_s = _score_s(path, texts, 3)
    yield Bound(name="fastText scores, times as fast as fasttext-predict", ratio=library_s / ours_s, least=1)


# ------------------------------------------------------------------------------------------------ two classes


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A trainer on a set.

    Attributes:
        scores: (num_docs,) float64, of each document by the model of the other folds.
        train_s: CPU seconds of all trainings.
        model_bytes: of the last model; 0 where the trainer does not report it.
        score_s: CPU seconds of scoring every document once; 0 where it was not measured.
    """

    scores: np.ndarray
    train_s: float
    model_bytes: int = 0
    score_s: float = 0.0

    def cells(self, documents: LabelledSet) -> tuple[str, ...]:
        folds = [documents.test(fold) for fold in range(NUM_FOLDS)]
        aucs = [ranking(documents.is_positive[rows], self.scores[rows]).auc.value for rows in folds]
        best = ranking(documents.is_positive, self.scores).best_f1
        assert best is not None
        size = f"{self.model_bytes / 1e6:.1f}" if self.model_bytes else ""
        num_bytes = sum(len(text.encode()) for text in documents.texts)
        rate = f"{num_bytes / 1e6 / self.score_s:.0f}" if self.score_s else ""
        figures = (f"{estimate.value:.3f}" for estimate in (best.f1, best.precision, best.recall))
        return f"{np.mean(aucs):.4f}", *figures, f"{self.train_s:.1f}", size, rate


def ours(trainer: Trainer, documents: LabelledSet) -> Outcome:
    """A trainer of datapipe on all folds."""
    scores, train_s, score_s, content = np.zeros(len(documents.texts)), 0.0, 0.0, b""
    for fold in range(NUM_FOLDS):
        examples, rows = documents.examples(documents.train(fold)), documents.test(fold)
        began = time.process_time()
        content = trainer.train(examples)
        train_s += time.process_time() - began
        with tempfile.NamedTemporaryFile(suffix=".model") as file:
            Path(file.name).write_bytes(content)
            model = open_classifier(Path(file.name))
        offsets, data = columns.text_buffers(documents.examples(rows).texts)
        stops = np.ascontiguousarray(offsets[1:])
        model.scores(offsets[:1], stops[:1], data)  # tables are built, and kernels loaded
        began = time.process_time()
        answers = model.scores(offsets[:-1], stops, data)
        score_s += time.process_time() - began
        scores[rows] = answers[:, model.labels.index("1")]
    return Outcome(scores=scores, train_s=train_s, model_bytes=len(content), score_s=score_s)


def fasttext_trainer(name: str) -> FastTextTrainer:
    """The trainer with the options for a set."""
    return FastTextTrainer.model_validate(_FASTTEXT[name])


def _rows(name: str, documents: LabelledSet) -> list[tuple[str, ...]]:
    """A row for each trainer."""
    fasttext = fasttext_trainer(name)
    trainers: dict[str, Callable[[], Outcome]] = {
        "linear": lambda: ours(LinearTrainer(), documents),
        "linear, characters": lambda: ours(LinearTrainer(characters=True), documents),
        "fasttext": lambda: ours(fasttext, documents),
    }
    return [(name, trainer, *measure().cells(documents)) for trainer, measure in trainers.items()]


# ------------------------------------------------------------------------------------------------ scores of fastText models


def _scoring(settings: Settings) -> Table:
    texts = _on_one_line(read_texts(settings.web, most_bytes=_SCORED_BYTES))
    models = {"lid.176.ftz": bundled_model()}
    models |= {name: _random_model(settings.folder / name, texts, *kind) for name, kind in _RANDOM_MODELS.items()}
    mb, rows = sum(map(len, texts)) / 1e6, []
    for name, path in models.items():
        ours_s, library_s = _score_s(path, texts, 1 if settings.quick else 3)
        rows.append((name, f"{mb / ours_s:,.1f}", f"{mb / library_s:,.1f}", f"{library_s / ours_s:,.2f}"))
    return Table(
        title="fastText models, beside fasttext-predict",
        note="English web text, the best label of each document; CPU time. Models apart from lid.176.ftz have the words of the "
        f"text, {_BUCKETS:,} buckets and random numbers.",
        header=("model", "datapipe MB/s", "fasttext-predict MB/s", "ratio"),
        rows=rows,
    )


def _on_one_line(texts: pa.Array) -> list[bytes]:
    return [b" ".join(text.encode().split()) for text in texts.to_pylist() if text.split()]


def _random_model(path: Path, texts: list[bytes], dim: int, chars: tuple[int, int]) -> Path:
    """A model of two labels with the words of the texts, the most frequent first, and random rows."""
    counts = Counter(word for text in texts for word in text.decode().split(" "))
    words = ["</s>", *(word for word, _ in counts.most_common())]
    return Recipe(words=words, labels=("a", "b"), dim=dim, num_buckets=_BUCKETS, chars=chars, longest_run=2).write(path)


def _score_s(path: Path, texts: list[bytes], num_runs: int) -> tuple[float, float]:
    """CPU seconds of the kernels and of the library; their labels are equal but for one text in a hundred."""
    import fasttext

    model, library = open_model(path), fasttext.load_model(str(path)).f
    stops = np.cumsum(list(map(len, texts)), dtype=np.int64)
    starts, data = stops - list(map(len, texts)), np.frombuffer(b"".join(texts), np.uint8)

    def predicted() -> list[str]:
        return [library.predict(text + b"\n", 1, 0.0, "replace")[0][1] for text in texts]

    labels, _ = model.best(starts, stops, data, 1)
    equal = np.mean([f"__label__{model.labels[label]}" == other for label, other in zip(labels[:, 0], predicted())])
    assert equal > 0.99, f"{equal:.1%} of the labels are equal"
    return both_best_s(lambda: model.best(starts, stops, data, 1), predicted, num_runs)
