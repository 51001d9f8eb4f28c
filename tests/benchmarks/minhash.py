"""MinHash: speed compared with datatrove in one run, and the measured S-curve compared with theory.

    taskset -c 0 python -m tests.benchmarks.minhash CORPUS.jsonl.zst [--peer ~/peers/datatrove/bin/python] [--plot curve.svg]

The corpus is JSON lines with a field `text`. Both sides make 14 bands of 8 rows over word 5-grams: datapipe of all texts,
hashed into bands; datatrove (its words, shingles and permutations; nothing is written) of the first two megabytes. Both are
timed by the CPU time of their process, the best of a few runs, so other work on the machine does not count.

The curves are those of the whole stage, with defaults but for the banding, on pairs of random texts of known similarity: the
share of pairs that match in a band, and of pairs of which one document is dropped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj

from datapipe.stage import StageContext
from datapipe.stage.documents import DocumentBatch
from stages.dedup._banding import counting_probability, match_probability
from stages.dedup.minhash import Minhash
from tests.benchmarks.datatrove import batches
from tests.benchmarks.plots import draw
from tests.benchmarks.tables import NOT_MEASURED, Settings, Table
from tests.support import global_stages, minhash_pairs

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


def _best_s(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_RUNS + 1):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def _emit_s(stage: Minhash, corpus: Sequence[DocumentBatch]) -> float:
    return _best_s(lambda: [stage.emit(DocumentBatch(batch.record)) for batch in corpus])


def _whole_s(stage: Minhash, corpus: Sequence[DocumentBatch]) -> float:
    """All exchanges too, with the sorting between them, in memory."""
    return _best_s(lambda: global_stages.reduce_all(stage, [DocumentBatch(batch.record) for batch in corpus]))


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


@dataclass(frozen=True, kw_only=True)
class Point:
    """The expected and the measured share of pairs, and their difference in standard deviations."""

    similarity: float
    expected: float
    measured: float

    @property
    def sigmas(self) -> float:
        spread = (self.expected * (1 - self.expected) / _NUM_PAIRS) ** 0.5
        return (self.measured - self.expected) / spread if spread else 0.0


def _curves(bands: int, rows: int) -> tuple[list[Point], list[Point]]:
    """The shares of pairs that match, and of which one document is dropped, by the whole stage on 5-grams."""
    stage, matched, counted = _opened(bands=bands, rows=rows), [], []
    least = stage.least_similarity()
    for num_shared in range(_NUM_ALL // 10, _NUM_ALL + 1, _NUM_ALL // 10):
        similarity = num_shared / _NUM_ALL
        batch = global_stages.batch_of(
            minhash_pairs.pairs(num_shared, _NUM_ALL, _NUM_PAIRS, seed=num_shared, ngram=stage.ngram)
        )
        share = minhash_pairs.share_matched(stage.emit(batch)["bands"], _NUM_PAIRS)
        matched.append(Point(similarity=similarity, expected=match_probability(similarity, bands, rows), measured=share))
        expected = counting_probability(similarity, bands, rows, least)
        share = global_stages.reduce_all(stage, [batch])["drops"].num_rows / _NUM_PAIRS
        counted.append(Point(similarity=similarity, expected=expected, measured=share))
    return matched, counted


def _plot(path: Path, curves: dict[tuple[int, int], tuple[list[Point], list[Point]]]) -> None:
    """The share of pairs that match: theory as lines, measurements as dots."""
    points = {
        f"{bands} bands of {rows} rows": [(one.similarity, one.measured) for one in matched]
        for (bands, rows), (matched, _) in curves.items()
    }
    theory = {
        name: [(s / 100, match_probability(s / 100, *banding)) for s in range(101)] for name, banding in zip(points, curves)
    }
    draw(path, "Jaccard similarity", "share of pairs that match", points, theory)


def read_texts(corpus: Path) -> pa.Array:
    with pa.input_stream(str(corpus), compression="detect") as stream:
        return pj.read_json(stream, pj.ReadOptions(block_size=256 << 20))["text"].combine_chunks().cast(pa.large_string())


def table(settings: Settings) -> Table:
    """Signatures, and the whole of the stage."""
    texts = read_texts(settings.web)
    corpus = list(batches(texts))
    mb = sum(batch.text_bytes for batch in corpus) / 1e6
    peer = _peer_rate(settings.datatrove, texts) if settings.datatrove else None
    rates = {
        "signatures, words": mb / _emit_s(_opened(), corpus),
        "signatures, characters": mb / _emit_s(_opened(shingle="char"), corpus),
        "words, all exchanges in memory": mb / _whole_s(_opened(), corpus),
    }
    return Table(
        title="MinHash",
        note=f"14 bands of 8 rows over 5-grams, {mb:.1f} MB of English web text in {len(texts):,} documents; CPU time, the "
        f"best of {_RUNS + 1}.",
        header=("work", "MB/s"),
        rows=[
            *((name, f"{rate:,.1f}") for name, rate in rates.items()),
            ("signatures, words, by datatrove", NOT_MEASURED if peer is None else f"{peer:.2f}"),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--peer", help="the Python that has datatrove")
    parser.add_argument("--plot", type=Path, help="where to draw the curves (needs matplotlib)")
    given = parser.parse_args()
    texts = read_texts(given.corpus)
    corpus = list(batches(texts))
    mb = sum(batch.text_bytes for batch in corpus) / 1e6
    ours = mb / _emit_s(_opened(), corpus)
    print(f"{mb:.1f} MB, {len(texts)} documents; 14 bands of 8 rows, 5-grams, one core\n\n| signatures | MB/s |\n|---|---:|")
    print(f"| datapipe, words, to the last exchange | {mb / _whole_s(_opened(), corpus):.1f} |")
    print(f"| datapipe, words | {ours:.1f} |\n| datapipe, characters | {mb / _emit_s(_opened(shingle='char'), corpus):.1f} |")
    if given.peer:
        theirs = _peer_rate(given.peer, texts)
        print(f"| datatrove, words | {theirs:.2f} |\n\ndatapipe is {ours / theirs:.0f} times as fast by words")
    curves = {banding: _curves(*banding) for banding in _BANDINGS}
    for (bands, rows), (matched, counted) in curves.items():
        print(f"\n{bands} bands of {rows} rows, {_NUM_PAIRS} pairs each\n")
        print("| similarity | meet, theory | measured | sigma | count, theory | measured | sigma |")
        print("|---:|---:|---:|---:|---:|---:|---:|")
        for both in zip(matched, counted):
            cells = " | ".join(f"{one.expected:.2%} | {one.measured:.2%} | {one.sigmas:+.1f}" for one in both)
            print(f"| {both[0].similarity:.1f} | {cells} |")
    if given.plot:
        _plot(given.plot, curves)


if __name__ == "__main__":
    main()
