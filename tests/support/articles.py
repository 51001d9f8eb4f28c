"""Real pages with the text that people marked as their main text, and how well an engine finds it."""

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from datapipe import columns
from datapipe.stage import FieldNames, InputFile, Reader, Split
from datapipe.stage.documents import DocumentBatch
from stages.extract._formulas import write_latex
from stages.read.arc import Arc
from stages.read.warc import Warc

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class Article:
    """A page and its main text.

    Attributes:
        html: the page.
        text: its main text.
        holds: what the main text holds beside paragraphs, as far as the set has it: "tables", "code", "lists".
        kind: of the page, as far as the set has it.
    """

    html: str
    text: str
    holds: frozenset[str] = frozenset()
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Means over pages, of words as a bag."""

    f1: float
    precision: float
    recall: float


@lru_cache(maxsize=2)
def news(folder: Path) -> tuple[Article, ...]:
    """181 pages of news and blogs, marked by hand (article-extraction-benchmark of Scrapinghub)."""
    found = records(folder / "html/article_extraction_benchmark.jsonl.zst")
    return tuple(Article(html=record["html"], text=record["gold_text"]) for record in found)


@lru_cache(maxsize=2)
def readable(folder: Path) -> tuple[Article, ...]:
    """130 pages of many kinds, marked by Mozilla's Readability and then reviewed; formulas of the marked text as LaTeX."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    found = []
    for record in records(folder / "html/mozilla_readability.jsonl.zst"):
        gold = record["gold_html"]
        kinds = {"tables": "<table", "code": "<pre", "lists": "<li"}
        holds = frozenset(kind for kind, tag in kinds.items() if tag in gold)
        marked = HTMLTree.parse(gold)
        write_latex(marked)
        found.append(Article(html=record["html"], text=extract_plain_text(marked, alt_texts=False), holds=holds))
    return tuple(found)


@lru_cache(maxsize=2)
def mixed(folder: Path) -> tuple[Article, ...]:
    """250 pages of seven kinds, marked by hand (Web Content Extraction Benchmark, a part of its development split)."""
    found = records(folder / "html/wcxb_dev_250.jsonl.zst")
    return tuple(Article(html=record["html"], text=record["gold_text"], kind=record["kind"]) for record in found)


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines."""
    with open(path, "rb") as packed:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(packed), encoding="utf-8"):
            yield json.loads(line)


def crawled(folder: Path) -> dict[str, list[tuple[bytes, str]]]:
    """Pages of real crawls, as they were stored, each with the charset of its HTTP header."""
    names = ("resiliparse_warcfile", "dolma_sample-0000", "dolma_sample-0001", "whirlwind")
    archives = {"Common Crawl, wget": [f"{name}.warc.gz" for name in names], "Common Crawl of 2008": ["cc-2008_sample.arc.gz"]}
    return {name: [page for file in files for page in _crawled(folder / "warc" / file)] for name, files in archives.items()}


def _crawled(path: Path) -> Iterator[tuple[bytes, str]]:
    reader: Reader = Arc() if ".arc" in path.name else Warc()
    file = InputFile(url=str(path), path=path.name, num_bytes=path.stat().st_size, stamp="", compression="gzip")
    for batch in reader.read(Split(file=file), FieldNames(keep=("charset",)), pa.OSFile):
        yield from zip(batch.content.to_pylist(), (label or "" for label in batch.extra["charset"].to_pylist()))


def score(articles: Sequence[Article], texts: Sequence[str]) -> Score:
    """How well texts equal the main texts: the means of each page's F1, precision and recall."""
    scores = [_page_score(article.text, text) for article, text in zip(articles, texts, strict=True)]
    f1, precision, recall = np.mean(scores, axis=0).tolist()
    return Score(f1=f1, precision=precision, recall=recall)


def _page_score(wanted: str, found: str) -> tuple[float, float, float]:
    bag, other = (Counter(_WORD.findall(text.lower())) for text in (wanted, found))
    common = (bag & other).total()
    precision, recall = common / max(other.total(), 1), common / max(bag.total(), 1)
    return (2 * precision * recall / (precision + recall) if common else 0.0), precision, recall


def batch_of(pages: Sequence[bytes], **extra: Any) -> DocumentBatch:
    """Pages as documents before extraction, with further columns."""
    keys = columns.make_keys(1, np.arange(len(pages), dtype=np.uint64))
    ids = pa.array([str(number) for number in range(len(pages))], pa.large_string())
    batch = DocumentBatch(pa.record_batch({"key": keys, "id": ids, "html": pa.array(pages, pa.large_binary()), **extra}))
    batch.make_read_only()
    return batch
