"""From a gzip WARC to text on one core, beside what others do: `python -m tests.benchmarks.crawl [FOLDER]`.

FOLDER holds the real corpora, by default `../shared/data`. Their WARC files are repeated to about 60 MB of pages. CPU times,
the best of several rounds in which all take turns. Peers that are not installed are left out; give their folder in PYTHONPATH.
Prints a table in Markdown.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
from resiliparse.extract.html2text import extract_plain_text

from datapipe.columns import make_keys
from datapipe.stage import FieldNames, InputFile, Split, StageContext
from datapipe.stage.documents import PAGE_FIELDS, DocumentBatch
from stages.extract.html import Html
from stages.read.warc import Warc

_FILES = ("resiliparse_warcfile", "dolma_sample-0000", "dolma_sample-0001", "whirlwind")
_REPEATS, _ROUNDS = 26, 3
_DCLM: dict[str, Any] = {"main_content": True, "alt_texts": False, "comments": False, "post_meta": False}


def batches(path: str) -> list[DocumentBatch]:
    """The pages of an archive, as a task reads them."""
    file = InputFile(url=path, path=Path(path).name, num_bytes=Path(path).stat().st_size, stamp="", compression="gzip")
    made = []
    for batch in Warc().read(Split(file=file), FieldNames(keep=("url", "charset")), pa.OSFile):
        columns = [make_keys(1, batch.positions), batch.ids.fill_null(""), batch.html, *batch.extra.values()]
        fields = [*PAGE_FIELDS, *(pa.field(name, column.type) for name, column in batch.extra.items())]
        made.append(DocumentBatch(pa.record_batch(columns, schema=pa.schema(fields))))
    return made


def ours(engine: str) -> Callable[[str], int]:
    """Reads and extracts; returns how many pages have a text."""
    stage = Html.model_validate({"engine": engine})
    stage.open(StageContext(name="extract.html", seed=1))
    return lambda path: sum(int(stage.process(batch).keep.sum()) for batch in batches(path))


def bare(pages: list[str]) -> Callable[[str], int]:
    """Resiliparse by itself, on pages that are decoded already."""
    return lambda path: sum(bool(extract_plain_text(page, **_DCLM)) for page in pages)


def dclm(path: str) -> int:
    """warcio, strict UTF-8 or nothing, resiliparse: the way of DCLM's `process_common_crawl_w_ray`."""
    from warcio.archiveiterator import ArchiveIterator  # type: ignore[import-not-found]

    kept = 0
    with open(path, "rb") as file:
        for record in ArchiveIterator(file):
            if record.rec_type != "response":
                continue
            try:
                kept += bool(extract_plain_text(record.content_stream().read().decode("utf-8"), **_DCLM))
            except UnicodeDecodeError:
                continue
    return kept


def datatrove(path: str) -> int:
    """datatrove's reader and extractor with their defaults."""
    from datatrove.pipeline.extractors import Trafilatura  # type: ignore[import-not-found]
    from datatrove.pipeline.readers import WarcReader  # type: ignore[import-not-found]

    file = Path(path)
    read = WarcReader(str(file.parent), glob_pattern=file.name)()
    return sum(1 for _ in Trafilatura()(read))


def _cpu_s() -> float:
    """CPU seconds of this process and of those it has waited for: datatrove extracts in one of its own."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    data = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.warc.gz"
        content = b"".join((data / f"warc/{name}.warc.gz").read_bytes() for name in _FILES)
        Path(path).write_bytes(content * _REPEATS)
        pages = [page.decode("utf-8", "replace") for batch in batches(path) for page in batch.html.to_pylist()]
        num_bytes = sum(batch.html.nbytes for batch in batches(path))
        calls = {
            "resiliparse by itself, on decoded pages": bare(pages),
            "read.warc, extract.html": ours("auto"),
            "read.warc, extract.html: {engine: resiliparse}": ours("resiliparse"),
            "read.warc, extract.html: {engine: trafilatura}": ours("trafilatura"),
        }
        calls |= {"warcio and resiliparse, as DCLM": dclm} if find_spec("warcio") else {}
        calls |= {"datatrove: WarcReader, Trafilatura": datatrove} if find_spec("datatrove") and find_spec("magic") else {}
        best, kept = dict.fromkeys(calls, float("inf")), {}
        for name in list(calls) * _ROUNDS:
            started = _cpu_s()
            kept[name] = calls[name](path)
            best[name] = min(best[name], _cpu_s() - started)
    least = best["resiliparse by itself, on decoded pages"]
    print(f"{len(pages):,} pages of {num_bytes / 1e6:,.0f} MB\n\n| | pages with text | pages/s | MB/s of HTML | speed |")
    print("|---|---:|---:|---:|---:|")
    for name, seconds in best.items():
        rates = f"{len(pages) / seconds:,.0f} | {num_bytes / seconds / 1e6:,.1f} | {least / seconds:.2f}"
        print(f"| {name} | {kept[name]:,} | {rates} |")


if __name__ == "__main__":
    main()
