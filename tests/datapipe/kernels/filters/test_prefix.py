"""Prefixes and suffixes are cut between whole characters."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.filters.prefix import prefix_stops

TEXTS = ["", "a", "abc", "äöü", "日本語です", "a😀b😀c", "x" * 9]


@pytest.mark.parametrize("num_chars", [0, 1, 2, 3, 4, 100])
def test_prefix_stops_any_text_cut_as_python_cuts(num_chars: int) -> None:
    offsets, data = columns.text_buffers(pa.array(["ü", *TEXTS], pa.large_string()).slice(1))
    stops = np.empty(len(TEXTS), np.int64)
    prefix_stops(offsets, data, num_chars, stops)
    actual = [data[start:stop].tobytes().decode() for start, stop in zip(offsets[:-1], stops, strict=True)]
    assert actual == [text[:num_chars] for text in TEXTS]
