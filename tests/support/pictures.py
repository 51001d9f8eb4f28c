"""The pictures of the documents, and one command that draws them again: `python -m tests.support.pictures`.

generated texts ─▶ runs in this process ─▶ tables of a report ─▶ `chart_svg`       the funnel, the grid, the growth of a corpus
                                        └▶ a screen ─▶ `token_picture`             a batch with its documents
boxes and arrows, with the colours of a report                                    the service
"""

import random
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from datapipe.quantities import counted
from datapipe.report.cells import Table
from datapipe.report.drawing import Bars
from datapipe.report.html.page import chart_css, chart_svg
from datapipe.report.report import Report, read_report
from datapipe.shards.snapshots import publications
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.finished import finish, follow
from tests.support.token_picture import token_picture

ROOT = Path(__file__).parents[2]
_SPLIT = """
      by: [language, topic, {column: quality, quantiles: 10}]
      weights: sqrt(tokens) * (1 + quality)
      repeat: {"*/*/9": 2.5}
      max_epochs: {"*/*/0": 1}
"""
_LANGUAGES = {"en": 12, "de": 6, "ja": 5, "fr": 4, "zh": 4, "es": 3, "hi": 2, "sw": 1}
_TOPICS = {"news": 5, "science": 3, "law": 2, "games": 2, "food": 1}
_TAIL = "tokenizer: {train: {vocab_size: 400}}\npack: {sequence_length: 32}\n"


def _report(folder: Path) -> Report:
    return read_report(Root(str(folder / "out")))


def _svg(table: Table) -> str:
    return re.sub('(?<=">)<title>[^<]*</title>', "", chart_svg(table))  # titles of marks: a picture in a page shows none


def funnel(folder: Path) -> str:
    """What becomes of 900 documents in the stages of a source."""
    rng = random.Random(3)
    rows = corpora.documents(1, 700, exact=0.12, near=0.12, short=0.1)
    rows += [{"id": f"list-{n}", "text": "\n".join([corpora.prose(rng, 9)] * 20)} for n in range(130)]
    rows += [{"id": f"words-{n}", "text": corpora.prose(rng, 100).replace(" the ", " ").upper()} for n in range(70)]
    corpora.write_jsonl(folder / "web.jsonl", rows)
    stages = "stages: [normalize.unicode, filter.gopher_quality, filter.gopher_repetition, dedup.exact, dedup.minhash]"
    finish(runs.write_mixture(folder, f"  web: {{path: {folder}/web.jsonl}}", stages, _TAIL))
    section = next(section for section in _report(folder).sections() if section.anchor == "funnel")
    return _svg(section.figures[0])


def cells(folder: Path) -> str:
    """What training draws of each cell of a source."""
    rng = random.Random(5)
    rows = [
        {"text": corpora.prose(rng, rng.randint(8, 40)), "language": language, "topic": topic, "quality": rng.gauss(0, 1)}
        for language, topic in zip(_drawn(rng, _LANGUAGES), _drawn(rng, _TOPICS))
    ]
    corpora.write_jsonl(folder / "crawl.jsonl", rows)
    sources = f"  crawl:\n    path: {folder}/crawl.jsonl\n    keep: [language, topic, quality]\n    split:{_SPLIT}"
    finish(runs.write_mixture(folder, sources, "", _TAIL + "mixture: {tokens: 400000, exhausted: redistribute}"))
    [section] = [section for section in _report(folder).sections() if section.anchor == "cells"]
    _, shares = [table for table in section.tables if table.drawing is not None and table.drawing.kind == "heat"]
    return _svg(shares)


def _drawn(rng: random.Random, weights: dict[str, int]) -> list[str]:
    return rng.choices([*weights], [*weights.values()], k=8000)


def growth(folder: Path) -> str:
    """Tokens of the snapshots of an output that follows its files."""
    mixture = runs.write_mixture(folder, f"  web: {{path: {folder}/in/*.jsonl}}", "stages: [dedup.exact]", _TAIL)
    for number in range(5):
        corpora.write_jsonl(folder / f"in/{number}.jsonl", corpora.documents(number, 60 + 25 * (number % 3)))
        follow(mixture)
    snapshots = [each.snapshot for each in publications(Root(str(folder / "out")))]
    rows = [
        [f"snapshot {number}, {counted(len(snapshot.shards), 'shard')}", sum(s.tokens for s in snapshot.shards)]
        for number, snapshot in enumerate(sorted(snapshots, key=lambda each: len(each.shards)), start=1)
    ]
    title = "Tokens of each snapshot: a generation adds shards, and writes none again"
    return _svg(Table(title=title, headings=["snapshot", "tokens"], rows=rows, drawing=Bars(unit=" tokens")))


_BOXES = (  # x, y, width, class, lines
    (12, 62, 170, "stream", ("runs/web", "snapshots and shards:", "a disk, S3, GCS, Azure")),
    (270, 12, 180, "passed", ("datapipe serve", "server a", "keeps nothing for a client")),
    (270, 112, 180, "passed", ("datapipe serve", "server b", "answers any rank, any step")),
    (538, 12, 170, "stream", ("Loader, rank 0", "state: a few integers")),
    (538, 80, 170, "stream", ("Loader, rank 1", "asks the next server")),
    (538, 148, 170, "stream", ("Loader, rank 2", "where one fails or drains")),
)
_LINKS = ((450, 40, 538, 34), (450, 50, 538, 92), (450, 140, 538, 104), (450, 150, 538, 170))
_ARROWS = ((182, 88, 270, 50), (182, 98, 270, 146), *_LINKS)  # x, y, and where they end
_STYLE = ".box { fill-opacity: .25; } .line { stroke: var(--soft); fill: none; } .head { fill: var(--soft); }"
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 240" role="img" class="chart"><title>The service</title>
<style>
{style}</style>
<defs><marker id="end" viewBox="0 0 8 8" refX="2" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0L8 4L0 8z" class="head"/></marker></defs>
<rect width="100%" height="100%" rx="6" style="fill: var(--paper); stroke: var(--line)"/>
"""


def service(folder: Path) -> str:
    """Servers between the shards of an output and the ranks of a training."""
    marks = [f'<path d="M{x},{y} L{to - 8},{down}" class="line" marker-end="url(#end)"/>' for x, y, to, down in _ARROWS]
    for x, y, width, kind, lines in _BOXES:
        marks.append(f'<rect x="{x}" y="{y}" width="{width}" height="{16 + 16 * len(lines)}" rx="5" class="{kind} box"/>')
        for number, line in enumerate(lines):
            below, size = y + 20 + 16 * number, "tick" if number else "marked"
            marks.append(f'<text x="{x + 10}" y="{below}" class="{size}">{line}</text>')
    marks.append('<text x="494" y="226" class="middle tick">Arrow Flight over gRPC, with TLS and tokens</text>')
    return _HEAD.format(style=f"{chart_css()}{_STYLE}\n") + "\n".join([*marks, "</svg>", ""])


PICTURES: Mapping[str, Callable[[Path], str]] = {
    ".github/pictures/funnel.svg": funnel,
    "mixtures/cells.svg": cells,
    "mixtures/growth.svg": growth,
    "datapipe/tokens/batch.svg": token_picture,
    "datapipe/service/service.svg": service,
}
"""Each picture by its path; a README beside it, or the one of the project, shows it."""


if __name__ == "__main__":
    for path, draw in PICTURES.items():
        with tempfile.TemporaryDirectory() as made:
            (ROOT / path).write_text(draw(Path(made)), encoding="utf-8")
