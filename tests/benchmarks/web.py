"""Web archives and their pages: how fast archives are read, and how well and how fast engines find the main text.

Archives: those of the real corpora, repeated to a few ten million bytes and packed again. Peers read every record with its
body, and parse the HTTP heads; they decode no body and make no columns.

Extraction: scores are means over pages of the words as a bag; the last column divides the time of resiliparse
called by itself on decoded pages by that of the engine. Peers that are not installed are left out; give their folder in
PYTHONPATH.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import lz4.frame
import pyarrow as pa
import zstandard
from resiliparse.extract.html2text import extract_plain_text

from datapipe.stage import FieldNames, FilterResult, InputFile, Reader, Split, StageContext
from stages.extract.html import Html
from stages.read.arc import Arc
from stages.read.warc import Warc
from stages.read.wet import Wet
from tests.benchmarks.tables import NOT_MEASURED, Bound, Settings, Table, best_s
from tests.benchmarks.texts import made_up_texts
from tests.support import web_archives
from tests.support.articles import Article, batch_of, mixed, news, readable, score

_KEEP = ("url", "date", "mime", "status", "charset")
_CONTENT_BYTES = 60 << 20
_COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4"}
_BARE: dict[str, Any] = {"main_content": True, "alt_texts": False, "comments": False, "post_meta": False}
_ENGINES: dict[str, dict[str, object]] = {
    "auto": {"engine": "auto"},
    "resiliparse": {"engine": "resiliparse"},
    "trafilatura": {"engine": "trafilatura"},
    "trafilatura, full": {"engine": "trafilatura", "full": True},
    "fallback": {"engine": "fallback"},
}
_BY_ITSELF = "resiliparse by itself"


def tables(settings: Settings) -> Iterator[Table]:
    num_runs = 1 if settings.quick else 3
    yield _archives(settings, 1 << 20 if settings.quick else _CONTENT_BYTES, num_runs)
    sets = {"kinds": mixed(settings.data), "news": news(settings.data), "readable": readable(settings.data)}
    sets = {f"{name}, {len(articles)}": articles[: 20 if settings.quick else None] for name, articles in sets.items()}
    yield _extraction(sets, num_runs)


def bounds(folder: Path) -> Iterator[Bound]:
    page = "<html><body><article>" + "<p>A sentence of some words, and another one.</p>" * 200 + "</article></body></html>"
    texts = made_up_texts(2000, num_words=1500).to_pylist()  # repeated text would unpack in no time, as no page does
    records = [web_archives.response(f"<html><body>{text}".encode(), number) for number, text in enumerate(texts)]
    content = b"".join(map(gzip.compress, records))
    file = _file(folder / "crawl.warc.gz", content)
    ours_s, peer_s = best_s(lambda: _read(Warc(), file), 5), best_s(lambda: _fastwarc(file.url), 5)
    yield Bound(name="a gzip WARC, beside fastwarc", ratio=peer_s / ours_s, least=0.15)
    pages = [page] * 100
    process = staged([text.encode() for text in pages], engine="resiliparse")
    ratio = best_s(lambda: bare(pages), 3) / best_s(process, 3)
    yield Bound(name="extract.html, beside resiliparse by itself", ratio=ratio, least=0.25)


# ------------------------------------------------------------------------------------------------ archives


def _archives(settings: Settings, content_bytes: int, num_runs: int) -> Table:
    return Table(
        title="Web archives, beside fastwarc and warcio",
        note=f"MB/s of uncompressed archive and records/s of one core, {', '.join(_KEEP)} kept; CPU time, the best of "
        f"{num_runs}. fastwarc and warcio read the records and parse HTTP heads, and make no columns.",
        header=("archive", "MB/s", "records/s", "pages or texts/s", "fastwarc MB/s", "ratio", "warcio MB/s", "ratio"),
        rows=[_archive_row(*case, num_runs) for case in _cases(settings, content_bytes)],
    )


def _cases(settings: Settings, content_bytes: int) -> Iterator[tuple[str, Reader, InputFile, int]]:
    """Name, reader, file, and bytes of content."""
    parts = list(_members((settings.data / "warc/resiliparse_warcfile.warc.gz").read_bytes()))
    size = sum(map(len, parts))
    count = max(1, content_bytes // size)
    packings: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        "Common Crawl WARC, plain": (".warc", bytes),
        "gzip": (".warc.gz", gzip.compress),
        "zstd": (".warc.zst", zstandard.ZstdCompressor().compress),
        "lz4": (".warc.lz4", lz4.frame.compress),
    }
    for name, (ending, pack) in packings.items():
        yield name, Warc(), _file(settings.folder / f"crawl{ending}", b"".join(map(pack, parts)) * count), count * size
    for name, reader, shared in (
        ("wget WARC, gzip", Warc(), "dolma_sample-0000.warc.gz"),
        ("Common Crawl WET, gzip", Wet(), "cc-2016-50_sample.per-record.warc.wet.gz"),
        ("Common Crawl ARC, one gzip member", Arc(), "cc-2008_sample.arc.gz"),
    ):
        stored = (settings.data / "warc" / shared).read_bytes()
        unpacked = len(gzip.decompress(stored))
        count = max(1, content_bytes // unpacked)
        yield name, reader, _file(settings.folder / shared, stored * count), count * unpacked


def _members(archive: bytes) -> Iterator[bytes]:
    from isal import isal_zlib

    while archive:
        decompressor = isal_zlib.decompressobj(31)
        yield decompressor.decompress(archive)
        archive = decompressor.unused_data


def _file(path: Path, content: bytes) -> InputFile:
    path.write_bytes(content)
    return InputFile(url=str(path), path=path.name, num_bytes=len(content), stamp="", compression=_COMPRESSION.get(path.suffix))


def _archive_row(name: str, reader: Reader, file: InputFile, content_bytes: int, num_runs: int) -> tuple[str, ...]:
    num_records, num_documents = _read(reader, file)
    ours_s = best_s(lambda: _read(reader, file), num_runs)
    peers: list[str] = []
    for peer in (_fastwarc, _warcio):
        if ".arc" in file.path or (peer is _warcio and file.compression not in (None, "gzip")):
            peers += ["cannot", ""]
        elif peer is _warcio and find_spec("warcio") is None:
            peers += [NOT_MEASURED, ""]
        else:
            peer_s = best_s(lambda peer=peer: peer(file.url), num_runs)
            peers += [f"{content_bytes / peer_s / 1e6:,.0f}", f"{peer_s / ours_s:.2f}"]
    rates = (f"{each / ours_s:,.0f}" for each in (content_bytes / 1e6, num_records, num_documents))
    return (name, *rates, *peers)


def _read(reader: Reader, file: InputFile) -> tuple[int, int]:
    """How many records and documents there are."""
    num_records = num_documents = 0
    for batch in reader.read(Split(file=file), FieldNames(keep=_KEEP), pa.OSFile):
        assert not batch.rejected, batch.rejected[0]
        num_documents += len(batch.positions)
        num_records += len(batch.positions) + sum(batch.passed_over.values())
    return num_records, num_documents


def _fastwarc(path: str) -> int:
    from fastwarc.warc import ArchiveIterator

    with open(path, "rb") as file:
        return sum(len(record.reader.read()) for record in ArchiveIterator(cast(Any, file), parse_http=True))


def _warcio(path: str) -> int:
    from warcio.archiveiterator import ArchiveIterator  # type: ignore[import-not-found]

    with open(path, "rb") as file:
        return sum(len(record.raw_stream.read()) for record in ArchiveIterator(file))


def _opened(**options: object) -> Html:
    stage = Html.model_validate(options)
    stage.open(StageContext(name="extract.html", seed=1))
    return stage


def bare(pages: Sequence[str]) -> list[str]:
    """Resiliparse called by itself, with the options that `extract.html` gives it."""
    return [extract_plain_text(page, **_BARE) for page in pages]


# ------------------------------------------------------------------------------------------------ extraction


def staged(pages: Sequence[bytes], **options: object) -> Callable[[], FilterResult]:
    """The whole stage: charset, measures, parser, engine and columns."""
    stage, batch = _opened(**options), batch_of(pages)
    return lambda: stage.process(batch)


def _measured(pages: Sequence[bytes], engines: Sequence[str], num_runs: int) -> dict[str, tuple[list[str], float]]:
    """The texts of each engine, and its best time in seconds; first those of resiliparse by itself."""
    decoded = [page.decode("utf-8", "replace") for page in pages]
    found = {_BY_ITSELF: (bare(decoded), best_s(lambda: bare(decoded), num_runs))}
    for name in engines:
        process = staged(pages, **_ENGINES[name])
        found[name] = (process().columns["text"].to_pylist(), best_s(process, num_runs))
    return found


def _extraction(sets: Mapping[str, Sequence[Article]], num_runs: int) -> Table:
    rows = []
    for name, articles in sets.items():
        pages = [article.html.encode() for article in articles]
        measured = _measured(pages, tuple(_ENGINES), num_runs)
        for engine, (texts, taken_s) in measured.items():
            scores = score(articles, texts)
            cells = [f"{figure:.3f}" for figure in (scores.f1, scores.precision, scores.recall)]
            cells += [_f1_with(articles, texts, kind) for kind in ("code", "lists", "tables")]
            cells += [f"{len(pages) / taken_s:.0f}", f"{sum(map(len, pages)) / 1e6 / taken_s:.1f}"]
            rows.append((name, engine, *cells, f"{measured[_BY_ITSELF][1] / taken_s:.2f}"))
    return Table(
        title="Main text by engine",
        note="250 pages of seven kinds of the Web Content Extraction Benchmark, news, and pages by Mozilla's Readability.",
        header=(
            *("set", "engine", "F1", "precision", "recall", "F1, code", "F1, lists", "F1, tables"),
            *("pages/s", "MB/s", "of itself"),
        ),
        rows=rows,
        kept_in="stages/extract/README.md",
    )


def _f1_with(articles: Sequence[Article], texts: Sequence[str], kind: str) -> str:
    """The F1 of the pages whose main text holds such elements."""
    chosen = [number for number, article in enumerate(articles) if kind in article.holds]
    return f"{score([articles[n] for n in chosen], [texts[n] for n in chosen]).f1:.3f}" if chosen else ""
