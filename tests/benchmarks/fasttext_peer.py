"""Trains and applies fastText by its own library. Run by `classifiers.py` in an environment that has the library.

python fasttext_peer.py FOLDER      FOLDER/train.txt, test.txt, options.json  ─▶  FOLDER/scores.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import fasttext  # pyright: ignore[reportMissingImports]


def main(folder: Path) -> None:
    options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    began = time.process_time()
    model = fasttext.train_supervised(str(folder / "train.txt"), thread=1, verbose=0, **options)
    seconds = time.process_time() - began
    texts = (folder / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    told = [{label: score for score, label in model.f.predict(f"{text}\n", 2, 0.0, "strict")} for text in texts]
    scores = [labels.get("__label__1", 0.0) for labels in told]
    (folder / "scores.json").write_text(json.dumps({"scores": scores, "seconds": seconds}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
