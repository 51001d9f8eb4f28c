"""The shares that a mixture has, and the limits within which others may be tried.

    max_epochs · tokens of an epoch / tokens to train on  ─▶ the largest share of a source      sizes are those of the snapshot
    --bound "crawl/*/19=1%:20%"                           ─▶ limits by name or pattern, which may only narrow these

A source is what the loader draws from: one of the mixture, or a cell of one, as the snapshot has it. Its name is opaque text.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from datapipe.config.fields import parse_share
from datapipe.config.mixture import Mixture
from datapipe.credentials import masked
from datapipe.dataclass import dataclass, replace
from datapipe.errors import UserError, suggest
from datapipe.records.names import SNAPSHOT
from datapipe.shards.leaves import leaf_limits
from datapipe.shards.manifest import Phase, Snapshot, read_tokens
from datapipe.steps import weighting
from datapipe.storage.root import Root

_MARGIN = 1e-4
"""Part of a cap that is left free, so that shares with `draws.DIGITS` digits do not exceed it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Shares of sources, and the smallest and largest share of each: (num_sources,) float64 each."""

    names: tuple[str, ...]
    shares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    reasons: Mapping[str, str]  # by source with a cap, where it comes from

    def bounded(self, bounds: Sequence[str]) -> "Limits":
        """These limits, narrowed by the values of `--bound`. Raises UserError."""
        low, high, reasons = self.low.copy(), self.high.copy(), dict(self.reasons)
        for bound in bounds:
            pattern, equals, shares = bound.rpartition("=")
            least, colon, most = shares.partition(":")
            named = [number for number, name in enumerate(self.names) if pattern == name or fnmatchcase(name, pattern)]
            if not equals or not colon:
                raise UserError(f"--bound {bound}: expected SOURCE=LEAST:MOST, such as web=10%:60%")
            if not named:
                near, known = suggest(pattern, self.names), ", ".join(self.names[:20])
                raise UserError(f"--bound {bound}: no source '{pattern}' with a weight.{near} Expected some of: {known}")
            try:
                low[named] = np.maximum(low[named], float(parse_share(least or 0)))
                most_share = float(parse_share(most or 1))
            except ValueError as error:
                raise UserError(f"--bound {bound}: {error}") from None
            reasons |= {self.names[number]: "--bound" for number in named if most_share < high[number]}
            high[named] = np.minimum(high[named], most_share)
        narrowed = replace(self, low=low, high=high, reasons=reasons)
        narrowed.check()
        return narrowed

    def of(self, names: Sequence[str]) -> "Limits":
        """Those of some sources, in another order; the others have a share of 0. Raises UserError for an unknown source."""
        for name in names:
            if name not in self.names:
                near, known = suggest(name, self.names), ", ".join(self.names[:20])
                raise UserError(f"the runs have weights of '{name}', which has none in the mixture.{near} Expected: {known}")
        number = {name: index for index, name in enumerate(self.names)}
        chosen = [number[name] for name in names]
        shares = self.shares[chosen]
        limits = replace(self, names=tuple(names), shares=shares / shares.sum(), low=self.low[chosen], high=self.high[chosen])
        limits.check()
        return limits

    def check(self) -> None:
        """Raises UserError where no shares are within the limits."""
        for name, low, high in zip(self.names, self.low, self.high):
            if low > high:
                raise UserError(f"'{name}': found a smallest share of {low:.3%}, expected at most {high:.3%}. Change --bound")
        if self.low.sum() > 1 or self.high.sum() < 1:
            sums = f"smallest shares add up to {self.low.sum():.1%}, the largest to {self.high.sum():.1%}"
            raise UserError(
                f"no shares are within the limits: the {sums}, expected at most and at least 100%. Change --bound, or draw "
                f"fewer tokens (--tokens), repeat sources more often (max_epochs) or add text"
            )


def snapshot_of(mixture: Mixture) -> Snapshot | None:
    """The newest snapshot of the mixture's output, with its rows of the first length; None where there is none yet."""
    root = Root(mixture.output)
    return read_tokens(root) if root.exists(SNAPSHOT) else None


def limits_of(mixture: Mixture, snapshot: Snapshot | None, tokens: int | None = None) -> Limits:
    """The sources of a mixture that have a weight, with its shares and its caps. Raises UserError where they fit nothing.

    Args:
        snapshot: of its output; without one there are no sizes, and no caps.
        tokens: to train on, for the caps; by default those of the mixture.
    """
    if snapshot is None:
        if mixture.mixture.weighting != "given":
            raise UserError(
                f"{mixture.where('mixture', 'weighting')}: {mixture.mixture.weighting} needs the sizes of sources, and "
                f"{masked(mixture.output)} has no snapshot. Run the mixture first"
            )
        sizes, shares, caps = dict[str, int](), mixture.average_shares(), dict[str, float]()
    else:
        form = snapshot.sources, snapshot.shards, snapshot.sequence_length
        sizes, caps = weighting.leaf_tokens(*form), leaf_limits(snapshot.sources)
        shares = weighting.leaf_shares(_with_weights_of(mixture, snapshot))
    names = tuple(name for name, share in shares.items() if share)
    total = mixture.mixture.tokens if tokens is None else tokens
    high, reasons = np.ones(len(names)), dict[str, str]()
    for number, name in enumerate(names if snapshot is not None else ()):
        epochs = mixture.max_epochs_of(name) if name in mixture.all_sources else caps.get(name, mixture.mixture.max_epochs)
        epochs = caps.get(name) if epochs is None else epochs
        if epochs is not None and total is not None and epochs * sizes[name] < total:
            high[number] = epochs * sizes[name] / total * (1 - _MARGIN)
            reasons[name] = f"max_epochs {epochs:g}"
    drawn = np.array([float(shares[name]) for name in names])
    limits = Limits(names=names, shares=drawn / drawn.sum(), low=np.zeros(len(names)), high=high, reasons=reasons)
    limits.check()
    return limits


def limits_of_runs(names: Sequence[str], shares: np.ndarray) -> Limits:
    """No limits, around the mean of runs: where there is no mixture. `shares`: (num_runs, num_sources)."""
    return Limits(
        names=tuple(names), shares=shares.mean(axis=0), low=np.zeros(len(names)), high=np.ones(len(names)), reasons={}
    )


def _with_weights_of(mixture: Mixture, snapshot: Snapshot) -> Snapshot:
    """The snapshot with the weights that the mixture gives its sources now; with its own where it has other sources, which
    follow from those that it takes from other outputs."""
    sizes = weighting.epoch_tokens(snapshot.sources, snapshot.shards, snapshot.sequence_length)
    if set(snapshot.sources) == set(mixture.all_sources):
        phases, total = weighting.weight_phases(mixture, sizes), mixture.mixture.tokens
        return snapshot.model_copy(update={"phases": phases, "total_tokens": total})
    weights = {name: entry.weight for name, entry in snapshot.sources.items()}
    return snapshot.model_copy(update={"phases": snapshot.phases or (Phase(until_tokens=None, weights=weights),)})
