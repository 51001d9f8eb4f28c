"""MinHash: speed against datatrove in one run, and the S-curve that the implementation has against the one it should have.

    taskset -c 0 python -m tests.benchmarks.minhash CORPUS.jsonl.zst [--peer ~/peers/datatrove/bin/python] [--plot curve.svg]

The corpus is JSON lines with a field `text`. Both sides make 14 bands of 8 rows over word 5-grams of the texts: ours of all
of them and hashed into bands, datatrove's (its words, its shingles, its permutations; nothing is written) of the first two
megabytes. Both are timed by their own process's CPU time, the best of a few runs, so that other work on the machine counts for
neither.

The curve is measured on pairs of random words whose similarity is known.

Measured on one core of a 2-core AMD EPYC, 10.7 MB of web text: 296 MB/s by words, 82 by characters, datatrove 0.10.1 0.53:
554 times as fast. Of 30 points of three curves, 2,000 pairs each, one lay 2.7 standard deviations off, the others within 1.4.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from datapipe.columns import make_keys
from datapipe.documents import BASE_FIELDS, DocumentBatch
from datapipe.stage import StageContext
from stages.dedup._banding import meeting_probability
from stages.dedup.minhash import Minhash
from tests import minhash_pairs
from tests.benchmarks.datatrove import batches

_RUNS, _NUM_PAIRS, _NUM_ALL = 5, 2_000, 120
_BANDINGS = ((14, 8), (20, 5), (40, 2))
_PEER_BYTES = 2_000_000
_PEER = """
import json, sys, time
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
texts = json.load(sys.stdin)
step = MinhashDedupSignature(output_folder=sys.argv[1], config=MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8))
step.get_signature(step.get_shingles("some words to load the tokenizer with before the clock starts"))
best = float("inf")
for _ in range(2):
    started = time.process_time()
    for text in texts:
        shingles = step.get_shingles(text)
        if shingles.size:
            step.get_signature(shingles)
    best = min(best, time.process_time() - started)
print(json.dumps(best))
"""


def _opened(**options: object) -> Minhash:
    stage = Minhash.model_validate(options)
    stage.open(StageContext(name="dedup.minhash", seed=1))
    return stage


def _emit_s(stage: Minhash, corpus: Sequence[DocumentBatch]) -> float:
    best = float("inf")
    for _ in range(_RUNS + 1):
        started = time.process_time()
        for batch in corpus:
            stage.emit(DocumentBatch(batch.record))
        best = min(best, time.process_time() - started)
    return best


def _peer_rate(python: str, texts: pa.Array) -> float:
    """MB/s of datatrove over the first texts."""
    some, size = [], 0
    for text in texts.to_pylist():
        some.append(text)
        size += len(text.encode())
        if size >= _PEER_BYTES:
            break
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-c", _PEER, folder]
        out = subprocess.run(command, check=True, capture_output=True, text=True, input=json.dumps(some)).stdout
    return size / 1e6 / json.loads(out.splitlines()[-1])


def _measured(bands: int, rows: int) -> list[tuple[float, float, float, float]]:
    """Similarity, theory, what was measured and the distance in standard deviations."""
    stage, found = _opened(bands=bands, rows=rows, ngram=1), []
    for num_shared in range(_NUM_ALL // 10, _NUM_ALL + 1, _NUM_ALL // 10):
        texts = pa.array(minhash_pairs.pairs(num_shared, _NUM_ALL, _NUM_PAIRS, seed=num_shared), pa.large_string())
        keys = make_keys(1, np.arange(len(texts), dtype=np.uint64))
        record = pa.RecordBatch.from_arrays([keys, texts, texts], schema=pa.schema(BASE_FIELDS))
        met = minhash_pairs.share_met(stage.emit(DocumentBatch(record))["bands"], _NUM_PAIRS)
        expected = meeting_probability(num_shared / _NUM_ALL, bands, rows)
        spread = (expected * (1 - expected) / _NUM_PAIRS) ** 0.5
        found.append((num_shared / _NUM_ALL, expected, met, (met - expected) / spread if spread else 0.0))
    return found


def _plot(curves: dict[tuple[int, int], list[tuple[float, float, float, float]]]) -> str:
    """An SVG: the theory as lines, what was measured as dots."""
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="-40 -10 460 340" font-family="sans-serif" font-size="12">']
    parts += ['<path d="M0 0V300H400" fill="none" stroke="#888"/><text x="150" y="325">Jaccard similarity</text>']
    for number, ((bands, rows), curve) in enumerate(curves.items()):
        colour = ("#06c", "#c60", "#080")[number % 3]
        line = " ".join(f"{4 * s},{300 - 300 * meeting_probability(s / 100, bands, rows):.1f}" for s in range(101))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
        parts.append(f'<text x="10" y="{20 + 16 * number}" fill="{colour}">{bands} bands of {rows} rows</text>')
        parts += [f'<circle cx="{400 * s:.1f}" cy="{300 - 300 * met:.1f}" r="3" fill="{colour}"/>' for s, _, met, _ in curve]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--peer", help="the Python that has datatrove")
    parser.add_argument("--plot", type=Path, help="where to write the curves as SVG")
    given = parser.parse_args()
    with pa.input_stream(str(given.corpus), compression="detect") as stream:
        texts = pj.read_json(stream, pj.ReadOptions(block_size=256 << 20))["text"].combine_chunks().cast(pa.large_string())
    corpus = list(batches(texts))
    mb = sum(batch.text_bytes for batch in corpus) / 1e6
    ours = mb / _emit_s(_opened(), corpus)
    print(f"{mb:.1f} MB, {len(texts)} documents; 14 bands of 8 rows, 5-grams, one core\n\n| signatures | MB/s |\n|---|---:|")
    print(f"| datapipe, words | {ours:.1f} |\n| datapipe, characters | {mb / _emit_s(_opened(shingle='char'), corpus):.1f} |")
    if given.peer:
        theirs = _peer_rate(given.peer, texts)
        print(f"| datatrove, words | {theirs:.2f} |\n\ndatapipe is {ours / theirs:.0f} times as fast by words")
    curves = {banding: _measured(*banding) for banding in _BANDINGS}
    for (bands, rows), curve in curves.items():
        print(f"\n{bands} bands of {rows} rows, {_NUM_PAIRS} pairs each\n\n| similarity | theory | measured | sigma |")
        print("|---:|---:|---:|---:|")
        for similarity, expected, met, sigmas in curve:
            print(f"| {similarity:.1f} | {expected:.2%} | {met:.2%} | {sigmas:+.1f} |")
    if given.plot:
        given.plot.write_text(_plot(curves), encoding="utf-8")


if __name__ == "__main__":
    main()
