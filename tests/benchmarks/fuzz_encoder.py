"""Compiled encoding against `tokenizers` on random strings weighted towards the hard parts.

    python -m tests.benchmarks.fuzz_encoder --count N --seed S [PATTERN …] [--tokenizer tokenizer.json[.zst]]

A vocabulary is trained with each pattern on strings of the same kind. Each of N strings is encoded by kernels and by the
library; strings that differ are shown, and the exit status says whether there were any.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import pyarrow as pa
import zstandard
from tokenizers import Tokenizer

from datapipe.tokens import Encoder
from datapipe.tokens.patterns import PATTERNS
from datapipe.tokens.training import train_tokenizer
from tests.oracles.pretokens import hard_texts

_BATCH = 20_000
_SHOWN = 10


def differing(encoder: Encoder, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """The texts whose ids are not those of the library."""
    ids, offsets = encoder.encode(pa.array(texts, pa.large_string()))
    expected = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    flat = [number for one in expected for number in one.ids]
    if ids.tolist() == flat and np.diff(offsets).tolist() == [len(one.ids) for one in expected]:
        return []
    parts = [ids[start:stop].tolist() for start, stop in zip(offsets[:-1], offsets[1:])]
    return [f"{text!r}: {part}, expected {one.ids}" for text, part, one in zip(texts, parts, expected) if part != one.ids]


def _trained(pattern: str) -> bytes:
    texts = hard_texts(np.random.default_rng(0), 20_000)
    return train_tokenizer([pa.array(texts, pa.large_string())], 3_000, pattern=pattern)


def _read(path: str) -> bytes:
    with open(path, "rb") as stream:
        content = stream.read()
    return zstandard.ZstdDecompressor().stream_reader(content).read() if path.endswith(".zst") else content


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", action="append", default=[])
    parser.add_argument("patterns", nargs="*", default=[])
    given = parser.parse_args()
    contents = {name: _trained(name) for name in given.patterns or ([] if given.tokenizer else PATTERNS)}
    contents |= {path: _read(path) for path in given.tokenizer}
    wrong = 0
    for name, content in contents.items():
        encoder, tokenizer = Encoder(content), Tokenizer.from_buffer(content)
        tokenizer.encode_special_tokens = True
        assert not encoder.fallback_reason, encoder.fallback_reason
        generator, started, bad = np.random.default_rng(given.seed), time.monotonic(), 0
        for done in range(0, given.count, _BATCH):
            different = differing(encoder, tokenizer, hard_texts(generator, min(_BATCH, given.count - done)))
            for line in different[: max(_SHOWN - bad, 0)]:
                print(f"{name}: {line}", flush=True)
            bad += len(different)
        print(
            f"{name}: {given.count} strings, seed {given.seed}: {bad} differ ({time.monotonic() - started:.0f} s)", flush=True
        )
        wrong += bad
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
