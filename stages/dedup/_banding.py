"""How many bands of how many rows, how likely two documents are to meet in one of them (the S-curve), and where documents
meet that say little.

P(meet | similarity s) = 1 - (1 - s^rows)^bands

Where meetings are verified a pair counts that met and of which enough of the bands * rows minima are the same. Those are as
many coins that fall on their heads with probability s; in a band that did not meet there are 0 to rows - 1 heads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np

from datapipe.errors import UserError
from datapipe.kernels.dedup import contents

SIMILARITIES = tuple(tenth / 10 for tenth in range(1, 11))
"""Where the curve is told to people."""

_BLANK = 0x5D2B7A90C1E64F38
"""Where documents without words meet, if they do."""


def match_probability(similarity: float, bands: int, rows: int) -> float:
    """How likely two documents of a Jaccard similarity are to agree on a whole band."""
    return 1 - (1 - similarity**rows) ** bands


def counting_probability(similarity: float, bands: int, rows: int, least: float) -> float:
    """How likely two documents are to meet and to have an estimated similarity of `least`."""
    band = _sums(np.array([1 - similarity, similarity]), rows)
    unmet = np.append(band[:-1], 0.0)
    alike = np.round(np.arange(bands * rows + 1) / (bands * rows), 6) >= least
    return min(1.0, max(0.0, float(_sums(band, bands)[alike].sum() - _sums(unmet, bands)[alike].sum())))


def _sums(chances: np.ndarray, times: int) -> np.ndarray:
    """The chances of 0, 1, … of something, taken so many times together."""
    if times == 1:
        return chances
    half = _sums(chances, times // 2)
    both = np.convolve(half, half)
    return np.convolve(both, chances) if times % 2 else both


def similarity_met_by(probability: float, bands: int, rows: int) -> float:
    """The similarity at which documents meet with a probability."""
    return (1 - (1 - probability) ** (1 / bands)) ** (1 / rows)


@lru_cache(maxsize=16)
def best_banding(threshold: float, num_perm: int) -> tuple[int, int]:
    """Bands and rows of at most `num_perm` permutations with the least area of false positives and negatives around
    `threshold`, as datasketch finds them."""
    from datasketch import MinHashLSH

    try:
        chosen = MinHashLSH(threshold=threshold, num_perm=num_perm)
    except ValueError as error:
        raise UserError(
            f"dedup.minhash: no two bands of {num_perm} permutations suit a threshold of {threshold}. "
            "Raise num_perm, lower threshold, or give bands and rows."
        ) from error
    return chosen.b, chosen.r


def curve_lines(bands: int, rows: int, least: float | None) -> tuple[str, ...]:
    """The banding and its curve, for people. `least`: the estimated similarity from which a pair counts, None where all do."""
    lines = (
        f"{bands} bands of {rows} rows, {bands * rows} permutations; half of the pairs meet at similarity "
        f"{similarity_met_by(0.5, bands, rows):.2f}, 5 % at {similarity_met_by(0.05, bands, rows):.2f}, "
        f"99 % at {similarity_met_by(0.99, bands, rows):.2f}",
        "similarity " + "".join(f"{similarity:>8.1f}" for similarity in SIMILARITIES),
        "meet       " + "".join(f"{match_probability(similarity, bands, rows):>8.2%}" for similarity in SIMILARITIES),
    )
    if least is None:
        return lines
    return (*lines, "and count  " + "".join(f"{counting_probability(s, bands, rows, least):>8.2%}" for s in SIMILARITIES))


def by_contents(
    offsets: np.ndarray,
    data: np.ndarray,
    hashes: np.ndarray,
    documents: np.ndarray,
    empty: Literal["meet", "never"],
    only_digits: Literal["meet", "never"],
) -> tuple[np.ndarray, np.ndarray]:
    """Where documents meet, (num_rows,) uint64, and the document of each, (num_rows,) int64, once those that say little went by
    their rule; the options are those of `dedup.minhash`."""
    held = np.empty(len(offsets) - 1, np.uint8)
    contents.find_contents(offsets, data, held)
    if only_digits == "never":
        lettered = held[documents] == contents.LETTERS
        hashes, documents = hashes[lettered], documents[lettered]
    if empty == "meet":
        blank = np.flatnonzero(held == contents.BLANK)
        hashes = np.concatenate([hashes, np.full(len(blank), _BLANK, np.uint64)])
        documents = np.concatenate([documents, blank])
    return hashes, documents
