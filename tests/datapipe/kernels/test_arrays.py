"""Sums over blocks of bytes and searches of eight bytes at a time: at every offset within a block and within eight bytes."""

import json
import random
from itertools import pairwise, product

import numpy as np
import pytest

from datapipe import columns
from datapipe.kernels.arrays import BLOCK_BYTES
from datapipe.kernels.dedup.text_units import most_units
from datapipe.kernels.text.jsonlines import FieldPath
from datapipe.kernels.text.raw_lines import count_totals
from datapipe.kernels.text.words import most_words

LENGTHS = [0, 1, 7, 8, 9, 63, 64, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 9]
BEFORE, AFTER = b" a\n .", b"!\nb \n"
"""Bytes of no text, beside those of the texts."""

WHITE = {*range(9, 14), *range(28, 33)}
WIDE = {(0xC2, 0x85), (0xC2, 0xA0), (0xE2, 0x80), (0xE2, 0x81), (0xE1, 0x9A), (0xE3, 0x80)}


def made_up(seed: int) -> list[bytes]:
    """Bytes of characters, or with an odd seed any bytes."""
    draw = random.Random(seed)
    if seed % 2:
        return [bytes(draw.choices([*b"a \n.", *range(256)], k=length)) for length in LENGTHS]
    return ["".join(draw.choices("ab é\n中\u3000\u2028.?", k=length)).encode() for length in LENGTHS]


@pytest.mark.parametrize("seed", range(4))
def test_sums_over_blocks_are_those_over_all_bytes(seed: int) -> None:
    texts = made_up(seed)
    every = b"".join(texts)
    data = np.frombuffer(BEFORE + every + AFTER, np.uint8)
    offsets = np.cumsum([len(BEFORE), *map(len, texts)])
    totals = np.empty((len(texts), 4), np.int64)
    count_totals(offsets, data, totals)
    assert totals[:, 0].tolist() == [sum(byte & 0xC0 != 0x80 for byte in text) for text in texts]
    assert totals[:, 1].tolist() == [text.count(b"\n") for text in texts]
    assert most_units(offsets, data, True) == len(texts) + sum(byte in b"\n!.?" or byte >= 0xC0 for byte in every)
    assert most_units(offsets, data, False) == len(texts) + every.count(b"\n")
    begins = [(one in WHITE and other not in WHITE) or (one, other) in WIDE for one, other in pairwise(every)]
    assert most_words(offsets, data) == len(texts) + sum(begins)


def test_strings_end_at_their_quote_wherever_it_is() -> None:
    parts = product(range(20), ('"', "\\", '\\"', "\n\n\t", ""), (0, 1, 7, 8, 9))
    strings = ["x" * before + middle + "y" * behind for before, middle, behind in parts]
    lines = [json.dumps({"text": text, "id": number}) for number, text in enumerate(strings)]
    data = "\n".join(lines).encode()
    stops = np.cumsum([len(line) + 1 for line in lines]) - 1
    starts = stops - [len(line) for line in lines]
    for name, expected in (("text", strings), ("id", list(map(str, range(len(strings)))))):
        _, offsets, content, _ = FieldPath([name]).values(np.frombuffer(data, np.uint8), starts, stops)
        assert columns.texts_from(offsets, content).to_pylist() == expected
