"""Weights computed from the sizes of the sources: temperature and UniMax. Pure, exact, and the same on every machine.

    tokens 900 : 90 : 10, temperature 2    ->  in proportion to tokens^(1/2), 30 : 9.5 : 3.2
    tokens 900 : 90 : 10, unimax, 600 to draw, max_epochs 2      ->  400 : 180 : 20, the last one capped at 20

Temperature sampling evens out the sources: at 1, each is drawn in proportion to its tokens; at
infinity, all equally (multilingual BERT, XLM-R). UniMax (Chung et al. 2023, arXiv 2304.09151)
shares a budget of tokens evenly, but draws no source more often than its `max_epochs`: the larger
sources share what the smaller ones cannot give.

Roots have 60 decimal digits, rounded as the standard of decimal arithmetic defines; `float` powers
differ between machines. UniMax computes with fractions. Both return integers with a sum below 2^62,
as the loader requires.

Tokens are those of an epoch as the loader counts it: rows times their length, as often as an epoch
has them. Before sources are packed, bytes of text stand in for tokens, four to a token.

The text that trains the tokenizer is shared out in the same proportions, averaged over all phases
by their length, as far as each source has text. Shares count tokens and the sample counts bytes,
since there is no tokenizer yet:

    sample 100, shares 1/2 : 1/4 : 1/4, sizes 1000 : 10 : 1000  ->  60 : 10 : 30
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from datapipe.cell_names import source_of
from datapipe.errors import DatapipeError
from datapipe.quantities import counted
from datapipe.shards.leaves import drawn_by, leaf_limits, leaf_name, leaves_of
from datapipe.weights import below_limit, exact_integers, integer_weights

if TYPE_CHECKING:
    from datapipe.config.mixture import Mixture
    from datapipe.config.mixture_schedule import WeightPhase
    from datapipe.shards.manifest import Snapshot
    from datapipe.shards.shard_table import ShardEntry
    from datapipe.shards.source_entry import SourceEntry

BYTES_PER_TOKEN = 4
"""Bytes of text to a token before tokens are counted: typical of English with vocabularies of 32,000 to 128,000 ids."""

Drawn = Mapping[str, tuple[int, list[tuple[str, int]]]]
"""Of keys of weights, as `leaves.drawn_by` returns it."""

_DIGITS = 60
_GRID = 10**12


def weight_phases(mixture: Mixture, epoch_tokens: Mapping[str, int], spare: int = 0) -> tuple[WeightPhase, ...]:
    """The weights over the run. A source without `epoch_tokens` has weight 0. The loader's whole
    rows may be ahead of a weight by `spare` tokens, so UniMax stays below `max_epochs` by as many.
    Raises DatapipeError when no source with a weight has tokens."""
    from datapipe.config.mixture_schedule import WeightPhase  # workers import this module, and read no mixture

    empty = [name for name in mixture.all_sources if not epoch_tokens.get(name)]
    if mixture.mixture.weighting == "given":
        phases = mixture.weight_phases()
    else:
        weighted = [name for name, source in mixture.all_sources.items() if source.weight]
        drawn = {name: epoch_tokens[name] for name in weighted if name not in empty}
        weights = dict.fromkeys(mixture.all_sources, 0) | (_from_tokens(mixture, drawn, spare) if drawn else {})
        phases = (WeightPhase(until_tokens=None, weights=weights),)
    kept = [{name: 0 if source_of(name) in empty else weight for name, weight in phase.weights.items()} for phase in phases]
    if not all(any(weights.values()) for weights in kept):
        raise DatapipeError(
            f"nothing to train on: no source with a weight above 0 has a row for training (without: {', '.join(empty)}). Its "
            f"documents were dropped, held out (`validation`) or not packed: `datapipe report --full` has the counts."
        )
    return tuple(WeightPhase(until_tokens=phase.until_tokens, weights=weights) for phase, weights in zip(phases, kept))


def shares_of(mixture: Mixture, tokens: Mapping[str, int]) -> dict[str, Fraction]:
    """The share of each source in all tokens, before they are packed. `tokens`: of each source, or
    an estimate; unused when the mixture gives the weights."""
    if mixture.mixture.weighting == "given":
        return mixture.average_shares()
    sizes = {name: tokens.get(name, 0) for name, source in mixture.all_sources.items() if source.weight}
    weights = _from_tokens(mixture, {name: size for name, size in sizes.items() if size} or dict.fromkeys(sizes, 1), 0)
    return {name: Fraction(weights.get(name, 0), sum(weights.values())) for name in mixture.all_sources}


def _from_tokens(mixture: Mixture, tokens: Mapping[str, int], spare: int) -> dict[str, int]:
    if mixture.mixture.weighting == "temperature":
        assert mixture.mixture.temperature is not None
        return by_temperature(tokens, mixture.mixture.temperature)
    assert mixture.mixture.tokens is not None
    caps: dict[str, Fraction] = {}
    for name, size in tokens.items():
        cap = Fraction(repr(mixture.max_epochs_of(name))) * size
        caps[name] = cap - spare if cap > 2 * spare else cap
    return bounded(sample_quotas(caps, dict.fromkeys(caps, Fraction(1)), mixture.mixture.tokens))


def by_temperature(tokens: Mapping[str, int], temperature: Fraction) -> dict[str, int]:
    """Integer weights in proportion to tokens^(1 / temperature), to twelve digits of their sum; each is at least 1."""
    context = Context(prec=_DIGITS)
    power = context.divide(Decimal(temperature.denominator), Decimal(temperature.numerator))
    roots = {name: context.exp(context.multiply(context.ln(Decimal(count)), power)) for name, count in tokens.items()}
    exact = {name: Fraction(root) for name, root in roots.items()}
    total = sum(exact.values())
    return integer_weights({name: Fraction(max(1, round(root * _GRID / total))) for name, root in exact.items()})


def bounded(weights: Mapping[str, Fraction]) -> dict[str, int]:
    """Integer weights in these proportions: exact if their sum is below 2^62, otherwise with fewer bits."""
    whole = exact_integers(weights)
    return whole | below_limit({name: weight for name, weight in whole.items() if weight})


def epoch_tokens(sources: Mapping[str, SourceEntry], shards: Iterable[ShardEntry], sequence_length: int) -> dict[str, int]:
    """Tokens of one epoch of each source, all its cells."""
    tokens = dict.fromkeys(sources, 0)
    for leaf, num_tokens in leaf_tokens(sources, shards, sequence_length).items():
        tokens[source_of(leaf)] += num_tokens
    return tokens


def drawn_shares(snapshot: Snapshot) -> dict[str, Fraction]:
    """The share of each source in all tokens, over all phases and without epoch caps."""
    shares = dict.fromkeys(snapshot.sources, Fraction(0))
    for keys, _ in _key_shares(snapshot):
        for name, share in keys.items():
            shares[source_of(name)] += share
    return shares


def _key_shares(snapshot: Snapshot) -> list[tuple[dict[str, Fraction], Drawn]]:
    """The shares in all tokens of the keys of phases that have the same keys, and the leaves that divide them."""
    found: dict[tuple[str, ...], tuple[dict[str, Fraction], Drawn]] = {}
    start = 0
    for phase in snapshot.phases:
        keys = tuple(phase.weights)
        if keys not in found:
            drawn = drawn_by(keys, snapshot.sources)
            found[keys] = dict.fromkeys(drawn, Fraction(0)), drawn
        shares, drawn = found[keys]
        stop = snapshot.total_tokens if phase.until_tokens is None else phase.until_tokens
        part = Fraction(1) if snapshot.total_tokens is None else Fraction((stop or 0) - start, snapshot.total_tokens)
        total = sum(phase.weights[key] for key in drawn)
        for key in drawn:
            shares[key] += part * Fraction(phase.weights[key], total)
        start = stop or 0
    return [*found.values()]


def exhausted(snapshot: Snapshot) -> dict[str, str]:
    """A message about each source, by its name, that would exceed its `max_epochs` within the tokens to train on, or of which a
    cell would."""
    short: dict[str, list[tuple[Fraction, str, str]]] = {}
    total, limits = snapshot.total_tokens, leaf_limits(snapshot.sources)
    sizes = leaf_tokens(snapshot.sources, snapshot.shards, snapshot.sequence_length)
    for leaf, share in leaf_shares(snapshot).items():
        limit = limits.get(leaf)
        if limit is None or total is None or not sizes[leaf]:
            continue
        needed = share * total / sizes[leaf]
        if needed > Fraction(repr(limit)):
            about = (
                f"{float(share):.2%} of {total:,} tokens is {float(needed):,.2f} epochs of its {sizes[leaf]:,} tokens, and its "
                f"max_epochs is {limit:g}"
            )
            short.setdefault(source_of(leaf), []).append((needed / Fraction(repr(limit)), leaf, about))
    found: dict[str, str] = {}
    for source, leaves in short.items():
        _, leaf, about = max(leaves)
        what = "source" if leaf == source else "cell"
        found[source] = f"{what} '{leaf}' has too little text: {about}"
        if len(leaves) > 1:
            many = f"{counted(len(leaves), 'cell')} of source '{source}' have too little text"
            found[source] = f"{many}. The first to end is '{leaf}': {about}"
    return found


def leaf_tokens(sources: Mapping[str, SourceEntry], shards: Iterable[ShardEntry], sequence_length: int) -> dict[str, int]:
    """Tokens of one epoch of each leaf: its training rows times their length, as often as an epoch has them."""
    rows: dict[str, int] = dict.fromkeys(leaves_of(sources), 0)
    for entry in shards:
        if entry.split == "train":
            cells = sources[entry.source].cells
            if cells is None:
                rows[entry.source] += sources[entry.source].epoch_rows(entry)
                continue
            for run in entry.cells or ():
                rows[leaf_name(entry.source, cells.names[run.cell])] += cells.times(run) * run.rows
    return {leaf: count * sequence_length for leaf, count in rows.items()}


def leaf_shares(snapshot: Snapshot) -> dict[str, Fraction]:
    """The share of each leaf that a phase names in all tokens, as `drawn_shares` of sources."""
    shares: dict[str, Fraction] = {}
    for keys, drawn in _key_shares(snapshot):
        for key, (total, own) in drawn.items():
            for leaf, weight in own:
                shares[leaf] = shares.get(leaf, Fraction(0)) + keys[key] * weight / total
    return shares


def sample_fractions(
    kept_bytes: Mapping[str, int], shares: Mapping[str, Fraction], sample_bytes: int, validation: float
) -> dict[str, float]:
    """The fraction of each source's training documents, from 0 to 1, that makes `sample_bytes` of
    text in all. `validation`: the fraction of each source that is held out, and not sampled."""
    sizes = {name: num_bytes * (1 - Fraction(validation)) for name, num_bytes in kept_bytes.items()}
    quotas = sample_quotas(sizes, shares, sample_bytes)
    return {name: float(quotas[name] / size) if size else 0.0 for name, size in sizes.items()}


def sample_quotas(sizes: Mapping[str, Fraction], shares: Mapping[str, Fraction], budget: int) -> dict[str, Fraction]:
    """What to take of each source: in proportion to its share, capped by its size, the rest from the other sources."""
    quotas = dict.fromkeys(sizes, Fraction(0))
    left = Fraction(budget)
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
