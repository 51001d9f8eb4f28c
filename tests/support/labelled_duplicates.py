"""Sets of documents with gold labels of duplicates, and the agreement of clusters with them.

    name                 documents  gold                                             of which kind
    asysd                    1,845  citations of a study, found several times        clusters, by title
    govuk_captures             496  captures of 222 pages by a crawl                 clusters, by URL
    onestop_english            567  189 news articles at three reading levels        clusters, by article
    gutenberg_editions          13  re-releases of four books                        clusters, by work
    ndd_100_news               100  press releases, ten planted pairs                pairs
    cs336_fuzzy                  3  licences of which two are alike                  pairs
    dj_dedup_demo               14  short texts and a story, changed a little        clusters, read by us: the set has none
    webis_s3_gov2              236  118 pairs of web pages, labelled by people       pairs: only those count
    pan_paraphrase          20,000  10,000 pairs of passages, paraphrased or not     pairs: only those count

The last two have no labels for documents of different pairs. Two more files, `cs336_documents_with_line_duplicates` and
`..._line_deduplicated`, are input and output of line deduplication: the tests compare `dedup.lines` with them. CORE
(104,000 papers) and NEWS-COPY, which text-dedup publishes its figures on, are not among the data at hand.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from tests.support.articles import records


@dataclass(frozen=True, kw_only=True)
class LabelledSet:
    """Documents with gold labels: a cluster for each, or a label for some pairs."""

    name: str
    texts: Sequence[str]
    clusters: Sequence[int] | None = None
    labelled_pairs: Sequence[tuple[int, int, bool]] | None = None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How found clusters agree with the gold.

    Attributes:
        precision, recall, f1: of pairs of documents.
        macro_f1: as text-dedup counts it, the mean of two F1: of having duplicates, and of having none. A document has them
            where it was put together with its own, falsely where with others or a part of them. Of labelled pairs it
            is the plain one. None where the gold has no document of one of the two.
        ari: the adjusted Rand index, for clusters.
    """

    precision: float
    recall: float
    f1: float
    macro_f1: float | None
    ari: float | None


def labelled_set(data: Path, name: str) -> LabelledSet:
    """A set in the folder of real corpora."""
    if name == "asysd":
        return _asysd(data)
    path, *columns = SETS[name]
    rows = list(records(data / path))
    if name in _PAIRS:
        left, right = columns
        texts = [row[side] for row in rows for side in (left, right)]
        pairs = [(2 * number, 2 * number + 1, int(row["label"]) >= 1) for number, row in enumerate(rows)]
        return LabelledSet(name=name, texts=texts, labelled_pairs=pairs)
    clusters = _DEMO if name == "dj_dedup_demo" else _numbered([columns[0](row) for row in rows])
    return LabelledSet(name=name, texts=[row["text"] for row in rows], clusters=clusters)


def agreement(labelled: LabelledSet, found: Sequence[int]) -> Agreement:
    """Compares the clusters that were found, a number for each document, with the gold."""
    if labelled.labelled_pairs is not None:
        truth = np.array([same for _, _, same in labelled.labelled_pairs])
        guess = np.array([found[a] == found[b] for a, b, _ in labelled.labelled_pairs])
        precision, recall, f1 = _scores(int((truth & guess).sum()), int(guess.sum()), int(truth.sum()))
        macro_f1 = _macro_f1(truth, guess, truth & guess)
        return Agreement(precision=precision, recall=recall, f1=f1, macro_f1=macro_f1, ari=None)
    assert labelled.clusters is not None
    both, alone, others = (_pairs(numbers) for numbers in (list(zip(labelled.clusters, found)), found, labelled.clusters))
    precision, recall, f1 = _scores(both, alone, others)
    chance = alone * others / (len(found) * (len(found) - 1) / 2)
    ari = (both - chance) / ((alone + others) / 2 - chance)
    whole, own, their = (_sizes(numbers) for numbers in (list(zip(labelled.clusters, found)), labelled.clusters, found))
    macro_f1 = _macro_f1(own > 1, their > 1, (own > 1) & (whole == own))
    return Agreement(precision=precision, recall=recall, f1=f1, macro_f1=macro_f1, ari=ari)


def _pairs(numbers: Sequence[Any]) -> int:
    """Pairs of documents of one cluster."""
    return sum(count * (count - 1) // 2 for count in Counter(numbers).values())


def _sizes(numbers: Sequence[Any]) -> np.ndarray:
    """How many documents are in the cluster of each."""
    counts = Counter(numbers)
    return np.array([counts[number] for number in numbers])


def _scores(both: int, found: int, there: int) -> tuple[float, float, float]:
    precision, recall = both / found if found else 1.0, both / there if there else 1.0
    return precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _macro_f1(truth: np.ndarray, guess: np.ndarray, right: np.ndarray) -> float | None:
    """The mean F1 of having duplicates and of having none; truth, guess and right guesses are (num_docs,) bool."""
    if truth.all() or not truth.any():
        return None
    num_right, num_alone = int(right.sum()), int((~truth & ~guess).sum())
    num_false, num_missed = int((guess & ~right).sum()), int((truth & ~guess).sum())
    with_any = _scores(num_right, num_right + num_false, num_right + num_missed)[2]
    with_none = _scores(num_alone, num_alone + num_missed, num_alone + num_false)[2]
    return (with_any + with_none) / 2


def _numbered(names: Sequence[str]) -> list[int]:
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [order[name] for name in names]


def _asysd(data: Path) -> LabelledSet:
    """The text is title, authors, journal and abstract.

    The labels tell a first copy from a later one, and not of what; the clusters go by title. There are 597 of them for 584
    first copies, so the gold is itself off by a few: eleven have more than one first copy, 25 have none.
    """
    with zstandard.open(data / SETS["asysd"][0], "rb") as content:
        rows = list(csv.DictReader(io.StringIO(content.read().decode("cp1252"))))
    titles = [re.sub(r"[^a-z0-9]", "", row["title"].lower()) for row in rows]
    texts = ["\n".join(row[name] for name in ("title", "author", "journal", "abstract")) for row in rows]
    return LabelledSet(name="asysd", texts=texts, clusters=_numbered(titles))


_DEMO = (0, 1, 2, 3, 4, 0, 6, 7, 7, 7, 7, 6, 12, 12)
_PAIRS: dict[str, tuple[str, str, str]] = {
    "webis_s3_gov2": ("dedup/webis_s3_pairs_gov2.jsonl.zst", "left_text", "right_text"),
    "pan_paraphrase": ("dedup/pan_paraphrase_train.jsonl.zst", "text1", "text2"),
}
"""Files of pairs of texts, and their fields."""

SETS: dict[str, tuple[Any, ...]] = {
    "asysd": ("dedup/asysd_labelled_citations.csv.zst",),
    "govuk_captures": ("prose/govuk_commoncrawl_wet.jsonl.zst", lambda row: re.split("[?#]", row["source"])[0].rstrip("/")),
    "onestop_english": ("quality/onestop_english.jsonl.zst", lambda row: row["article"]),
    "gutenberg_editions": ("dedup/gutenberg_editions.jsonl.zst", lambda row: row["work"]),
    "ndd_100_news": (
        "dedup/ndd_100_news.jsonl.zst",
        lambda row: min(row["id"], f"ndd/{row['near_dup_of']}") if row["near_dup_of"] else row["id"],
    ),
    "cs336_fuzzy": (
        "dedup/cs336_documents_with_fuzzy_duplicates.jsonl.zst",
        lambda row: "mit" if "mit" in row["id"] else row["id"],
    ),
    "dj_dedup_demo": ("dedup/dj_dedup_demo.jsonl.zst",),
    **_PAIRS,
}
"""The file of each set, and the name of a document's cluster. Pages of `govuk_captures` have one banner, as they were captured;
the part of a URL from # or ? on does not make another page."""
