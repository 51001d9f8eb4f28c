"""Weights from how much there is of each source: temperature and UniMax. Pure, exact, and the same on every machine.

    tokens 900 : 90 : 10, temperature 2    ->  p in proportion to tokens^(1/2), 30 : 9.5 : 3.2
    tokens 900 : 90 : 10, unimax, 600 to draw, 2 epochs at most      ->  400 : 180 : 20, since 10 can give no more than 20

Temperature sampling evens sources out: at 1 each is drawn in proportion to its tokens, at infinity all alike (multilingual BERT
and XLM-R draw so). UniMax (Chung et al. 2023, arXiv 2304.09151) shares a budget of tokens evenly, but takes no source more
often than its `max_epochs`: the smallest first, and what it cannot give is shared among those that are left.

Roots are taken with 60 decimal digits, whose last are rounded as the standard of decimal arithmetic says; `float` powers differ
between machines. UniMax is made of fractions. Both give integers, which add up to less than 2^62 as the loader needs.

Tokens are those of an epoch as the loader counts it: rows times their length, strata as often as they repeat. Before there are
any, bytes of text stand in for them, four to a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Context, Decimal
from fractions import Fraction

from datapipe.config.mixture import Mixture
from datapipe.config.mixture_schedule import WeightPhase
from datapipe.errors import DatapipeError
from datapipe.shards.manifest import ShardEntry, Snapshot, SourceEntry
from datapipe.weights import MAX_WEIGHT_SUM, integer_weights

BYTES_PER_TOKEN = 4
"""Of text, where the tokens are not counted yet: about what tokenizers of 32,000 to 128,000 ids make of English."""

_DIGITS = 60
_GRID = 10**12


def weight_phases(mixture: Mixture, epoch_tokens: Mapping[str, int], spare: int = 0) -> tuple[WeightPhase, ...]:
    """The weights over the run. Raises DatapipeError where nothing is left to draw.

    Args:
        epoch_tokens: of each source, what an epoch of it draws; those without any lose their weight to the others.
        spare: tokens by which the loader's whole rows may be ahead of a weight; UniMax stays so far below `max_epochs`.
    """
    empty = [name for name in mixture.sources if not epoch_tokens.get(name)]
    if mixture.mixture.weighting == "given":
        phases = mixture.weight_phases()
    else:
        drawn = {name: epoch_tokens[name] for name, one in mixture.sources.items() if one.weight and name not in empty}
        weights = dict.fromkeys(mixture.sources, 0) | (_from_tokens(mixture, drawn, spare) if drawn else {})
        phases = (WeightPhase(until_tokens=None, weights=weights),)
    kept = [{name: 0 if name in empty else weight for name, weight in phase.weights.items()} for phase in phases]
    if not all(any(weights.values()) for weights in kept):
        raise DatapipeError(
            f"nothing to train on: no source with a weight above 0 kept a document (empty: {', '.join(empty)}). "
            f"The funnel shows where they went; loosen the stage that dropped them, or check the text field."
        )
    return tuple(WeightPhase(until_tokens=phase.until_tokens, weights=weights) for phase, weights in zip(phases, kept))


def shares_of(mixture: Mixture, tokens: Mapping[str, int]) -> dict[str, Fraction]:
    """The part of all tokens that comes from each source, as far as it is known before they are packed.

    Args:
        tokens: of each source, or a guess at them; not looked at where weights are given.
    """
    if mixture.mixture.weighting == "given":
        return mixture.average_shares()
    sizes = {name: tokens.get(name, 0) for name, source in mixture.sources.items() if source.weight}
    weights = _from_tokens(mixture, {name: size for name, size in sizes.items() if size} or dict.fromkeys(sizes, 1), 0)
    return {name: Fraction(weights.get(name, 0), sum(weights.values())) for name in mixture.sources}


def _from_tokens(mixture: Mixture, tokens: Mapping[str, int], spare: int) -> dict[str, int]:
    if mixture.mixture.weighting == "temperature":
        assert mixture.mixture.temperature is not None
        return by_temperature(tokens, mixture.mixture.temperature)
    assert mixture.mixture.tokens is not None
    caps: dict[str, Fraction] = {}
    for name, size in tokens.items():
        cap = Fraction(repr(mixture.max_epochs_of(name))) * size
        caps[name] = cap - spare if cap > 2 * spare else cap
    return bounded(unimax(caps, mixture.mixture.tokens))


def by_temperature(tokens: Mapping[str, int], temperature: Fraction) -> dict[str, int]:
    """Integer weights in proportion to tokens^(1 / temperature), to twelve digits of the whole; each is at least 1.

    Args:
        tokens: at least 1 of each.
        temperature: at least 1.
    """
    context = Context(prec=_DIGITS)
    power = context.divide(Decimal(temperature.denominator), Decimal(temperature.numerator))
    roots = {name: context.exp(context.multiply(context.ln(Decimal(count)), power)) for name, count in tokens.items()}
    exact = {name: Fraction(root) for name, root in roots.items()}
    total = sum(exact.values())
    return integer_weights({name: Fraction(max(1, round(root * _GRID / total))) for name, root in exact.items()})


def unimax(caps: Mapping[str, Fraction], budget: int) -> dict[str, Fraction]:
    """How many of `budget` tokens come from each source: evenly, but none above its cap; less in all where the caps are less.

    Args:
        caps: the most that may be drawn of each source, above 0.
    """
    shares: dict[str, Fraction] = {}
    left = Fraction(budget)
    for place, name in enumerate(sorted(caps, key=lambda name: (caps[name], name))):
        shares[name] = min(caps[name], left / (len(caps) - place))
        left -= shares[name]
    return shares


def bounded(weights: Mapping[str, Fraction]) -> dict[str, int]:
    """Integer weights in these proportions: exactly where their sum stays below 2^62, else to the nearest that does."""
    whole = integer_weights(weights)
    excess = max(0, sum(whole.values()).bit_length() - (MAX_WEIGHT_SUM.bit_length() - 2))
    return {name: max(1, weight >> excess) if weight else 0 for name, weight in whole.items()} if excess else whole


def epoch_tokens(sources: Mapping[str, SourceEntry], shards: Iterable[ShardEntry], sequence_length: int) -> dict[str, int]:
    """What one epoch of each source draws: its training rows, strata as often as they repeat, times their length."""
    found = dict.fromkeys(sources, 0)
    for entry in shards:
        if entry.split == "train":
            strata = sources[entry.source].strata
            repeat = 1 if strata is None or entry.stratum is None else strata.repeats[entry.stratum]
            found[entry.source] += repeat * entry.sequences * sequence_length
    return found


def drawn_shares(snapshot: Snapshot) -> dict[str, Fraction]:
    """The part of all tokens that comes from each source, over all phases; caps are not looked at."""
    shares, start = dict.fromkeys(snapshot.sources, Fraction(0)), 0
    for phase in snapshot.phases:
        stop = snapshot.total_tokens if phase.until_tokens is None else phase.until_tokens
        part = Fraction(1) if snapshot.total_tokens is None else Fraction((stop or 0) - start, snapshot.total_tokens)
        total = sum(phase.weights.values())
        for name, weight in phase.weights.items():
            shares[name] += part * Fraction(weight, total)
        start = stop or 0
    return shares


def exhausted(snapshot: Snapshot, epoch_tokens: Mapping[str, int]) -> list[str]:
    """A sentence on each source that would pass its `max_epochs` within the tokens to train on."""
    found: list[str] = []
    for name, share in drawn_shares(snapshot).items():
        limit, total = snapshot.sources[name].max_epochs, snapshot.total_tokens
        if limit is None or total is None or not epoch_tokens[name]:
            continue
        needed = share * total / epoch_tokens[name]
        if needed > Fraction(repr(limit)):
            found.append(
                f"source '{name}' has too little text: {float(share):.2%} of {total:,} tokens is {float(needed):,.2f} epochs "
                f"of its {epoch_tokens[name]:,} tokens, and its max_epochs is {limit:g}"
            )
    return found
