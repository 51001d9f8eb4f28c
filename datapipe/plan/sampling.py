"""How much of each source the tokenizer is trained on: its share of the run, as far as there is text. Pure.

    sample 100, shares 1/2 : 1/4 : 1/4, there are 1000 : 10 : 1000  ->  60 : 10 : 30

What a source does not have, the others give, in proportion to their shares. The share is of the whole run: where weights change
by phase, their average over the phases, each as long as it lasts, since the tokenizer serves all of them. Shares are of tokens
and the sample is of bytes, which differ by as much as sources differ in bytes per token; the tokens are not known yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction


def sample_fractions(
    kept_bytes: Mapping[str, int], shares: Mapping[str, Fraction], sample_bytes: int, validation: float
) -> dict[str, float]:
    """The part of each source's training documents to sample, from 0 to 1.

    Args:
        kept_bytes: of each source, as committed.
        shares: of each source in the run.
        sample_bytes: of text wanted from all of them.
        validation: the part of each source that is held out, and so not sampled.
    """
    sizes = {name: num_bytes * (1 - Fraction(validation)) for name, num_bytes in kept_bytes.items()}
    quotas = sample_quotas(sizes, shares, sample_bytes)
    return {name: float(quotas[name] / size) if size else 0.0 for name, size in sizes.items()}


def sample_quotas(sizes: Mapping[str, Fraction], shares: Mapping[str, Fraction], sample_bytes: int) -> dict[str, Fraction]:
    """Bytes to take of each source: in proportion to its share, capped by its size, the rest from the others."""
    quotas = dict.fromkeys(sizes, Fraction(0))
    left = Fraction(sample_bytes)
    open_shares = {name: shares[name] for name in sizes if shares[name] and sizes[name]}
    while open_shares:
        total = sum(open_shares.values())
        full = [name for name, share in open_shares.items() if sizes[name] <= left * share / total]
        if not full:
            return quotas | {name: left * share / total for name, share in open_shares.items()}
        for name in full:
            quotas[name] = sizes[name]
            left -= sizes[name]
            del open_shares[name]
    return quotas
