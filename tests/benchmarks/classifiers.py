"""How well trained classifiers separate five labelled sets, each model on the documents of the fold that it was not trained on.

    python -m tests.benchmarks.classifiers DATA [--fasttext FOLDER] [--only SET …]

DATA is the folder of real corpora; FOLDER is one that `pip install --target FOLDER fasttext-wheel` filled, for fastText's own
trainer with the same options on the same folds. AUC is the mean of the folds; the best F1 is over all documents together.
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
from pathlib import Path
from typing import Any

import numpy as np

from datapipe import columns
from datapipe.classifier.fasttext_training import FastTextTrainer
from datapipe.classifier.linear_trainer import LinearTrainer
from datapipe.classifier.metrics import ranking
from datapipe.classifier.training import Trainer
from datapipe.stage.models.classifier import open_classifier
from tests.benchmarks.tables import Settings, Table
from tests.support.labelled_sets import LABELS, NUM_FOLDS, LabelledSet, labelled_sets

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
    """

    scores: np.ndarray
    train_s: float
    model_bytes: int = 0

    def cells(self, documents: LabelledSet) -> tuple[str, ...]:
        folds = [documents.test(fold) for fold in range(NUM_FOLDS)]
        aucs = [ranking(documents.is_positive[rows], self.scores[rows]).auc.value for rows in folds]
        best = ranking(documents.is_positive, self.scores).best
        assert best is not None
        size = f"{self.model_bytes / 1e6:.1f}" if self.model_bytes else ""
        return f"{np.mean(aucs):.4f}", f"{best.f1.value:.3f}", f"{self.train_s:.1f}", size


def ours(trainer: Trainer, documents: LabelledSet) -> Outcome:
    """A trainer of datapipe on all folds."""
    scores, train_s, content = np.zeros(len(documents.texts)), 0.0, b""
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
            answers = model.scores(offsets[:-1], np.ascontiguousarray(offsets[1:]), data)
            scores[rows] = answers[:, model.labels.index("1")]
    return Outcome(scores=scores, train_s=train_s, model_bytes=len(content))


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


def fasttext_trainer(name: str) -> FastTextTrainer:
    """The trainer with the options for a set."""
    return FastTextTrainer.model_validate(_FASTTEXT[name])


def rows_of(name: str, documents: LabelledSet, installed: Path | None) -> list[tuple[str, ...]]:
    """A row for each trainer."""
    fasttext = fasttext_trainer(name)
    trainers: dict[str, Callable[[], Outcome]] = {
        "linear": lambda: ours(LinearTrainer(), documents),
        "linear, characters": lambda: ours(LinearTrainer(characters=True), documents),
        "fasttext": lambda: ours(fasttext, documents),
    }
    if installed is not None:
        trainers["fasttext-wheel"] = lambda: library(fasttext, documents, installed)
    return [(name, trainer, *measure().cells(documents)) for trainer, measure in trainers.items()]


_HEADER = ("set", "trainer", "AUC", "best F1", "CPU s of 5 trainings", "MB")


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
    parser.add_argument("--only", nargs="*", metavar="SET")
    given = parser.parse_args(arguments)
    print(("{:<12}{:<20}" + "{:>22}" * 4).format(*_HEADER))
    for name, documents in labelled_sets(given.data).items():
        if not given.only or name in given.only:
            for row in rows_of(name, documents, given.fasttext):
                print(("{:<12}{:<20}" + "{:>22}" * 4).format(*row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
