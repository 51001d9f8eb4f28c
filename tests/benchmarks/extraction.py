"""How well and how fast each engine of `extract.html` finds the main text: `python -m tests.benchmarks.extraction [FOLDER]`.

FOLDER holds the real corpora, by default `../shared/data`. Scores are means over pages of the words as a bag. Times are CPU
times, the best of several rounds in which the engines take turns. The first row is resiliparse called by itself on decoded
pages, and the last column divides its time by that of the engine. Prints the tables of `stages/README.md` and
`stages/extract/README.md` in Markdown.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from resiliparse.extract.html2text import extract_plain_text

from datapipe.stage import FilterResult, StageContext
from stages.extract.html import Html
from tests.support.articles import Article, batch_of, crawled, mixed, news, page_scores, readable, score

ENGINES: dict[str, dict[str, object]] = {
    "auto": {"engine": "auto"},
    "resiliparse": {"engine": "resiliparse"},
    "trafilatura": {"engine": "trafilatura"},
    "trafilatura, full": {"engine": "trafilatura", "full": True},
    "fallback": {"engine": "fallback"},
}
_FASTEST = ("auto", "resiliparse")
ROUNDS = 3
Extract = Callable[[list[str]], list[str]]
"""From decoded pages to texts. A stage has pages of its own, which are not decoded."""


def bare() -> Extract:
    """Resiliparse called by itself, with the options that `extract.html` gives it."""
    options: dict[str, Any] = {"main_content": True, "comments": False, "post_meta": False, "alt_texts": False}
    return lambda pages: [extract_plain_text(page, **options) for page in pages]


def staged(pages: Sequence[bytes], **options: object) -> Callable[[], FilterResult]:
    """The whole stage: charset, measures, parser, engine and columns."""
    stage = Html.model_validate(options)
    stage.open(StageContext(name="extract.html", seed=1))
    batch = batch_of(pages)
    return lambda: stage.process(batch)


def measure(calls: dict[str, Extract], pages: Sequence[bytes]) -> dict[str, tuple[list[str], float]]:
    """The texts of each call, and its best time in seconds."""
    texts, best = {}, dict.fromkeys(calls, float("inf"))
    for name in list(calls) * ROUNDS:
        decoded = [page.decode("utf-8", "replace") for page in pages]  # Python keeps the UTF-8 of a text that was asked for
        started = process_time()
        texts[name] = calls[name](decoded)
        best[name] = min(best[name], process_time() - started)
    return {name: (texts[name], best[name]) for name in calls}


def _calls(pages: Sequence[bytes], engines: Sequence[str] = tuple(ENGINES)) -> dict[str, Extract]:
    calls = {"resiliparse by itself": bare()}
    for name in engines:
        process = staged(pages, **ENGINES[name])
        calls[name] = lambda _, process=process: process().columns["text"].to_pylist()
    return calls


def table(name: str, articles: Sequence[Article]) -> list[str]:
    """Rows of one set, and of its pages with code, lists and tables where it tells of them."""
    pages = [article.html.encode() for article in articles]
    megabytes = sum(map(len, pages)) / 1e6
    measured = measure(_calls(pages), pages)
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


def kinds(articles: Sequence[Article]) -> list[str]:
    """A row for each kind of page: F1 of the engines, and how many pages are below 0.5 of it."""
    pages = [article.html.encode() for article in articles]
    names = ("resiliparse", "trafilatura, full", "fallback", "auto")
    scores = [page_scores(articles, staged(pages, **ENGINES[name])().columns["text"].to_pylist())[:, 0] for name in names]
    rows = [f"| kind | pages | {' | '.join(names)} |", f"|---|---{'|---' * len(names)}|"]
    for kind, number in [*Counter(article.kind for article in articles).most_common(), ("all", len(articles))]:
        chosen = np.array([kind in (article.kind, "all") for article in articles])
        cells = [f"{f1[chosen].mean():.3f}, {np.count_nonzero(f1[chosen] < 0.5)}" for f1 in scores]
        rows.append(f"| {kind} | {number} | {' | '.join(cells)} |")
    return rows


def sources(sets: dict[str, list[bytes]]) -> list[str]:
    """A row for each set: where the texts of `auto` are from, what is dropped, and its speed."""
    counted = [name for name in Html.counts if name != "with_bad_bytes"]
    rows = [f"| set | {' | '.join(f'`{name}`' for name in counted)} | `little_of_page` | `auto` | `resiliparse` |"]
    rows += [f"|---|{'---|' * (len(counted) + 3)}"]
    little = [rule.name for rule in Html().rules()].index("little_of_page")
    for name, pages in sets.items():
        result = staged(pages)()
        cells = [str(sum(result.columns[count].to_pylist())) for count in counted]
        times = {call: seconds for call, (_, seconds) in measure(_calls(pages, _FASTEST), pages).items()}
        speeds = [f"{times['resiliparse by itself'] / times[engine]:.2f}" for engine in _FASTEST]
        rows.append(f"| {name} | {' | '.join([*cells, str(np.count_nonzero(result.rule == little)), *speeds])} |")
    return rows


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data")
    print("| set | engine | F1 | precision | recall | F1, code | F1, lists | F1, tables | pages/s | MB/s | of itself |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    sets = {"kinds": mixed(folder), "news": news(folder), "readable": readable(folder)}
    for name, articles in sets.items():
        print("\n".join(table(f"{name}, {len(articles)}", articles)), flush=True)
    print(f"\n{chr(10).join(kinds(sets['kinds']))}", flush=True)
    crawls = {f"{name}, {len(pages)}": [page for page, _ in pages] for name, pages in crawled(folder).items()}
    encoded = {f"{name}, {len(articles)}": [article.html.encode() for article in articles] for name, articles in sets.items()}
    print(f"\n{chr(10).join(sources(crawls | encoded))}")


if __name__ == "__main__":
    main()
