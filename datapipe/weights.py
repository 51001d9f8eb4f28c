"""Weights as exact integers.

{"web": 7/10, "code": 3/10}   ->   {"web": 7, "code": 3}   ->   {"web": 0.7, "code": 0.3}
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm

MAX_WEIGHT_SUM = 1 << 62
"""The sum of weights in lowest terms must be smaller: up to here the loader's quotas are exact in int64."""


def integer_weights(weights: Mapping[str, Fraction]) -> dict[str, int]:
    """The smallest integers in exactly these proportions.

    Args:
        weights: at least 0 each, and at least one above 0.

    Raises ValueError for other weights.
    """
    if any(weight < 0 for weight in weights.values()) or not any(weights.values()):
        raise ValueError("expected weights of at least 0, and at least one above 0")
    scale = lcm(*(weight.denominator for weight in weights.values()))
    whole = {name: int(weight * scale) for name, weight in weights.items()}
    divisor = gcd(*whole.values())
    return {name: weight // divisor for name, weight in whole.items()}


def proportions(weights: Mapping[str, int]) -> dict[str, float]:
    """The share of each source, as a fraction of 1."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}
