"""How well trained classifiers separate five labelled sets, each model on the documents of the fold that it was not trained on.

    python -m tests.benchmarks.classifiers DATA [--fasttext FOLDER] [--sklearn FOLDER] [--only SET …]

DATA is the folder of real corpora. FOLDER is one that `pip install --target FOLDER fasttext-wheel`, or `scikit-learn`, filled,
for the peer on the same folds: fastText's own trainer with the same options; hashed TF-IDF with liblinear (`sklearn_peer.py`).
AUC is the mean of the folds; the best F1, with its precision and recall, is over all documents together. The set `levels` has
three classes, which are predicted as numbers, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.classifier.fasttext_training import FastTextTrainer
from datapipe.classifier.linear_trainer import LinearTrainer
from datapipe.classifier.metrics import agreement, confusion, ranking
from datapipe.classifier.training import Examples, Trainer
from datapipe.stage.models.classifier import open_classifier
from tests.benchmarks.tables import Settings, Table
from tests.support.labelled_sets import LABELS, NUM_FOLDS, LabelledSet, Levels, labelled_sets, levels

_CHARACTERS = {"min_char_ngram": 3, "max_char_ngram": 5}
_FASTTEXT: Mapping[str, dict[str, Any]] = {
    "talk": {"epochs": 25, **_CHARACTERS},
    "hatecheck": {"epochs": 25, **_CHARACTERS},
    "dclm": {"epochs": 25},
    "onestop": {"epochs": 25},
    "web": {},
}
"""Options that differ from those of `classifier train`, for short texts and small sets."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A trainer on a set.

    Attributes:
        scores: (num_docs,) float64, of each document by the model of the other folds.
        train_s: CPU seconds of all trainings.
        model_bytes: of the last model; 0 where the trainer does not tell.
        score_s: CPU seconds of scoring every document once; 0 where it was not measured.
    """

    scores: np.ndarray
    train_s: float
    model_bytes: int = 0
    score_s: float = 0.0

    def cells(self, documents: LabelledSet) -> tuple[str, ...]:
        folds = [documents.test(fold) for fold in range(NUM_FOLDS)]
        aucs = [ranking(documents.is_positive[rows], self.scores[rows]).auc.value for rows in folds]
        best = ranking(documents.is_positive, self.scores).best
        assert best is not None
        size = f"{self.model_bytes / 1e6:.1f}" if self.model_bytes else ""
        num_bytes = sum(len(text.encode()) for text in documents.texts)
        rate = f"{num_bytes / 1e6 / self.score_s:.0f}" if self.score_s else ""
        told = (f"{estimate.value:.3f}" for estimate in (best.f1, best.precision, best.recall))
        return f"{np.mean(aucs):.4f}", *told, f"{self.train_s:.1f}", size, rate


def ours(trainer: Trainer, documents: LabelledSet) -> Outcome:
    """A trainer of datapipe on all folds."""
    scores, train_s, score_s, content = np.zeros(len(documents.texts)), 0.0, 0.0, b""
    with tempfile.TemporaryDirectory() as folder:
        for fold in range(NUM_FOLDS):
            examples, rows = documents.examples(documents.train(fold)), documents.test(fold)
            began = time.process_time()
            content = trainer.train(examples)
            train_s += time.process_time() - began
            path = Path(folder) / f"{fold}.model"
            path.write_bytes(content)
            offsets, data = columns.text_buffers(documents.examples(rows).texts)
            model = open_classifier(path)
            stops = np.ascontiguousarray(offsets[1:])
            model.scores(offsets[:1], stops[:1], data)  # tables are built, and kernels loaded
            began = time.process_time()
            answers = model.scores(offsets[:-1], stops, data)
            score_s += time.process_time() - began
            scores[rows] = answers[:, model.labels.index("1")]
    return Outcome(scores=scores, train_s=train_s, model_bytes=len(content), score_s=score_s)


def library(trainer: FastTextTrainer, documents: LabelledSet, installed: Path) -> Outcome:
    """fastText's own trainer with the same options."""
    options = {"lr": trainer.lr, "dim": trainer.dim, "epoch": trainer.epochs, "wordNgrams": trainer.word_ngrams}
    options |= {"minn": trainer.min_char_ngram, "maxn": trainer.max_char_ngram, "bucket": trainer.buckets, "loss": trainer.loss}
    scores, train_s = np.zeros(len(documents.texts)), 0.0
    for fold in range(NUM_FOLDS):
        with tempfile.TemporaryDirectory() as name:
            folder, rows = Path(name), documents.test(fold)
            labelled = [(LABELS[int(documents.is_positive[row])], documents.texts[row]) for row in documents.train(fold)]
            lines = "".join(f"__label__{label} {text}\n" for label, text in labelled)
            (folder / "train.txt").write_text(lines, encoding="utf-8")
            (folder / "test.txt").write_text("".join(f"{documents.texts[row]}\n" for row in rows), encoding="utf-8")
            (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
            script = Path(__file__).with_name("fasttext_peer.py")
            subprocess.run([sys.executable, str(script), name], env={**os.environ, "PYTHONPATH": str(installed)}, check=True)
            told = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
            scores[rows], train_s = told["scores"], train_s + told["seconds"]
    return Outcome(scores=scores, train_s=train_s)


def sklearn(texts: Sequence[str], targets: np.ndarray, folds: np.ndarray, asked: Mapping[str, Any], installed: Path) -> Outcome:
    """scikit-learn's answers. `asked`: the task, and whether characters count."""
    with tempfile.TemporaryDirectory() as name:
        told = {"texts": list(texts), "targets": targets.tolist(), "folds": folds.tolist(), **asked}
        (Path(name) / "documents.json").write_text(json.dumps(told), encoding="utf-8")
        script = Path(__file__).with_name("sklearn_peer.py")
        subprocess.run([sys.executable, str(script), name], env={**os.environ, "PYTHONPATH": str(installed)}, check=True)
        answers = json.loads((Path(name) / "scores.json").read_text(encoding="utf-8"))
    return Outcome(scores=np.array(answers["scores"], np.float64), train_s=answers["seconds"])


def fasttext_trainer(name: str) -> FastTextTrainer:
    """The trainer with the options for a set."""
    return FastTextTrainer.model_validate(_FASTTEXT[name])


def rows_of(name: str, documents: LabelledSet, installed: Path | None, sklearn_at: Path | None = None) -> list[tuple[str, ...]]:
    """A row for each trainer. The time of scikit-learn is that of its features and trainings."""
    fasttext = fasttext_trainer(name)
    trainers: dict[str, Callable[[], Outcome]] = {
        "linear": lambda: ours(LinearTrainer(), documents),
        "linear, characters": lambda: ours(LinearTrainer(characters=True), documents),
        "fasttext": lambda: ours(fasttext, documents),
    }
    if installed is not None:
        trainers["fasttext-wheel"] = lambda: library(fasttext, documents, installed)
    if sklearn_at is not None:
        targets = documents.is_positive.astype(np.int64)
        for more, characters in (("", False), (", characters", True)):
            asked = {"task": "two", "characters": characters}
            trainers[f"scikit-learn{more}"] = partial(sklearn, documents.texts, targets, documents.folds, asked, sklearn_at)
    return [(name, trainer, *measure().cells(documents)) for trainer, measure in trainers.items()]


def rows_of_levels(documents: Levels, sklearn_at: Path | None) -> list[tuple[str, ...]]:
    """A row for each trainer: accuracy and macro F1 of three classes, RMSE and Spearman of the number of the class."""
    rows = []
    for characters in (False, True):
        answers = [_levels_ours(documents, characters, is_number) for is_number in (False, True)]
        rows.append((f"linear{', characters' * characters}", *_levels_cells(documents, *answers)))
        if sklearn_at is not None:
            several, number = ({"task": task, "characters": characters} for task in ("several", "number"))
            of_sklearn = partial(sklearn, documents.texts, documents.targets, documents.folds, installed=sklearn_at)
            answers = [of_sklearn(asked=several), of_sklearn(asked=number)]
            found = [outcome.scores for outcome in answers]
            rows.append((f"scikit-learn{', characters' * characters}", *_levels_cells(documents, *found)))
    return rows


def _levels_ours(documents: Levels, characters: bool, is_number: bool) -> np.ndarray:
    """The label or the number of each document by the model of the other folds, (num_docs,) float64."""
    answers = np.zeros(len(documents.texts))
    for fold in range(NUM_FOLDS):
        rows, others = np.flatnonzero(documents.folds == fold), np.flatnonzero(documents.folds != fold)
        texts, known = (pa.array([documents.texts[row] for row in part], pa.large_string()) for part in (rows, others))
        examples = Examples(
            texts=known,
            targets=documents.targets[others].astype(np.float64),
            labels=("level",) if is_number else ("ele", "int", "adv"),
            weights=np.ones(len(others)),
            predicts_number=is_number,
        )
        with tempfile.NamedTemporaryFile(suffix=".model") as file:
            Path(file.name).write_bytes(LinearTrainer(characters=characters).train(examples))
            offsets, data = columns.text_buffers(texts)
            scores = open_classifier(Path(file.name)).scores(offsets[:-1], np.ascontiguousarray(offsets[1:]), data)
        answers[rows] = scores[:, 0] if is_number else scores.argmax(axis=1)
    return answers


def _levels_cells(documents: Levels, labels: np.ndarray, numbers: np.ndarray) -> tuple[str, ...]:
    found = confusion(documents.targets, labels.astype(np.int64), ("ele", "int", "adv"))
    agreed = agreement(documents.targets.astype(np.float64), numbers)
    return tuple(f"{estimate.value:.3f}" for estimate in (found.accuracy, found.macro_f1, agreed.rmse, agreed.spearman))


_HEADER = ("set", "trainer", "AUC", "best F1", "precision", "recall", "CPU s of 5 trainings", "MB", "scores, MB/s")
_LEVELS_HEADER = ("three levels", "accuracy", "macro F1", "RMSE", "Spearman")


def table(settings: Settings) -> Table:
    """The trainers of datapipe on all sets, or the smallest."""
    sets = labelled_sets(settings.data)
    names = ["dclm"] if settings.quick else list(sets)
    return Table(
        title="Trained classifiers on five labelled sets",
        note="Five folds; a document has its score from the model that was not trained on it. AUC is the mean of the folds.",
        header=_HEADER,
        rows=[row for name in names for row in rows_of(name, sets[name], None)],
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--fasttext", type=Path, metavar="FOLDER", help="where fasttext-wheel is installed")
    parser.add_argument("--sklearn", type=Path, metavar="FOLDER", help="where scikit-learn is installed")
    parser.add_argument("--only", nargs="*", metavar="SET")
    given = parser.parse_args(arguments)
    sets = {name: documents for name, documents in labelled_sets(given.data).items() if not given.only or name in given.only}
    rows = [row for name, documents in sets.items() for row in rows_of(name, documents, given.fasttext, given.sklearn)]
    print(Table(title="Two classes", note=(__doc__ or "").split("\n\n")[2], header=_HEADER, rows=rows).to_markdown())
    if not given.only or "levels" in given.only:
        rows = rows_of_levels(levels(given.data), given.sklearn)
        print(Table(title="Three levels", note="OneStopEnglish.", header=_LEVELS_HEADER, rows=rows).to_markdown())


if __name__ == "__main__":
    main(sys.argv[1:])
