"""The banding of MinHash: how many bands of how many rows, and how likely two documents are to match in a band (the S-curve).

    P(match | similarity s) = 1 - (1 - s^rows)^bands

For 14 bands of 8 rows, the setting of FineWeb (Penedo et al. 2024), 5 % at a similarity of 0.50, 50 % at 0.68, 99 % at 0.85.
Where pairs are verified, a pair counts if it matches in a band and enough of the bands * rows minima are equal.

**The default of `min_similarity`** is (1 / bands)^(1 / rows), 0.719 for 14 bands of 8 rows. There
the areas by which datasketch chooses bands (false positives below a similarity plus false negatives
above it) have their least sum, 0.040. Labelled sets agree (`tests/benchmarks/dedup_quality.py`):
pages of one site share its frame, and unverified matches chain them.

| set | measure | unverified | from 0.64 | from 0.719 |
|---|---|---|---|---|
| pages of sites | precision (recall 1.00) | 0.32 | 0.76 | 0.95 |
| pairs of web pages labelled by people | precision | 0.94 | 0.96 | 0.97 |
| pairs of web pages labelled by people | recall | 0.72 | 0.69 | 0.63 |
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from datapipe.errors import UserError

_SHOWN = tuple(tenth / 10 for tenth in range(3, 11))
"""The similarities at which the curve is printed."""


def counting_probability(similarity: float, bands: int, rows: int, least: float) -> float:
    """The probability that two documents match in a band and have an estimated similarity of at least `least`."""
    band = _sums(np.array([1 - similarity, similarity]), rows)
    unmatched = np.append(band[:-1], 0.0)
    alike = np.round(np.arange(bands * rows + 1) / (bands * rows), 6) >= least
    return min(1.0, max(0.0, float(_sums(band, bands)[alike].sum() - _sums(unmatched, bands)[alike].sum())))


def _sums(chances: np.ndarray, times: int) -> np.ndarray:
    """The distribution of the sum of `times` independent draws from the distribution `chances` over 0, 1, …"""
    if times == 1:
        return chances
    half = _sums(chances, times // 2)
    both = np.convolve(half, half)
    return np.convolve(both, chances) if times % 2 else both


def similarity_matched_with(probability: float, bands: int, rows: int) -> float:
    """The similarity at which two documents match in a band with a given probability."""
    return (1 - (1 - probability) ** (1 / bands)) ** (1 / rows)


@lru_cache(maxsize=16)
def best_banding(threshold: float, num_perm: int) -> tuple[int, int]:
    """Bands and rows of at most `num_perm` permutations with the least sum of false positives and
    false negatives around `threshold`, as datasketch computes them."""
    from datasketch import MinHashLSH

    try:
        chosen = MinHashLSH(threshold=threshold, num_perm=num_perm)
    except ValueError as error:
        raise UserError(
            f"dedup.minhash: {num_perm} permutations cannot form two bands for a threshold of {threshold}. "
            "Lower threshold, or give bands and rows instead."
        ) from error
    return chosen.b, chosen.r


def curve_lines(bands: int, rows: int, least: float | None) -> tuple[str, ...]:
    """The banding and its curve as lines of text. `least`: the estimated similarity from which a
    pair counts; None: all count."""
    lines = (
        f"{bands} bands of {rows} rows, {bands * rows} permutations; half of the pairs match at similarity "
        f"{similarity_matched_with(0.5, bands, rows):.2f}, 5 % at {similarity_matched_with(0.05, bands, rows):.2f}, "
        f"99 % at {similarity_matched_with(0.99, bands, rows):.2f}",
        _row("similarity", [f"{similarity:.1f}" for similarity in _SHOWN]),
        _row("match", map(_per_cent, (1 - (1 - similarity**rows) ** bands for similarity in _SHOWN))),
    )
    if least is None:
        return lines
    return (*lines, _row("verified", (_per_cent(counting_probability(each, bands, rows, least)) for each in _SHOWN)))


def _row(name: str, cells: Iterable[str]) -> str:
    """A line of the curve: 50 columns, so that it is whole in a plan on a screen of 60."""
    return f"{name:<10}{''.join(f'{each:>5}' for each in cells)}"


def _per_cent(share: float) -> str:
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"
