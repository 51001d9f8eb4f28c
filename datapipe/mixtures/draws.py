"""Shares drawn at random within limits: a swarm around a mixture, and the candidates of a search.

    base shares ─ Dirichlet ─▶ shares (num_runs, num_sources) ─ within ─▶ the same within [low, high] ─ rounded ─▶ 5 digits

Uniform numbers are hashes of (seed, purpose, name of the source, row), so a draw depends on no generator's version, and a
source that is added changes no other. Gamma variates are those of Marsaglia and Tsang (2000): the rejections of a row read
its next numbers. Logarithms may differ by a unit in the last place between machines, which rounding to five digits hides.
"""

from collections.abc import Sequence

import numpy as np

from datapipe.rng import GOLDEN, mix64, seed_for

DIGITS = 5
"""Significant digits of a share that is written."""

_BISECTIONS = 80
_LEAST = 1e-12


def uniforms(seed: int, count: int, *names: str | int) -> np.ndarray:
    """Numbers in (0, 1), (count,) float64: the hash of each row under a seed for `names`."""
    with np.errstate(over="ignore"):
        hashes = mix64(np.uint64(seed_for(seed, *names)) + GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


def normals(seed: int, count: int, *names: str | int) -> np.ndarray:
    """Normal numbers, (count,) float64, by the transformation of Box and Muller."""
    radius = np.sqrt(-2.0 * np.log(uniforms(seed, count, *names, "radius")))
    return radius * np.cos(2.0 * np.pi * uniforms(seed, count, *names, "angle"))


def dirichlet(names: Sequence[str], alphas: np.ndarray, num_rows: int, seed: int) -> np.ndarray:
    """Shares of the sources `names`, (num_rows, num_sources) float64, each row with the sum 1.

    Args:
        alphas: (num_sources,), above 0. Shares are alphas / sum(alphas) on average; the larger the sum, the nearer to it.
    """
    columns = [_log_gamma_variates(seed, name, float(alpha), num_rows) for name, alpha in zip(names, alphas)]
    logs = np.stack(columns, axis=1)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def _log_gamma_variates(seed: int, name: str, alpha: float, num_rows: int) -> np.ndarray:
    """Logarithms of variates of Gamma(alpha), (num_rows,). Those of a small alpha are too small for the numbers themselves."""
    boosted = alpha if alpha >= 1 else alpha + 1  # Gamma(a) is Gamma(a + 1) times U^(1 / a)
    d = boosted - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    logs, open_rows, attempt = np.zeros(num_rows), np.ones(num_rows, np.bool_), 0
    while open_rows.any():
        x = normals(seed, num_rows, name, attempt)
        v = np.maximum(1.0 + c * x, 0.0) ** 3
        log_v = np.log(np.maximum(v, _LEAST))
        accepted = (v > 0) & (np.log(uniforms(seed, num_rows, name, attempt, "accept")) < 0.5 * x**2 + d * (1.0 - v + log_v))
        logs[open_rows & accepted] = (np.log(d) + log_v)[open_rows & accepted]
        open_rows &= ~accepted
        attempt += 1
    return logs if alpha >= 1 else logs + np.log(uniforms(seed, num_rows, name, "boost")) / alpha


def within(shares: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The shares with each in [low, high] and the sum 1: scaled by one factor a row, and cut at the limits.

    Args:
        shares: (num_rows, num_sources).
        low, high: (num_sources,), with sum(low) <= 1 <= sum(high).
    """
    shares = np.maximum(shares, _LEAST)
    least, most = np.full(len(shares), _LEAST), (high / shares).max(axis=1) + 1.0  # factors: (num_rows,)
    for _ in range(_BISECTIONS):
        middle = np.sqrt(least * most)
        is_below = np.clip(shares * middle[:, None], low, high).sum(axis=1) < 1.0
        least, most = np.where(is_below, middle, least), np.where(is_below, most, middle)
    return np.clip(shares * most[:, None], low, high)


def rounded(share: float) -> str:
    """A share as it is written: 0.37291, without an exponent."""
    text = np.format_float_positional(share, precision=DIGITS, fractional=False, trim="-")
    return text.rstrip(".") or "0"
