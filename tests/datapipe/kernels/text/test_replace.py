"""Replacement against its oracle."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.redact.stand_ins import REPLACEMENT_BYTES
from datapipe.kernels.text import replace
from tests.oracles import replace as oracle


@pytest.mark.parametrize("seed", range(6))
def test_replace_spans_random_spans_equal_the_oracle(seed: int) -> None:
    generator = np.random.default_rng(seed)
    texts = ["".join(generator.choice(list("abcé"), int(length))) for length in generator.integers(0, 20, 30)]
    column = pa.array(["skipped", *texts], pa.large_string()).slice(1)
    offsets, data = columns.text_buffers(column)
    spans, expected = [], []
    for start, text in zip(offsets[:-1].tolist(), texts, strict=True):
        num_bytes = len(text.encode())
        cuts = np.unique(generator.integers(0, num_bytes + 1, 4)).tolist()
        mine = [(a, b, generator.bytes(int(generator.integers(0, 9)))) for a, b in zip(cuts[0::2], cuts[1::2])]
        spans += [(start + a, start + b, by) for a, b, by in mine]
        expected.append(oracle.replaced(text.encode(), mine))
    rows = np.zeros((len(spans), REPLACEMENT_BYTES), np.uint8)
    for row, (_, _, by) in zip(rows, spans, strict=True):
        row[: len(by)] = np.frombuffer(by, np.uint8)
    lengths = np.array([len(by) for _, _, by in spans], np.int64)
    starts, stops = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    out_offsets, out = np.empty(31, np.int64), np.empty(sum(map(len, expected)), np.uint8)
    replace.replace_spans(offsets, data, starts, stops, rows, lengths, out_offsets, out)
    assert [out[a:b].tobytes() for a, b in zip(out_offsets[:-1], out_offsets[1:], strict=True)] == expected
