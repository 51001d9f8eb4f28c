"""How well and how fast each engine of `extract.html` finds the main text: `python -m tests.benchmarks.extraction [FOLDER]`.

FOLDER holds the real corpora, by default `../shared/data`. Scores are means over pages of the words as a bag. Times are CPU
times, the best of several rounds in which the engines take turns. The first row is resiliparse called by itself on decoded
pages, and the last column divides by its time. Prints a table in Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time

from resiliparse.extract.html2text import extract_plain_text

from datapipe.stage import StageContext
from stages.extract.html import Html
from tests.support.articles import Article, batch_of, news, readable, score

ENGINES = ("resiliparse", "trafilatura", "fallback")
ROUNDS = 5
Extract = Callable[[list[str]], list[str]]
"""From decoded pages to texts. A stage has pages of its own, which are not decoded."""


def bare() -> Extract:
    """Resiliparse called by itself, with the options that `extract.html` gives it."""
    options = {"main_content": True, "comments": False, "post_meta": False, "alt_texts": False}
    return lambda pages: [extract_plain_text(page, **options) for page in pages]


def staged(articles: Sequence[Article], **options: object) -> Extract:
    """The whole stage: charset, measures, parser, engine and columns."""
    stage = Html.model_validate(options)
    stage.open(StageContext(name="extract.html", seed=1))
    batch = batch_of([article.html.encode() for article in articles])
    return lambda pages: stage.process(batch).columns["text"].to_pylist()


def measure(calls: dict[str, Extract], articles: Sequence[Article]) -> dict[str, tuple[list[str], float]]:
    """The texts of each call, and its best time in seconds."""
    texts, best = {}, dict.fromkeys(calls, float("inf"))
    for name in list(calls) * ROUNDS:
        pages = [article.html.encode().decode() for article in articles]  # Python keeps the UTF-8 of a text that was asked for
        started = process_time()
        texts[name] = calls[name](pages)
        best[name] = min(best[name], process_time() - started)
    return {name: (texts[name], best[name]) for name in calls}


def table(name: str, articles: Sequence[Article]) -> list[str]:
    """Rows of one set, and of its pages with code, lists and tables where it tells of them."""
    calls = {"resiliparse by itself": bare(), **{engine: staged(articles, engine=engine) for engine in ENGINES}}
    megabytes = sum(len(article.html.encode()) for article in articles) / 1e6
    measured = measure(calls, articles)
    _, least = measured["resiliparse by itself"]
    rows = []
    for engine, (texts, seconds) in measured.items():
        scores = score(articles, texts)
        cells = [name, engine, f"{scores.f1:.3f}", f"{scores.precision:.3f}", f"{scores.recall:.3f}"]
        cells += [_f1_with(articles, texts, kind) for kind in ("code", "lists", "tables")]
        cells += [f"{len(articles) / seconds:.0f}", f"{megabytes / seconds:.1f}", f"{least / seconds:.2f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _f1_with(articles: Sequence[Article], texts: Sequence[str], kind: str) -> str:
    """The F1 of the pages whose main text holds such elements."""
    chosen = [number for number, article in enumerate(articles) if kind in article.holds]
    return f"{score([articles[n] for n in chosen], [texts[n] for n in chosen]).f1:.3f}" if chosen else ""


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data")
    print("| set | engine | F1 | precision | recall | F1, code | F1, lists | F1, tables | pages/s | MB/s | of itself |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, articles in (("news", news(folder)), ("readable", readable(folder))):
        print("\n".join(table(f"{name}, {len(articles)}", articles)), flush=True)


if __name__ == "__main__":
    main()
