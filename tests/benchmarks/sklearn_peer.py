"""Hashed TF-IDF with liblinear by scikit-learn. Run by `classifiers.py` in an environment that has the library.

python sklearn_peer.py FOLDER      FOLDER/documents.json  ─▶  FOLDER/scores.json

Words and pairs of words, perhaps n-grams of 3 to 5 characters within words, 2^18 slots each, TF-IDF as scikit-learn has it by
default; logistic regression with C 10, one against the others for several classes, ridge regression for numbers.
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


def main(folder: Path) -> None:
    from scipy import sparse  # pyright: ignore[reportMissingImports]
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer  # pyright: ignore[reportMissingImports]

    told = json.loads((folder / "documents.json").read_text(encoding="utf-8"))
    targets, folds = np.array(told["targets"]), np.array(told["folds"])
    began = time.process_time()
    counted = [HashingVectorizer(ngram_range=(1, 2), **_HASHED).transform(told["texts"])]
    if told["characters"]:
        counted.append(HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), **_HASHED).transform(told["texts"]))
    scores: list[Any] = [None] * len(targets)
    for fold in np.unique(folds):
        rows, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        transformers = [TfidfTransformer().fit(counts[others]) for counts in counted]
        known, asked = (
            sparse.hstack([made.transform(counts[part]) for made, counts in zip(transformers, counted)]).tocsr()
            for part in (others, rows)
        )
        for row, score in zip(rows.tolist(), _answers(told["task"], known, targets[others], asked)):
            scores[row] = score
    (folder / "scores.json").write_text(json.dumps({"scores": scores, "seconds": time.process_time() - began}))


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
    main(Path(sys.argv[1]))
