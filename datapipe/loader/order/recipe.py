"""The phases, caps and end of a run, from the manifest or from the loader's arguments, as one plain record."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Literal

from datapipe.cell_names import is_pattern, source_of
from datapipe.dataclass import dataclass
from datapipe.errors import UserError, suggest
from datapipe.shards.leaves import claimed, leaf_limits, leaf_weights, leaves_of, problem_of
from datapipe.shards.manifest import Phase, Snapshot
from datapipe.shards.source_entry import SourceEntry
from datapipe.weights import changed_shares, changes_in_words, exact_number, integer_weights

Weights = Mapping[str, float | int | str | Fraction]
Override = Weights | Sequence[tuple[int | None, Weights]]
"""Weights of the whole run, or phases of (token at which the phase ends, weights). The last phase ends at None."""


MOST_SHOWN = 30  # names in an error
_MOST_CELLS = 5  # names of cells in an error, which also has their form


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
    """The recipe of a snapshot over its leaves, with its phases replaced by `override`. Raises UserError for a source that does
    not exist."""
    sources = snapshot.sources
    phases = snapshot.phases or (Phase(until_tokens=None, weights={name: entry.weight for name, entry in sources.items()}),)
    if override is not None:
        phases = _given(override, sources)
    elif _has_cells(sources):
        phases = tuple(_phase(phase.until_tokens, leaf_weights(phase.weights, sources)) for phase in phases)
    return Recipe(
        sequence_length=snapshot.sequence_length,
        phases=phases,
        max_epochs=leaf_limits(sources),
        exhausted=snapshot.exhausted,
        total_tokens=snapshot.total_tokens,
        group_rows=group_rows,
    )


def _has_cells(sources: Mapping[str, SourceEntry]) -> bool:
    return any(entry.cells is not None for entry in sources.values())


def _phase(until_tokens: int | None, weights: dict[str, int]) -> Phase:
    return Phase.model_construct(until_tokens=until_tokens, weights=weights)  # checking 10,000 names takes 30 ms


def differences(before: Recipe, after: Recipe) -> list[str]:
    changes = [
        f"{name} {_shortened(getattr(before, name))} -> {_shortened(getattr(after, name))}"
        for name in ("sequence_length", "max_epochs", "exhausted", "total_tokens", "group_rows")
        if getattr(before, name) != getattr(after, name)
    ]
    if before.weights != after.weights:
        changes.append(f"weights {_in_words(before)} -> {_in_words(after)}")
    return changes


def _shortened(value: object) -> object:
    if isinstance(value, dict) and len(value) > MOST_SHOWN:
        return "{" + str(dict(list(value.items())[:8]))[1:-1] + ", …}"
    return value


def _in_words(recipe: Recipe) -> str:
    shown = [
        ", ".join(f"{name}: {weight}" for name, weight in list(phase.weights.items())[:8])
        + ("" if phase.until_tokens is None else f" until {phase.until_tokens}")
        for phase in recipe.phases[:3]
    ]
    return "{" + "; ".join(shown) + ("; …" if len(recipe.phases) > 3 else "") + "}"


def _given(override: Override, sources: Mapping[str, SourceEntry]) -> tuple[Phase, ...]:
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
    return tuple(_phase(until, _exact(weights, sources)) for until, weights in parts)


def check_keys(option: str, names: Iterable[str], sources: Mapping[str, SourceEntry]) -> None:
    """Raises UserError for a name that is of no leaf, and no pattern of leaves."""
    for name in names:
        if problem := problem_of(name, sources):
            source = source_of(name)
            of_source = source in sources
            cells = leaves_of({source: sources[source]}) if of_source else {}
            known, what = (cells, f"'{name}', {problem}") if of_source else (sources, f"no source '{name}'")
            most = _MOST_CELLS if of_source else MOST_SHOWN
            expected = f"Expected some of {', '.join(list(known)[:most])}{', …' * (len(known) > most)}."
            raise UserError(f"{option}: {what}.{suggest(name, known)} {expected}")


def _exact(weights: Weights, sources: Mapping[str, SourceEntry]) -> dict[str, int]:
    """Whole numbers in the given proportions: 0.1 is a tenth. Warns of shares that rounding changes."""
    check_keys("mixture", weights, sources)
    try:
        exact = {name: exact_number(weight) for name, weight in weights.items()}
    except ValueError as error:
        raise UserError(f"mixture: {dict(weights)}: expected a number for each source ({error}).") from error
    try:
        counted = integer_weights(exact)
    except ValueError as error:
        raise UserError(f"mixture: {dict(weights)}: {error}.") from error
    if _has_cells(sources):
        return _of_leaves(exact, sources)
    changed = changed_shares(exact, counted)
    if changed:
        warnings.warn(f"mixture: {changes_in_words(changed)}.", stacklevel=2)
    return counted


def _of_leaves(weights: Mapping[str, Fraction], sources: Mapping[str, SourceEntry]) -> dict[str, int]:
    taken = claimed(weights, sources)
    for name, weight in weights.items():
        source, _, cell = name.partition("/")
        cells, numbers = sources[source].cells, taken[name]
        if not weight or cells is None or (cell and not is_pattern(cell) and numbers):
            continue
        if not any(cells.weights[number] for number in numbers if number is not None):
            raise UserError(
                f"mixture: '{name}' takes no cell of source '{source}' that has a weight. A cell goes to the last pattern that "
                f"matches it, and to its source if none does. `datapipe report` lists the cells."
            )
    return leaf_weights(weights, sources)
