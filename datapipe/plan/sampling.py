"""Bytes of each source that the tokenizer is trained on: its share of the run, as far as it has text. Pure.

    sample 100, shares 1/2 : 1/4 : 1/4, sizes 1000 : 10 : 1000  ->  60 : 10 : 30

The other sources fill what a source lacks, in proportion to their shares. The share is that of the whole run, because one
tokenizer serves all phases: where weights change by phase, it is their average, weighted by the length of the phases. Shares
count tokens and the sample counts bytes. They differ as much as sources differ in bytes per token, which is not known before
there is a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction


def sample_fractions(
    kept_bytes: Mapping[str, int], shares: Mapping[str, Fraction], sample_bytes: int, validation: float
) -> dict[str, float]:
    """The fraction of each source's training documents to sample, from 0 to 1.

    Args:
        kept_bytes: of each source, from its committed steps.
        shares: of each source in the run.
        sample_bytes: bytes of text to sample in all.
        validation: the fraction of each source in the validation split, which is not sampled.
    """
    sizes = {name: num_bytes * (1 - Fraction(validation)) for name, num_bytes in kept_bytes.items()}
    quotas = sample_quotas(sizes, shares, sample_bytes)
    return {name: float(quotas[name] / size) if size else 0.0 for name, size in sizes.items()}


def sample_quotas(sizes: Mapping[str, Fraction], shares: Mapping[str, Fraction], sample_bytes: int) -> dict[str, Fraction]:
    """Bytes to sample of each source: in proportion to its share, capped by its size, the rest from the other sources."""
    quotas = dict.fromkeys(sizes, Fraction(0))
    left = Fraction(sample_bytes)
    shares_left = {name: shares[name] for name in sizes if shares[name] and sizes[name]}
    while shares_left:
        total = sum(shares_left.values())
        full = [name for name, share in shares_left.items() if sizes[name] <= left * share / total]
        if not full:
            return quotas | {name: left * share / total for name, share in shares_left.items()}
        for name in full:
            quotas[name] = sizes[name]
            left -= sizes[name]
            del shares_left[name]
    return quotas
