"""Sets of documents with gold labels of who is a duplicate of whom, and how well clusters found agree with them.

    name                 documents  gold                                             of which kind
    asysd                    1,845  citations of a study, found several times        clusters, by title
    gutenberg_editions          13  re-releases of four books                        clusters, by work
    ndd_100_news               100  press releases, ten planted pairs                pairs
    cs336_fuzzy                  3  licences of which two are alike                  pairs
    webis_s3_gov2              236  118 pairs of web pages, judged by people         judged pairs: only those count
    pan_paraphrase          20,000  10,000 pairs of passages, paraphrased or not     judged pairs: only those count

The last two say nothing of documents from different pairs. CORE (104,000 papers) and NEWS-COPY, which text-dedup publishes its
figures on (macro-F1 0.9518, ARI 0.7293), are not among them: they are not in the data at hand.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard


@dataclass(frozen=True, kw_only=True)
class LabelledSet:
    """Documents and what is known of them: a cluster for each, or a verdict for some pairs."""

    name: str
    texts: Sequence[str]
    clusters: Sequence[int] | None = None
    judged: Sequence[tuple[int, int, bool]] | None = None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How found clusters agree with the gold. `macro_f1` is over documents, or judged pairs, that are duplicates or not."""

    precision: float
    recall: float
    f1: float
    macro_f1: float
    ari: float | None


def all_sets(folder: Path) -> Iterator[LabelledSet]:
    """The sets of a folder, one at a time."""
    for name in SETS:
        yield labelled_set(folder, name)


def labelled_set(folder: Path, name: str) -> LabelledSet:
    return SETS[name](folder)


def agreement(labelled: LabelledSet, found: Sequence[int]) -> Agreement:
    """Holds found clusters, a number for each document, against the gold."""
    if labelled.judged is not None:
        truth = np.array([same for _, _, same in labelled.judged])
        guess = np.array([found[a] == found[b] for a, b, _ in labelled.judged])
        precision, recall, f1 = _scores(int((truth & guess).sum()), int(guess.sum()), int(truth.sum()))
        return Agreement(precision=precision, recall=recall, f1=f1, macro_f1=_macro_f1(truth, guess), ari=None)
    assert labelled.clusters is not None
    both, alone, others = (_pairs(numbers) for numbers in (list(zip(labelled.clusters, found)), found, labelled.clusters))
    precision, recall, f1 = _scores(both, alone, others)
    truth, guess = (_has_like(numbers) for numbers in (labelled.clusters, found))
    chance = alone * others / (len(found) * (len(found) - 1) / 2)
    ari = (both - chance) / ((alone + others) / 2 - chance)
    return Agreement(precision=precision, recall=recall, f1=f1, macro_f1=_macro_f1(truth, guess), ari=ari)


def _pairs(numbers: Sequence[Any]) -> int:
    """Pairs of documents of one cluster."""
    return sum(count * (count - 1) // 2 for count in Counter(numbers).values())


def _has_like(numbers: Sequence[int]) -> np.ndarray:
    counts = Counter(numbers)
    return np.array([counts[number] > 1 for number in numbers])


def _scores(both: int, found: int, there: int) -> tuple[float, float, float]:
    precision, recall = both / found if found else 1.0, both / there if there else 1.0
    return precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _macro_f1(truth: np.ndarray, guess: np.ndarray) -> float:
    sides = [(truth, guess), (~truth, ~guess)]
    return sum(_scores(int((a & b).sum()), int(b.sum()), int(a.sum()))[2] for a, b in sides) / 2


def _rows(path: Path) -> list[dict[str, str]]:
    with zstandard.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _numbered(names: Sequence[str]) -> list[int]:
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [order[name] for name in names]


def _asysd(folder: Path) -> LabelledSet:
    """The text is title, authors, journal and abstract.

    The labels tell a first copy from a later one, and not of what; the clusters go by title. There are 597 of them for 584
    first copies, so the gold is itself off by a few: eleven have more than one first copy, 25 have none.
    """
    with zstandard.open(folder / "asysd_labelled_citations.csv.zst", "rb") as content:
        rows = list(csv.DictReader(io.StringIO(content.read().decode("cp1252"))))
    titles = [re.sub(r"[^a-z0-9]", "", row["title"].lower()) for row in rows]
    texts = ["\n".join(row[name] for name in ("title", "author", "journal", "abstract")) for row in rows]
    return LabelledSet(name="asysd", texts=texts, clusters=_numbered(titles))


def _gutenberg(folder: Path) -> LabelledSet:
    rows = _rows(folder / "gutenberg_editions.jsonl.zst")
    clusters = _numbered([row["work"] for row in rows])
    return LabelledSet(name="gutenberg_editions", texts=[row["text"] for row in rows], clusters=clusters)


def _news(folder: Path) -> LabelledSet:
    rows = _rows(folder / "ndd_100_news.jsonl.zst")
    names = [min(row["id"], f"ndd/{row['near_dup_of']}") if row["near_dup_of"] else row["id"] for row in rows]
    return LabelledSet(name="ndd_100_news", texts=[row["text"] for row in rows], clusters=_numbered(names))


def _licences(folder: Path) -> LabelledSet:
    rows = _rows(folder / "cs336_documents_with_fuzzy_duplicates.jsonl.zst")
    names = ["mit" if "mit" in row["id"] else row["id"] for row in rows]
    return LabelledSet(name="cs336_fuzzy", texts=[row["text"] for row in rows], clusters=_numbered(names))


def _judged(name: str, rows: list[dict[str, str]], left: str, right: str) -> LabelledSet:
    texts = [row[side] for row in rows for side in (left, right)]
    judged = [(2 * number, 2 * number + 1, int(row["label"]) >= 1) for number, row in enumerate(rows)]
    return LabelledSet(name=name, texts=texts, judged=judged)


def _webis(folder: Path) -> LabelledSet:
    return _judged("webis_s3_gov2", _rows(folder / "webis_s3_pairs_gov2.jsonl.zst"), "left_text", "right_text")


def _pan(folder: Path) -> LabelledSet:
    return _judged("pan_paraphrase", _rows(folder / "pan_paraphrase_train.jsonl.zst"), "text1", "text2")


SETS: dict[str, Callable[[Path], LabelledSet]] = {
    "asysd": _asysd,
    "gutenberg_editions": _gutenberg,
    "ndd_100_news": _news,
    "cs336_fuzzy": _licences,
    "webis_s3_gov2": _webis,
    "pan_paraphrase": _pan,
}
