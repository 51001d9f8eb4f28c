"""Peers of trained classifiers. Run by `classifiers.py` in an environment that has the library.

python classifier_peers.py fasttext FOLDER    FOLDER/train.txt, test.txt, options.json  ─▶  FOLDER/scores.json
python classifier_peers.py sklearn FOLDER     FOLDER/documents.json                     ─▶  FOLDER/scores.json

scikit-learn: words and pairs of words, perhaps n-grams of 3 to 5 characters within words, 2^18 slots each, its default
TF-IDF; logistic regression with C 10, one against the others for several classes, ridge regression for numbers.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

_HASHED = {"n_features": 1 << 18, "alternate_sign": False, "norm": None}
_COST = 10.0


def fasttext(folder: Path) -> list[float]:
    from fasttext import train_supervised  # pyright: ignore

    options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    model = train_supervised(str(folder / "train.txt"), thread=1, verbose=0, **options)
    texts = (folder / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    predicted = [{label: score for score, label in model.f.predict(f"{text}\n", 2, 0.0, "strict")} for text in texts]
    return [labels.get("__label__1", 0.0) for labels in predicted]


def sklearn(folder: Path) -> list[Any]:
    from scipy import sparse  # pyright: ignore[reportMissingImports]
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer  # pyright: ignore[reportMissingImports]

    given = json.loads((folder / "documents.json").read_text(encoding="utf-8"))
    targets, folds = np.array(given["targets"]), np.array(given["folds"])
    counted = [HashingVectorizer(ngram_range=(1, 2), **_HASHED).transform(given["texts"])]
    if given["characters"]:
        counted.append(HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), **_HASHED).transform(given["texts"]))
    scores: list[Any] = [None] * len(targets)
    for fold in np.unique(folds):
        rows, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        transformers = [TfidfTransformer().fit(counts[others]) for counts in counted]
        known, asked = (
            sparse.hstack([made.transform(counts[part]) for made, counts in zip(transformers, counted)]).tocsr()
            for part in (others, rows)
        )
        for row, score in zip(rows.tolist(), _answers(given["task"], known, targets[others], asked)):
            scores[row] = score
    return scores


def _answers(task: str, known: Any, targets: np.ndarray, asked: Any) -> list[Any]:
    """Of two classes the score of the second, of several the best one, else the number."""
    from sklearn.linear_model import LogisticRegression, Ridge  # pyright: ignore[reportMissingImports]
    from sklearn.multiclass import OneVsRestClassifier  # pyright: ignore[reportMissingImports]

    if task == "number":
        return Ridge(alpha=1 / (2 * _COST)).fit(known, targets).predict(asked).tolist()
    model = LogisticRegression(C=_COST, solver="liblinear")
    if task == "two":
        return model.fit(known, targets).decision_function(asked).tolist()
    return OneVsRestClassifier(model).fit(known, targets).predict(asked).tolist()


if __name__ == "__main__":
    began = time.process_time()
    answers = {"fasttext": fasttext, "sklearn": sklearn}[sys.argv[1]](Path(sys.argv[2]))
    written = json.dumps({"scores": answers, "seconds": time.process_time() - began})
    Path(sys.argv[2], "scores.json").write_text(written, encoding="utf-8")
