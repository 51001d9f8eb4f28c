"""Distributions of what rules measured: a histogram of fixed bins, and the documents nearest the threshold.

Bins are 16 an octave, so histograms of any values add up:

    |value| < 2^-32          bin 0
    2^e · [1 + m/16, 1 + (m + 1)/16)     bin 1 + (e + 32) · 16 + m        larger values lie in the last bin
    negative values          the same bins with a minus
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import mix64
from datapipe.kernels.types import (
    Float64MatrixOut,
    Float64s,
    Int64MatrixOut,
    Int64s,
    Int64sOut,
    UInt64MatrixOut,
    UInt64s,
    input_record,
    room_for,
)

LOWEST_EXPONENT, HIGHEST_EXPONENT = -32, 47
BINS_AN_OCTAVE = 16
LAST_BIN = (HIGHEST_EXPONENT - LOWEST_EXPONENT + 1) * BINS_AN_OCTAVE
"""The number of the last bin; the first is -LAST_BIN."""

NUM_BINS = 2 * LAST_BIN + 1
NEAREST = 50  # documents that are held on each side of a threshold
_EXPONENT_BIAS = 1023
_MANTISSA_SHIFT = np.int64(48)
"""Of the bits of a float64: 52 bits of mantissa, of which 4 give the bin."""

_FIRST = np.int64(_EXPONENT_BIAS + LOWEST_EXPONENT) * np.int64(BINS_AN_OCTAVE) - np.int64(1)
_MAGNITUDE = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_TIE_SEED = np.uint64(0x9E3779B97F4A7C15)


class Decided(NamedTuple):
    reasons: Int64s  # (num_docs,), the rule that the document fails first; -1 for none
    text_bytes: Int64s  # (num_docs,)
    # file_hashes, positions: (num_docs,), the halves of the keys
    file_hashes: UInt64s
    positions: UInt64s


class NearestOut(NamedTuple):
    """The documents nearest a threshold. Axis 0: kept, dropped; 1: by distance, a keyed hash."""

    sizes: Int64sOut  # (2,), documents on each side
    # distances, values, limits: (2, NEAREST)
    distances: Float64MatrixOut
    values: Float64MatrixOut
    limits: Float64MatrixOut
    # ties, file_hashes, positions: (2, NEAREST)
    ties: UInt64MatrixOut
    file_hashes: UInt64MatrixOut
    positions: UInt64MatrixOut


def decided(reasons: np.ndarray, text_bytes: np.ndarray, halves: tuple[np.ndarray, np.ndarray]) -> Decided:
    """The record of a batch: (num_docs,) integers each."""
    return input_record(Decided, (reasons.astype(np.int64), text_bytes.astype(np.int64), *halves))


def nothing_near() -> NearestOut:
    out = NearestOut._make(map(np.zeros_like, room_for(NearestOut, (2, NEAREST))))
    return out._replace(sizes=np.zeros(2, np.int64))


def bins_of(values: np.ndarray) -> np.ndarray:
    """The bins of numbers that are not NaN, as `measure` chooses them: (n,) int64."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    bins = np.clip(((bits & _MAGNITUDE) >> _MANTISSA_SHIFT) - _FIRST, 0, LAST_BIN)
    return np.where(bits < 0, -bins, bins)


def bin_edges(number: int) -> tuple[float, float]:
    """The values of a bin, half open: [low, high); of a negative bin (low, high]. Those of bin 0 count as [0, 2^-32)."""
    if number == 0:
        return 0.0, 2.0**LOWEST_EXPONENT
    octave, part = divmod(abs(number) - 1, BINS_AN_OCTAVE)
    low, high = (2.0 ** (LOWEST_EXPONENT + octave) * (1 + step / BINS_AN_OCTAVE) for step in (part, part + 1))
    return (low, high) if number > 0 else (-high, -low)


@inline
def _is_before(distance: Any, tie: Any, other_distance: Any, other_tie: Any) -> Any:
    return distance < other_distance or (distance == other_distance and tie < other_tie)


@kernel
def measure(
    values: Float64s, limits: Float64s, documents: Decided, rule: int, side: int, counts: Int64MatrixOut, nearest: NearestOut
) -> int:
    """Adds a rule's values to its histogram and nearest documents; returns the number of NaNs.

    A document fails the rule where the rule is its reason, or where another one is and its value
    lies beyond the limit. `limits`: (num_docs,), or (1,) for all. `rule`: as in `Decided.reasons`.
    `side`: -1: values below the limit fail; 1: values above it; 0: the reasons alone decide.
    `counts`: (NUM_BINS, 4), of bin b at b + LAST_BIN: documents that pass, documents that fail, and
    their text bytes. `nearest`: of documents with a finite limit."""
    reasons, text_bytes, file_hashes, positions = documents
    sizes, distances, near_values, near_limits, ties, near_files, near_positions = nearest
    bits = values.view(np.int64)
    num_nan = 0
    for i in range(len(values)):
        value, limit, reason = values[i], limits[i if len(limits) > 1 else 0], reasons[i]
        if np.isnan(value):
            num_nan += 1
            continue
        bin_number = min(max(((bits[i] & _MAGNITUDE) >> _MANTISSA_SHIFT) - _FIRST, np.int64(0)), np.int64(LAST_BIN))
        row = np.int64(LAST_BIN) + (-bin_number if bits[i] < 0 else bin_number)
        fails = reason == rule or (reason >= 0 and ((side < 0 and value < limit) or (side > 0 and value > limit)))
        column = 1 if fails else 0
        counts[row, column] += 1
        counts[row, column + 2] += text_bytes[i]
        distance = abs(float(value) - float(limit))  # infinite ones give NaN, as plain Python without a warning
        if not distance < np.inf or (reason >= 0 and reason != rule):
            continue
        near = 1 if reason == rule else 0
        size = sizes[near]
        if size == NEAREST and distance > distances[near, NEAREST - 1]:
            continue
        tie = mix64(file_hashes[i] ^ mix64(positions[i] ^ _TIE_SEED))
        if size == NEAREST and not _is_before(distance, tie, distances[near, NEAREST - 1], ties[near, NEAREST - 1]):
            continue
        j = min(size, NEAREST - 1)
        sizes[near] = j + 1
        while j > 0 and _is_before(distance, tie, distances[near, j - 1], ties[near, j - 1]):
            distances[near, j], ties[near, j] = distances[near, j - 1], ties[near, j - 1]
            near_values[near, j], near_limits[near, j] = near_values[near, j - 1], near_limits[near, j - 1]
            near_files[near, j], near_positions[near, j] = near_files[near, j - 1], near_positions[near, j - 1]
            j -= 1
        distances[near, j], ties[near, j] = distance, tie
        near_values[near, j], near_limits[near, j] = value, limit
        near_files[near, j], near_positions[near, j] = file_hashes[i], positions[i]
    return num_nan
