"""Compiled cutting against `tokenizers` on random strings.

    python -m tests.benchmarks.fuzz_pretokens --count N --seed S [NAME …]

Each of N strings is cut by every pattern (or those whose name starts with a NAME), and the first strings that differ are shown.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from datapipe.tokens.published_patterns import PATTERNS
from tests.oracles.pretokens import NAMED, hard_texts, pretoken_ends, reference

_BATCH = 20_000
_SHOWN = 10


def differing(name: str, texts: list[str]) -> list[str]:
    """The texts that kernel and engine cut differently, each cut as a document of one batch."""
    splitter, pattern = reference(NAMED[name]), PATTERNS[NAMED[name]]
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    data = np.frombuffer(b"".join(encoded), np.uint8)
    found = np.empty(len(data), np.int64)
    found = found[: pattern.cut(offsets, data, found)]
    expected = [pretoken_ends(splitter, text) for text in texts]
    flat = [start + end for start, ends in zip(offsets[:-1].tolist(), expected, strict=True) for end in ends]
    if found.tolist() == flat:
        return []
    ends = np.split(found, np.searchsorted(found, offsets[1:-1], "right"))
    return [
        f"{text!r}: {(own - start).tolist()}, expected {wanted}"
        for text, own, start, wanted in zip(texts, ends, offsets[:-1], expected, strict=True)
        if (own - start).tolist() != wanted
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = [name for name in NAMED if not options.names or name.startswith(tuple(options.names))]
    generator, started = np.random.default_rng(options.seed), time.monotonic()
    wrong = dict.fromkeys(names, 0)
    for done in range(0, options.count, _BATCH):
        texts = hard_texts(generator, min(_BATCH, options.count - done))
        for name in names:
            different = differing(name, texts)
            for line in different[: max(_SHOWN - wrong[name], 0)]:
                print(f"{name}: {line}", flush=True)
            wrong[name] += len(different)
    print(f"{options.count} strings, seed {options.seed}, {time.monotonic() - started:.0f} s; strings that differ: {wrong}")
    sys.exit(any(wrong.values()))


if __name__ == "__main__":
    main()
