"""Weights as exact integers.

{"web": 7/10, "code": 3/10}   ->   {"web": 7, "code": 3}   ->   {"web": 0.7, "code": 0.3}

The integers are in exact proportion up to a sum of 2^62 in lowest terms. Weights of more digits, such as a softmax of
floats, are rounded to shares of 2^-40 of the whole; no share above 0 becomes 0.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from math import gcd, isfinite, lcm
from numbers import Real

MAX_WEIGHT_SUM = 1 << 62
"""The sum of weights in lowest terms must be smaller: up to here the loader's quotas are exact in int64."""

ROUNDED_SUM = 1 << 40
"""The sum of rounded weights. A share is off by at most 2^-40, one token in 10^12."""

NOISE = Fraction(1, 10**6)
"""A share that rounding changes by at most this part of itself is not worth a warning: most floats are less exact."""

_HUGE_EXPONENT = re.compile(r"[eE][+-]?[0-9_]{3,}")


def exact_number(value: object) -> Fraction:
    """The number as it is written: 0.1 is a tenth, since the shortest decimal form of a float
    counts. Raises ValueError for anything else than a finite number or its text."""
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise ValueError(f"{value!r} of type {type(value).__name__} is not a number")
    text = value.strip().replace("_", "") if isinstance(value, str) else str(value)
    if isinstance(value, str) and _HUGE_EXPONENT.search(text):  # Fraction("1e999999999") would take a gigabyte of digits
        raise ValueError(f"{value!r} has an exponent of three digits or more")
    if not isinstance(value, str | Fraction) and not isfinite(value):
        raise ValueError(f"{value!r} is not finite")
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{value!r} is not a number") from error


def integer_weights(weights: Mapping[str, Fraction]) -> dict[str, int]:
    """The smallest integers in the proportions of `weights`, at least 0 each and one above 0, rounded to 2^-40 of the whole
    where the exact ones add up to 2^62 or more. Raises ValueError for other weights."""
    exact = exact_integers(weights)
    return exact if sum(exact.values()) < MAX_WEIGHT_SUM else exact_integers(_rounded(exact))


def exact_integers(weights: Mapping[str, Fraction]) -> dict[str, int]:
    """The smallest integers in exactly these proportions, however large they are. Raises ValueError as `integer_weights`."""
    if any(weight < 0 for weight in weights.values()) or not any(weights.values()):
        raise ValueError("expected weights of at least 0, and at least one above 0")
    scale = lcm(*(weight.denominator for weight in weights.values()))
    whole = {name: int(weight * scale) for name, weight in weights.items()}
    divisor = gcd(*whole.values())
    return {name: weight // divisor for name, weight in whole.items()}


def below_limit(weights: Mapping[str, int]) -> dict[str, int]:
    """Weights above 0 in lowest terms; with fewer bits where their sum would be 2^61 or more, and at least 1 each."""
    divisor = gcd(*weights.values()) or 1
    excess = max(0, (sum(weights.values()) // divisor).bit_length() - (MAX_WEIGHT_SUM.bit_length() - 2))
    return {name: max(1, weight // divisor >> excess) for name, weight in weights.items()}


def changed_shares(weights: Mapping[str, Fraction], counted: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """By source whose share rounding changed by more than noise: the share that was given, and the share that counts."""
    total, counted_total = sum(weights.values()), sum(counted.values())
    shares = {name: (weight / total, Fraction(counted[name], counted_total)) for name, weight in weights.items() if weight}
    return {
        name: (float(given), float(counts)) for name, (given, counts) in shares.items() if abs(counts - given) > NOISE * given
    }


def changes_in_words(changed: Mapping[str, tuple[float, float]]) -> str:
    """`changed_shares` for people: the first three sources, and how many more there are."""
    shown = [f"'{name}' from {given:.3g} to {counts:.3g}" for name, (given, counts) in list(changed.items())[:3]]
    more = f" and of {len(changed) - 3} more sources" if len(changed) > 3 else ""
    return f"shares are counted in units of 2^-40 of the whole, which changes that of {', '.join(shown)}{more}"


def _rounded(exact: Mapping[str, int]) -> dict[str, Fraction]:
    """Integers that add up to `ROUNDED_SUM`: each share rounded down but to 1 at least, the rest to the largest remainders."""
    total = sum(exact.values())
    units = {name: max(1, weight * ROUNDED_SUM // total) if weight else 0 for name, weight in exact.items()}
    rest = ROUNDED_SUM - sum(units.values())
    by_remainder = sorted(exact, key=lambda name: (-(exact[name] * ROUNDED_SUM - units[name] * total), name))
    for name in by_remainder[: max(0, rest)]:
        units[name] += 1
    if rest < 0:  # shares that were raised to 1 are taken from the largest
        units[max(exact, key=lambda name: (exact[name], name))] += rest
    return {name: Fraction(count) for name, count in units.items()}
