"""The texts that benchmarks read: English web pages of the real corpora, or made-up prose for the bounds."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import zstandard

from datapipe.columns import make_keys
from datapipe.stage.documents import BASE_FIELDS, TARGET_BATCH_BYTES, DocumentBatch
from tests.support import corpora

WEB = ("prose/cleaneval_web.jsonl.zst", "prose/govuk_news.jsonl.zst", "prose/govuk_commoncrawl_wet.jsonl.zst")


def write_web(data: Path, folder: Path, limit: int | None) -> Path:
    """English web text in one file: the first `limit` documents of each corpus, all of them by default, with made-up URLs."""
    web = folder / "web/web.jsonl.zst"
    web.parent.mkdir()
    with zstandard.open(web, "wt", encoding="utf-8") as file:
        for name in WEB:
            for number, text in enumerate(read_texts(data / name).to_pylist()[:limit]):
                url = f"https://{Path(name).parent}.example/{number}"
                file.write(json.dumps({"text": text, "url": url}) + "\n")
    return web


def read_texts(path: Path, field: str = "text", most_bytes: int | None = None) -> pa.Array:
    """The texts of JSON lines: all, or whole documents up to `most_bytes` together."""
    with pa.input_stream(str(path), compression="detect") as stream:
        texts = pj.read_json(stream, pj.ReadOptions(block_size=256 << 20))[field].combine_chunks().cast(pa.large_string())
    if most_bytes is None:
        return texts
    sizes = np.cumsum(pc.binary_length(texts).to_numpy())  # pyright: ignore[reportAttributeAccessIssue]
    return pa.concat_arrays([texts.slice(0, max(1, int(np.searchsorted(sizes, most_bytes))))])


def made_up_texts(num_docs: int, num_words: int = 400) -> pa.Array:
    """English-like documents of some 6 bytes a word."""
    rng = random.Random(7)
    return pa.array([corpora.prose(rng, num_words) for _ in range(num_docs)], pa.large_string())


def batches(texts: pa.Array) -> Iterator[DocumentBatch]:
    """The texts as a reader would hand them on, some 4 MiB each."""
    start = size = 0
    lengths = pc.binary_length(texts).to_pylist()  # pyright: ignore[reportAttributeAccessIssue]
    for stop, length in enumerate(lengths, start=1):
        size += length
        if size >= TARGET_BATCH_BYTES or stop == len(texts):
            part = pa.concat_arrays([texts.slice(start, stop - start)])
            keys = make_keys(1, np.arange(start, stop, dtype=np.uint64))
            ids = pa.array([str(number) for number in range(start, stop)], pa.large_string())
            yield DocumentBatch(pa.RecordBatch.from_arrays([keys, ids, part], schema=pa.schema(BASE_FIELDS)))
            start, size = stop, 0


def megabytes(corpus: list[DocumentBatch]) -> float:
    return sum(batch.text_bytes for batch in corpus) / 1e6
