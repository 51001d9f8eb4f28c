"""Encoding against `tokenizers.encode_batch_fast` on one thread, in one run: MB/s, million tokens/s, and the ratio.

    taskset -c 0 python -m tests.benchmarks.encoders CORPUS.jsonl[.zst] TOKENIZER.json[.zst] … [--field text] [--bytes N]

Both are timed by the process's CPU time on the same texts, in turn, the best of three; ids are compared.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import zstandard
from tokenizers import Tokenizer

from datapipe.tokens import Encoder, tiktoken
from tests.benchmarks.tables import Settings, Table

_RUNS = 3
_CORPORA = {
    "English web pages": ("prose/cleaneval_web.jsonl.zst", "text"),
    "novels": ("prose/novels.jsonl.zst", "text"),
    "Java": ("code/codexglue_concode_dev.jsonl.zst", "code"),
    "sentences in 75 languages": ("lang/lingua_sentences.jsonl.zst", "text"),
}
_TOKENIZERS = {"GPT-2": "tokenizers/gpt2/tokenizer.json.zst", "cl100k": "tokenizers/cl100k_base.tiktoken.zst"}
_MOST_BYTES = 3_000_000


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return zstandard.ZstdDecompressor().stream_reader(content).read() if path.suffix == ".zst" else content


def _texts(path: Path, field: str, most_bytes: int) -> pa.Array:
    """Whole documents up to `most_bytes` in all."""
    with pa.input_stream(str(path), compression="detect") as stream:
        texts = pj.read_json(stream, pj.ReadOptions(block_size=256 << 20))[field].combine_chunks().cast(pa.large_string())
    sizes = np.cumsum(pa.compute.binary_length(texts).to_numpy())  # pyright: ignore[reportAttributeAccessIssue]
    return pa.concat_arrays([texts.slice(0, max(1, int(np.searchsorted(sizes, most_bytes))))])


@dataclass(frozen=True, kw_only=True)
class Rates:
    """CPU seconds of both on the same texts, the best of `num_runs`; the ids are equal."""

    ours_s: float
    library_s: float
    num_tokens: int
    fallback_reason: str

    @property
    def ratio(self) -> float:
        return self.library_s / self.ours_s


def measure(texts: pa.Array, content: bytes, num_runs: int = _RUNS) -> Rates:
    """Encodes with both, in turn."""
    encoder, library = Encoder(content), Tokenizer.from_buffer(content)
    library.encode_special_tokens = True
    listed = texts.to_pylist()
    ids, _ = encoder.encode(texts)
    expected = library.encode_batch_fast(listed, add_special_tokens=False)
    assert ids.tolist() == [number for encoding in expected for number in encoding.ids]
    ours_s, library_s = float("inf"), float("inf")
    for _ in range(num_runs):
        started = time.process_time()
        encoder.encode(texts)
        ours_s = min(ours_s, time.process_time() - started)
        started = time.process_time()
        library.encode_batch_fast(listed, add_special_tokens=False)
        library_s = min(library_s, time.process_time() - started)
    return Rates(ours_s=ours_s, library_s=library_s, num_tokens=len(ids), fallback_reason=str(encoder.fallback_reason or ""))


def table(settings: Settings) -> Table:
    """Every corpus with every tokenizer."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    contents = {name: _content(settings.data / path) for name, path in _TOKENIZERS.items()}
    contents = {name: tiktoken.convert(one) if tiktoken.is_rank_file(one) else one for name, one in contents.items()}
    num_runs, most_bytes = (1, _MOST_BYTES // 40) if settings.quick else (_RUNS, _MOST_BYTES)
    rows = []
    for corpus, (path, field) in _CORPORA.items():
        texts = _texts(settings.data / path, field, most_bytes)
        mb = pa.compute.sum(pa.compute.binary_length(texts)).as_py() / 1e6  # pyright: ignore[reportAttributeAccessIssue]
        cells = [f"{corpus}, {mb:.1f} MB"]
        for content in contents.values():
            rates = measure(texts, content, num_runs)
            cells += [f"{mb / rates.ours_s:.1f}", f"{mb / rates.library_s:.2f}", f"{rates.ratio:.0f}"]
        rows.append(cells)
    return Table(
        title="Encoding, beside `tokenizers`",
        note="`Encoder.encode` and `tokenizers.encode_batch_fast` on one thread, the same ids; CPU time, the best of "
        f"{num_runs}.",
        header=("text", *(cell for name in contents for cell in (f"{name} MB/s", "`tokenizers`", "ratio"))),
        rows=rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizers", type=Path, nargs="+")
    parser.add_argument("--field", default="text")
    parser.add_argument("--bytes", type=int, default=20_000_000)
    given = parser.parse_args()
    texts = _texts(given.corpus, given.field, given.bytes)
    mb = sum(len(text.encode()) for text in texts.to_pylist()) / 1e6
    for path in given.tokenizers:
        found = measure(texts, _content(path))
        ours = f"{mb / found.ours_s:.1f} MB/s ({found.num_tokens / found.ours_s / 1e6:.1f} M tokens/s)"
        rates = f"{ours}, tokenizers {mb / found.library_s:.2f} MB/s: {found.ratio:.0f} times"
        print(f"{given.corpus.name}, {path.name}, {mb:.1f} MB: {rates} {found.fallback_reason}", flush=True)


if __name__ == "__main__":
    main()
