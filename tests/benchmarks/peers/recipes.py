"""Cleaning recipes beside each other: JSON lines of web text to packed tokens, by the rules of FineWeb.

    web pages ─▶ few ⊂ some ─▶ many: copies of some with other words

A side runs at two sizes, and its figure is MB of text for each CPU second between them, so imports and other work of a start
are not in it. The peer takes `few` and `some`; ours takes `some` and `many`, since it is faster. The shares of documents that
both keep are those of `some`.
"""

import json
import random
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count, islice
from pathlib import Path

import zstandard

from tests.benchmarks.peers.comparison import OURS, Comparison, run_program
from tests.benchmarks.peers.results import Figure
from tests.benchmarks.tables import Settings
from tests.benchmarks.texts import WEB, read_texts
from tests.support.varied_pages import IN_JSON, VariedPages

PEER = "datatrove"
HALF, TENTH = "half of the documents dropped", "a tenth of the documents dropped"
"""The texts: all pages in a random order; and a page of Cleaneval after nine of GOV.UK news."""

_MB, _QUICK_MB = {"few": 0.2, "some": 1.2, "many": 96.0}, {"few": 0.05, "some": 0.2, "many": 8.0}
_SIZES = {OURS: ("some", "many"), PEER: ("few", "some")}
_OTHER_LINE_ENDS = frozenset("\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")


def comparisons(settings: Settings) -> Iterator[Comparison]:
    for text in (HALF, TENTH):
        written = partial(_written, text, settings.data, settings.folder, settings.quick)
        yield Comparison(
            work=f"recipe, {text}",
            peer=PEER,
            unit="MB a CPU second",
            prepare=lambda written=written: [written().run(side, "few") for side in _SIZES],
            ours=lambda written=written: written().figure(OURS),
            theirs=lambda written=written: written().figure(PEER),
        )


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A text at three sizes: FOLDER/SIZE/texts.jsonl, of `num_bytes` in `num_docs` documents."""

    folder: Path
    num_bytes: dict[str, int]
    num_docs: dict[str, int]

    def run(self, side: str, size: str) -> tuple[float, float]:
        """CPU seconds of one run, and the share of documents that it keeps."""
        with tempfile.TemporaryDirectory(dir=self.folder) as output:
            paths = (self.folder / size, self.folder / "tokenizer.json", Path(output) / "out")
            figures = run_program(side, "recipe", self.folder, *map(str, paths))
        return figures["cpu_s"], figures["kept"] / self.num_docs[size]

    def figure(self, side: str) -> Figure:
        smaller, larger = _SIZES[side]
        (small_s, small_kept), (large_s, large_kept) = self.run(side, smaller), self.run(side, larger)
        megabytes = (self.num_bytes[larger] - self.num_bytes[smaller]) / 1e6
        return Figure(value=megabytes / (large_s - small_s), kept=small_kept if side == OURS else large_kept)


@cache
def _written(text: str, data: Path, folder: Path, is_quick: bool) -> Corpus:
    folder, megabytes = folder / "recipes" / text.partition(" ")[0], _QUICK_MB if is_quick else _MB
    some = _first(_pages(text, data), megabytes["some"])
    copies = map(VariedPages(some, IN_JSON).copy, count())
    sizes = {
        "few": _first(some, megabytes["few"]),
        "some": some,
        "many": _first(chain.from_iterable(copies), megabytes["many"]),
    }
    for size, pages in sizes.items():
        (folder / size).mkdir(parents=True)
        (folder / size / "texts.jsonl").write_bytes(b"".join(b'{"text": "' + page + b'"}\n' for page in pages))
    compressed = (data / "tokenizers/gpt2/tokenizer.json.zst").read_bytes()
    (folder / "tokenizer.json").write_bytes(zstandard.ZstdDecompressor().stream_reader(compressed).read())
    return Corpus(
        folder=folder,
        num_bytes={size: sum(map(len, pages)) for size, pages in sizes.items()},
        num_docs={size: len(pages) for size, pages in sizes.items()},
    )


def _pages(text: str, data: Path) -> Iterator[bytes]:
    """Pages as JSON writes them. The decisions of both sides are equal where newlines end all lines, so pages with others are
    left out."""
    corpora = {
        name: [page for page in read_texts(data / name).to_pylist() if _OTHER_LINE_ENDS.isdisjoint(page)] for name in WEB
    }
    if text == HALF:
        ordered = list(chain.from_iterable(corpora.values()))
        random.Random(17).shuffle(ordered)
    else:
        cleaneval, news = (iter(corpora[name]) for name in WEB[:2])
        ordered = chain.from_iterable((*islice(news, 9), page) for page in cleaneval)
    return (json.dumps(page, ensure_ascii=False)[1:-1].encode() for page in ordered)


def _first(pages: Iterable[bytes], megabytes: float) -> list[bytes]:
    """The first pages up to a size."""
    taken, size = [], 0
    for page in pages:
        taken.append(page)
        size += len(page)
        if size >= megabytes * 1e6:
            break
    return taken
