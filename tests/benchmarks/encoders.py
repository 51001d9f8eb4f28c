"""Encoding against `tokenizers.encode_batch_fast` on one thread, in one run: MB/s, million tokens/s, and the ratio.

    taskset -c 0 python -m tests.benchmarks.encoders CORPUS.jsonl[.zst] TOKENIZER.json[.zst] … [--field text] [--bytes N]

Both are timed by the process's CPU time on the same texts, in turn, the best of three; ids are compared.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import zstandard
from tokenizers import Tokenizer

from datapipe.tokens import Encoder

_RUNS = 3


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return zstandard.ZstdDecompressor().stream_reader(content).read() if path.suffix == ".zst" else content


def _texts(path: Path, field: str, most_bytes: int) -> pa.Array:
    """Whole documents up to `most_bytes` in all."""
    with pa.input_stream(str(path), compression="detect") as stream:
        texts = pj.read_json(stream, pj.ReadOptions(block_size=256 << 20))[field].combine_chunks().cast(pa.large_string())
    sizes = np.cumsum(pa.compute.binary_length(texts).to_numpy())  # pyright: ignore[reportAttributeAccessIssue]
    return pa.concat_arrays([texts.slice(0, max(1, int(np.searchsorted(sizes, most_bytes))))])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizers", type=Path, nargs="+")
    parser.add_argument("--field", default="text")
    parser.add_argument("--bytes", type=int, default=20_000_000)
    given = parser.parse_args()
    texts = _texts(given.corpus, given.field, given.bytes)
    listed, mb = texts.to_pylist(), sum(len(text.encode()) for text in texts.to_pylist()) / 1e6
    for path in given.tokenizers:
        content = _content(path)
        encoder, library = Encoder(content), Tokenizer.from_buffer(content)
        library.encode_special_tokens = True
        encoder.encode(texts.slice(0, 1))
        ours, theirs = float("inf"), float("inf")
        for _ in range(_RUNS):
            started = time.process_time()
            ids, _ = encoder.encode(texts)
            ours = min(ours, time.process_time() - started)
            started = time.process_time()
            expected = library.encode_batch_fast(listed, add_special_tokens=False)
            theirs = min(theirs, time.process_time() - started)
        assert ids.tolist() == [number for one in expected for number in one.ids]
        rates = f"{mb / ours:.1f} MB/s ({len(ids) / ours / 1e6:.1f} M tokens/s), tokenizers {mb / theirs:.2f} MB/s"
        print(
            f"{given.corpus.name}, {path.name}, {mb:.1f} MB: {rates}: {theirs / ours:.0f} times {encoder.unusual}", flush=True
        )


if __name__ == "__main__":
    main()
