"""The phases, caps and end of a run, from the manifest or from the loader's arguments, as one plain record."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from datapipe.errors import UserError, suggest
from datapipe.shards.manifest import Phase, Snapshot
from datapipe.weights import changed_shares, changes_in_words, exact_number, integer_weights

Weights = Mapping[str, float | int | str | Fraction]
Override = Weights | Sequence[tuple[int | None, Weights]]
"""Weights of the whole run, or phases of (token at which the phase ends, weights). The last phase ends at None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All options that decide which source a sample comes from."""

    sequence_length: int
    # exact integer weights until a token position of the run; the last phase has no end
    phases: tuple[Phase, ...]
    max_epochs: dict[str, float]  # by source, for the sources with a cap
    # what happens when a source reaches its cap: the run stops, is refused, or continues without the source
    exhausted: Literal["stop", "refuse", "redistribute"] = "stop"
    total_tokens: int | None = None
    # samples that come one after another from one source, see `mixing.py`; 1: sources are mixed row by row
    group_rows: int = 1

    @property
    def num_samples(self) -> int | None:
        return None if self.total_tokens is None else self.total_tokens // self.sequence_length

    @property
    def drawn(self) -> set[str]:
        return {name for phase in self.phases for name, weight in phase.weights.items() if weight}

    @property
    def weights(self) -> list[tuple[int | None, dict[str, int]]]:
        """The end of each phase in tokens, and its weights above 0."""
        return [
            (phase.until_tokens, {name: weight for name, weight in phase.weights.items() if weight}) for phase in self.phases
        ]


def recipe_of(snapshot: Snapshot, override: Override | None = None, group_rows: int = 1) -> Recipe:
    """The recipe of a snapshot, with its phases replaced by `override`. Raises UserError for a source that does not exist."""
    by_source = {name: entry.weight for name, entry in snapshot.sources.items()}
    phases = snapshot.phases or (Phase(until_tokens=None, weights=by_source),)
    caps = {name: entry.max_epochs for name, entry in snapshot.sources.items() if entry.max_epochs is not None}
    return Recipe(
        sequence_length=snapshot.sequence_length,
        phases=phases if override is None else _given(override, tuple(snapshot.sources)),
        max_epochs=caps,
        exhausted=snapshot.exhausted,
        total_tokens=snapshot.total_tokens,
        group_rows=group_rows,
    )


def differences(before: Recipe, after: Recipe) -> list[str]:
    changes = [
        f"{name} {getattr(before, name)} -> {getattr(after, name)}"
        for name in ("sequence_length", "max_epochs", "exhausted", "total_tokens", "group_rows")
        if getattr(before, name) != getattr(after, name)
    ]
    if before.weights != after.weights:
        changes.append(f"weights {_in_words(before)} -> {_in_words(after)}")
    return changes


def _in_words(recipe: Recipe) -> str:
    shown = [
        ", ".join(f"{name}: {weight}" for name, weight in list(phase.weights.items())[:8])
        + ("" if phase.until_tokens is None else f" until {phase.until_tokens}")
        for phase in recipe.phases[:3]
    ]
    return "{" + "; ".join(shown) + ("; …" if len(recipe.phases) > 3 else "") + "}"


def _given(override: Override, sources: tuple[str, ...]) -> tuple[Phase, ...]:
    parts = [(None, override)] if isinstance(override, Mapping) else list(override)
    ends = [until for until, _ in parts]
    if not parts or ends[-1] is not None or any(until is None for until in ends[:-1]):
        raise UserError(
            f"mixture: its phases end at tokens {ends}. Expected a token position for each phase but the last, and None for "
            f"the last."
        )
    rising = [0, *(until for until in ends if until is not None)]
    if any(later <= earlier for earlier, later in zip(rising, rising[1:])):
        raise UserError(f"mixture: its phases end at tokens {ends[:-1]}. Expected ascending positions above 0.")
    return tuple(Phase(until_tokens=until, weights=_exact(weights, sources)) for until, weights in parts)


def _exact(weights: Weights, sources: tuple[str, ...]) -> dict[str, int]:
    """Whole numbers in the given proportions: 0.1 is a tenth. Warns of shares that rounding changes."""
    for name in weights:
        if name not in sources:
            raise UserError(f"mixture: no source '{name}'.{suggest(name, sources)} Expected some of {', '.join(sources)}.")
    try:
        exact = {name: exact_number(weight) for name, weight in weights.items()}
    except ValueError as error:
        raise UserError(f"mixture: {dict(weights)}: expected a number for each source ({error}).") from error
    try:
        counted = integer_weights(exact)
    except ValueError as error:
        raise UserError(f"mixture: {dict(weights)}: {error}.") from error
    changed = changed_shares(exact, counted)
    if changed:
        warnings.warn(f"mixture: {changes_in_words(changed)}.", stacklevel=2)
    return counted
