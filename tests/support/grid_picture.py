"""The picture of a grid in mixtures/README.md: what training draws of each cell, as report.html draws it.

    documents with a language, a topic and a quality ─▶ a run ─▶ report.html ─▶ the heat map, with its styles ─▶ SVG

python -m tests.support.grid_picture       writes it again
"""

import random
import re
import tempfile
from pathlib import Path

from tests.support import corpora, runs
from tests.support.finished import finish

PICTURE = Path(__file__).parents[2] / "mixtures/cells.svg"
SPLIT = """
      by: [language, topic, {column: quality, quantiles: 10}]
      weights: sqrt(tokens) * (1 + quality)
      repeat: {"*/*/9": 2.5}
      max_epochs: {"*/*/0": 1}
"""
_LANGUAGES = {"en": 12, "de": 6, "ja": 5, "fr": 4, "zh": 4, "es": 3, "hi": 2, "sw": 1}
_TOPICS = {"news": 5, "science": 3, "law": 2, "games": 2, "food": 1}
_STYLES = r"^(?::root|@media \(prefers| +:root| +--|\.chart [.t]|\[class|\.h\d).*$"


def grid_picture(folder: Path) -> str:
    """The picture, of a run in a folder."""
    rng = random.Random(5)
    rows = [
        {"text": corpora.prose(rng, rng.randint(8, 40)), "language": language, "topic": topic, "quality": rng.gauss(0, 1)}
        for language, topic in zip(_drawn(rng, _LANGUAGES), _drawn(rng, _TOPICS))
    ]
    corpora.write_jsonl(folder / "crawl.jsonl", rows)
    sources = f"  crawl:\n    path: {folder}/crawl.jsonl\n    keep: [language, topic, quality]\n    split:{SPLIT}"
    tail = "tokenizer: {train: {vocab_size: 400}}\npack: {sequence_length: 32}\n"
    tail += "mixture: {tokens: 400000, exhausted: redistribute}"
    finish(runs.write_mixture(folder, sources, "", tail))
    page = (folder / "out/report.html").read_text(encoding="utf-8")
    _, shares = re.findall(r'<svg [^>]*data-chart="heat".*?</svg>', page, re.DOTALL)
    styles = "\n".join(re.findall(_STYLES, page.partition("<style>")[2].partition("</style>")[0], re.MULTILINE))
    head, _, drawn = re.sub("<title>[^<]*%</title>", "", shares).partition(">")  # a picture in a page shows none
    frame = '<rect width="100%" height="100%" rx="6" style="fill: var(--paper); stroke: var(--line)"/>'
    return f'{head} xmlns="http://www.w3.org/2000/svg">\n<style>\n{styles}\n</style>\n{frame}{drawn}\n'


def _drawn(rng: random.Random, weights: dict[str, int]) -> list[str]:
    return rng.choices([*weights], [*weights.values()], k=8000)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PICTURE.write_text(grid_picture(Path(made)), encoding="utf-8")
