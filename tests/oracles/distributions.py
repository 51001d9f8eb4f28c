"""Oracle of `datapipe/kernels/distributions.py`: bins by comparing with powers of two, and the nearest by sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.oracles.hashing import mix


def bin_of(value: float) -> int:
    """The number of the bin of a number that is not NaN."""
    magnitude = abs(value)
    if math.isinf(magnitude) or magnitude >= 2.0**48:
        number = 1280
    elif magnitude < 2.0**-32:
        number = 0
    else:
        octave = next(exponent for exponent in range(-32, 48) if magnitude < 2.0 ** (exponent + 1))
        part = int((magnitude / 2.0**octave - 1) * 16)  # exact: powers of two
        number = 1 + (octave + 32) * 16 + part
    return -number if math.copysign(1.0, value) < 0 else number


def tie(file_hash: int, position: int) -> int:
    return mix(file_hash ^ mix(position ^ 0x9E3779B97F4A7C15))


def fails(value: float, limit: float, reason: int, rule: int, side: int) -> bool:
    """Whether a document fails the rule: it is its reason, or it fails another one and this one, too."""
    beyond = value < limit if side < 0 else value > limit if side > 0 else False
    return reason == rule or (reason >= 0 and beyond)


def nearest(
    documents: Sequence[tuple[float, float, int, int, int]], rule: int, most: int
) -> list[list[tuple[float, int, float, float, int, int]]]:
    """(distance, tie, value, limit, file hash, position) of the nearest documents: of those kept, and of those dropped.

    Args:
        documents: value, limit, reason, file hash and position of each.
    """
    sides: list[list[tuple[float, int, float, float, int, int]]] = [[], []]
    for value, limit, reason, file_hash, position in documents:
        distance = abs(value - limit)
        if math.isfinite(distance) and reason in (-1, rule):
            entry = (distance, tie(file_hash, position), value, limit, file_hash, position)
            sides[reason == rule].append(entry)
    return [sorted(side)[:most] for side in sides]
