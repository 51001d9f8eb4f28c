"""Labelled sets of real documents for classifiers, each cut into five folds by a digest of what belongs together.

| set | documents | positive | kept together |
|---|---|---|---|
| `talk` | comments on Wikipedia's talk pages | toxic | nothing |
| `hatecheck` | HateCheck's test cases | hateful | cases of one template |
| `dclm` | web pages that people labelled for DCLM | good for training | nothing |
| `onestop` | OneStopEnglish, without the middle level | advanced reading | one article |
| `web` | pieces of 2,000 characters | novels, a book on Rust; not crawled pages | one document |
"""

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import zstandard

from datapipe.models.examples import Examples
from tests.support.articles import records

NUM_FOLDS = 5
LABELS = ("0", "1")
_PIECE = 2_000  # characters
_MOST_PIECES = 1_500  # of a file
_WEB = {
    "prose/novels.jsonl.zst": True,
    "prose/rust_book.jsonl.zst": True,
    "prose/govuk_commoncrawl_wet.jsonl.zst": False,
    "prose/cleaneval_web.jsonl.zst": False,
}


@dataclass(frozen=True, kw_only=True)
class LabelledSet:
    """Documents of two classes.

    Attributes:
        texts: each on one line, without leading and trailing white space.
        is_positive: (num_docs,) bool.
        folds: (num_docs,) int64, from 0 to NUM_FOLDS - 1.
    """

    texts: list[str]
    is_positive: np.ndarray
    folds: np.ndarray

    def train(self, fold: int) -> np.ndarray:
        """Numbers of the documents outside of a fold, in the order of the digests of their texts."""
        numbers = np.flatnonzero(self.folds != fold).tolist()
        return np.array(sorted(numbers, key=lambda number: (_digest(self.texts[number]), number)), np.int64)

    def test(self, fold: int) -> np.ndarray:
        """Numbers of the documents in a fold."""
        return np.flatnonzero(self.folds == fold)

    def examples(self, numbers: np.ndarray) -> Examples:
        """Documents to learn from."""
        return Examples(
            texts=pa.array([self.texts[number] for number in numbers], pa.large_string()),
            targets=self.is_positive[numbers].astype(np.float64),
            labels=LABELS,
            weights=np.ones(len(numbers)),
        )


def labelled_sets(data: Path) -> dict[str, LabelledSet]:
    """The five sets in the folder of real corpora."""
    talk = _csv(data / "toxicity/wikipedia_talk_toxicity.csv.zst")
    cases = _csv(data / "toxicity/hatecheck_all_cases.csv.zst")
    pages = records(data / "quality/dclm_human_quality.jsonl.zst")
    articles = [row for row in records(data / "quality/onestop_english.jsonl.zst") if row["level"] != "int"]
    return {
        "talk": _set([(row["comment"], row["toxic"] == "True", row["rev_id"]) for row in talk]),
        "hatecheck": _set(
            [(row["test_case"], row["label_gold"] == "hateful", row["templ_id"] or row["case_id"]) for row in cases]
        ),
        "dclm": _set([(row["text"], row["label"] == 1, row["id"]) for row in pages]),
        "onestop": _set([(row["text"], row["level"] == "adv", row["article"]) for row in articles]),
        "web": _set([piece for name, is_curated in _WEB.items() for piece in _pieces(data / name, is_curated)]),
    }


def _set(documents: list[tuple[str, bool, str]]) -> LabelledSet:
    """Documents from (text, whether it is positive, what it belongs to)."""
    return LabelledSet(
        texts=[" ".join(text.split()) for text, _, _ in documents],
        is_positive=np.array([is_positive for _, is_positive, _ in documents]),
        folds=np.array([_digest(group) % NUM_FOLDS for _, _, group in documents]),
    )


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _pieces(path: Path, is_positive: bool) -> list[tuple[str, bool, str]]:
    pieces = [
        (row["text"][start : start + _PIECE], is_positive, f"{path.name}/{number}")
        for number, row in enumerate(records(path))
        for start in range(0, len(row["text"]), _PIECE)
    ]
    return pieces[:: max(1, len(pieces) // _MOST_PIECES)]


def _csv(path: Path) -> list[dict[str, str]]:
    with zstandard.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return list(csv.DictReader(file))
