"""Replacement against its oracle, and stand-ins that are addresses nobody has."""

from __future__ import annotations

import ipaddress
import re

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels import replace
from tests.oracles import replace as oracle


def _stand_ins(spans: list[bytes], kinds: list[int], seed: int) -> list[bytes]:
    data = np.frombuffer(b"".join(spans), np.uint8)
    stops = np.cumsum([len(span) for span in spans])
    starts = stops - np.array([len(span) for span in spans])
    rows = np.zeros((len(spans), replace.REPLACEMENT_BYTES), np.uint8)
    lengths = np.zeros(len(spans), np.int64)
    with np.errstate(over="ignore"):
        replace.write_stand_ins(data, starts, stops, np.array(kinds, np.uint8), np.uint64(seed), rows, lengths)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def test_write_stand_ins_random_spans_equal_the_oracle() -> None:
    generator = np.random.default_rng(0)
    spans = [generator.bytes(int(length)) for length in generator.integers(1, 30, 300)]
    kinds = generator.integers(0, 3, 300).tolist()
    for seed in (0, 2**64 - 1):
        assert _stand_ins(spans, kinds, seed) == [oracle.stand_in(span, kind, seed) for span, kind in zip(spans, kinds)]


def test_write_stand_ins_are_reserved_addresses() -> None:
    spans = [b"%d" % number for number in range(900)]
    found = _stand_ins(spans, [number % 3 for number in range(900)], 5)
    assert all(re.fullmatch(rb"user-[0-9a-f]{8}@example\.com", one) for one in found[0::3])
    assert all(ipaddress.IPv4Address(one.decode()) in ipaddress.ip_network("192.0.2.0/24") for one in found[1::3])
    assert all(ipaddress.IPv6Address(one.decode()) in ipaddress.ip_network("2001:db8::/32") for one in found[2::3])
    assert len(set(found[0::3])) == len(set(found[2::3])) == 300


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
    rows = np.zeros((len(spans), replace.REPLACEMENT_BYTES), np.uint8)
    for row, (_, _, by) in zip(rows, spans, strict=True):
        row[: len(by)] = np.frombuffer(by, np.uint8)
    lengths = np.array([len(by) for _, _, by in spans], np.int64)
    starts, stops = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    out_offsets, out = np.empty(31, np.int64), np.empty(sum(map(len, expected)), np.uint8)
    replace.replace_spans(offsets, data, starts, stops, rows, lengths, out_offsets, out)
    assert [out[a:b].tobytes() for a, b in zip(out_offsets[:-1], out_offsets[1:], strict=True)] == expected
