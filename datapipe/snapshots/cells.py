"""The cells of a source in a manifest: their weights, repetitions and limits, from the mixture and the rows that were packed.

    names and borders (`steps/grid.py`), runs of shards ─▶ rows, tokens and documents of each cell ─▶ weights ─▶ `Cells`

The weights are integers in the proportions of the mixture: of its patterns, of its table, of its rule, or of the rows of an
epoch. A cell without rows in an epoch has weight 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import floor, lcm

import numpy as np

from datapipe.cell_names import NONE, chosen_values, last_matches, matches, source_of, value_of
from datapipe.config.mixture import Mixture
from datapipe.config.mixture_schedule import WeightPhase
from datapipe.config.sources.split import SplitSpec
from datapipe.config.sources.weight_rule import NoWeightError, parse_rule
from datapipe.dataclass import dataclass
from datapipe.errors import DatapipeError, UserError
from datapipe.quantities import counted
from datapipe.shards.leaves import leaf_weights
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.source_entry import CellAxis, Cells, SourceEntry
from datapipe.steps.cells import Axis
from datapipe.steps.warnings import RunWarning
from datapipe.weights import MAX_WEIGHT_SUM, exact_number, integer_weights

_ONCE = Fraction(1)
_GRID = 10**12  # weights of many digits are rounded to so many parts of their sum
_LISTED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCells:
    """The cells that a run has found in a source: the columns, with their borders, and the names."""

    axes: tuple[Axis, ...]
    names: tuple[str, ...]


def made_cells(
    mixture: Mixture, source: str, found: FoundCells, shards: Iterable[ShardEntry], sequence_length: int
) -> tuple[Cells | None, list[RunWarning]]:
    """The cells as the manifest has them, and warnings; None for a source without documents. Raises DatapipeError where the
    rule of the weights has no value for a cell, or all weights are 0."""
    spec, names = mixture.sources[source].split, found.names
    assert spec is not None
    if not names:
        return None, []
    repeats = chosen_values(spec.repeat, names, _ONCE)
    counts = _counts([entry for entry in shards if entry.source == source], len(names))
    once = [int(of_cell.sum()) for of_cell in counts[0]]
    drawn = [floor(times) * rows + int(again) for times, rows, again in zip(repeats, once, counts[0, :, 1].tolist())]
    weights = [Fraction(rows) for rows in drawn]
    if isinstance(spec.weights, Mapping):
        weights = chosen_values(spec.weights, names, _ONCE)
    elif spec.weights is not None:
        values = ([rows * sequence_length for rows in once], counts[1].sum(axis=1).tolist())
        weights = [*_by_rule(source, spec, found, *values)]
    limit = mixture.max_epochs_of(source)
    cells = Cells(
        axes=tuple(CellAxis(column=axis.column, bounds=axis.borders) for axis in found.axes),
        names=names,
        weights=_integers(source, [weight if rows else Fraction(0) for weight, rows in zip(weights, drawn)], any(drawn)),
        repeats=tuple(map(str, repeats)),
        max_epochs=tuple(chosen_values(spec.max_epochs, names, limit)),
    )
    return cells, [*_warnings(source, spec, names, np.array(once))]


def _counts(shards: Sequence[ShardEntry], num_cells: int) -> np.ndarray:
    """(2, num_cells, 2) int64: rows and documents of each cell, those that an epoch has once more than the others last."""
    counts = np.zeros((2, num_cells, 2), np.int64)
    for entry in shards:
        for run in entry.cells or ():
            counts[:, run.cell, int(run.again)] += run.rows, run.documents
    return counts


def _by_rule(
    source: str, spec: SplitSpec, found: FoundCells, tokens: Sequence[int], documents: Sequence[int]
) -> Iterator[Fraction]:
    """The weights of cells by a rule; 0 for cells without rows, and those whose documents lack a number that the rule names."""
    assert isinstance(spec.weights, str)
    rule = parse_rule(spec.weights)
    named = [(place, axis.column) for place, axis in enumerate(found.axes) if axis.column in rule.names]
    for name, num_tokens, num_documents in zip(found.names, tokens, documents):
        parts, values = name.split("/"), {"tokens": Fraction(num_tokens), "documents": Fraction(num_documents)}
        if not num_tokens or any(parts[place] == NONE for place, _ in named):
            yield Fraction(0)
            continue
        try:
            yield rule.weight(values | {column: _number(parts[place], column) for place, column in named})
        except NoWeightError as error:
            raise DatapipeError(
                f"sources.{source}.split.weights: the rule '{spec.weights}' gives the cell {name} no weight: {error}. Write "
                f"another rule. Packed shards stay; run the same command again to publish them."
            ) from error


def _number(part: str, column: str) -> Fraction:
    try:
        return exact_number(value_of(part))
    except ValueError as error:
        raise NoWeightError(f"'{part}' of {column} is no number") from error


def _integers(source: str, weights: list[Fraction], has_rows: bool) -> tuple[int, ...]:
    """Integers in these proportions. Those of a rule may have many denominators: such weights are rounded to twelve digits of
    their sum, and none above 0 becomes 0."""
    total = sum(weights)
    if not total:
        if has_rows:
            raise DatapipeError(
                f"sources.{source}.split.weights: the weight of every cell with rows is 0, so nothing of the source can be "
                f"drawn. Expected one above 0. Packed shards stay; run the same command again to publish them."
            )
        return (0,) * len(weights)
    scale = 1
    for weight in weights:
        scale = lcm(scale, weight.denominator)
        if scale >= MAX_WEIGHT_SUM:
            weights = [Fraction(max(1, round(each * _GRID / total)) if each else 0) for each in weights]
            break
    whole = integer_weights({str(number): weight for number, weight in enumerate(weights)})
    return tuple(whole.values())


def _warnings(source: str, spec: SplitSpec, names: Sequence[str], rows: np.ndarray) -> Iterator[RunWarning]:
    """Warnings about patterns that name no cell, and about cells without rows."""
    for key in ("weights", "repeat", "max_epochs", "max_tokens"):
        named = getattr(spec, key)
        unmatched = last_matches(named, names)[1] if isinstance(named, Mapping) else []
        if unmatched:
            text = (
                f"{counted(len(unmatched), 'entry', 'entries')} of split.{key} {'names' if len(unmatched) == 1 else 'name'} no "
                f"cell: {_some(unmatched)}. The cells are {_some(names)}."
            )
            yield RunWarning.of("unknown_cells", source, text, option=key, names=unmatched[:100], count=len(unmatched))
    empty = [names[number] for number in np.flatnonzero(rows == 0).tolist()]
    if empty and len(empty) < len(names):
        text = (
            f"{counted(len(empty), 'cell')} of {len(names):,} {'has' if len(empty) == 1 else 'have'} no row to train on: "
            f"{_some(empty)}. The documents were held out (`validation`), or not packed."
        )
        yield RunWarning.of("empty_cells", source, text, cells=empty[:100], count=len(empty))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def phases_of_cells(
    phases: Sequence[WeightPhase], sources: Mapping[str, SourceEntry]
) -> tuple[list[WeightPhase], list[RunWarning]]:
    """Phases without the names and patterns of cells that match no cell with rows in an epoch, and warnings about these."""
    unmatched: dict[str, None] = {}
    kept: list[WeightPhase] = []
    for phase in phases:
        strange = [name for name in phase.weights if "/" in name and not _has_rows(name, sources)]
        unmatched |= dict.fromkeys(strange)
        weights = {name: weight for name, weight in phase.weights.items() if name not in strange}
        if any("/" in name for name in phase.weights) and not leaf_weights(weights, sources):
            raise DatapipeError(
                f"mixture.phases: a phase draws from no cell or source that has rows: {_some([*phase.weights])}. Packed shards "
                f"stay; correct the weights, and run the same command again to publish them."
            )
        kept.append(WeightPhase(until_tokens=phase.until_tokens, weights=weights))
    text = f"mixture.phases names cells without rows, and leaves them out: {_some([*unmatched])}."
    return kept, [RunWarning(kind="unknown_cells", text=text, details={"names": [*unmatched][:100]})] if unmatched else []


def _has_rows(name: str, sources: Mapping[str, SourceEntry]) -> bool:
    cells = sources[source_of(name)].cells
    if cells is None:
        return False
    found = matches(name.partition("/")[2], cells.names, {cell: number for number, cell in enumerate(cells.names)})
    return any(cells.weights[number] for number in found)


def check_same_cells(mixture: Mixture, newest: Snapshot) -> None:
    """Raises UserError where files are added to a source whose cells are by other columns or borders now, or which had none;
    and where other documents of a cell would be drawn once more, since rows are packed by that."""
    for name, source in mixture.sources.items():
        before = newest.sources.get(name)
        if before is None or not newest.has_tokens or not newest.shards_of(name, "train"):
            continue
        changed = None if _are_same(source.split, before.cells) else "by"
        if changed is None and source.split is not None and before.cells is not None:
            repeats = chosen_values(source.split.repeat, before.cells.names, _ONCE)
            is_same = all(now % 1 == Fraction(then) % 1 for now, then in zip(repeats, before.cells.repeats))
            changed = None if is_same else "repeat"
        if changed is not None:
            stays = "by stays as it is" if changed == "by" else "repeat stays as it is behind the point"
            raise UserError(
                f"{mixture.where('sources', name, 'split')}: the snapshot to which files are added was made with another split."
                f"{changed}. While a mixture is followed, {stays}. Set it back, or run `datapipe run MIXTURE --rebuild`."
            )


def _are_same(spec: SplitSpec | None, cells: Cells | None) -> bool:
    specs, axes = () if spec is None else spec.by, () if cells is None else cells.axes
    return len(specs) == len(axes) and all(
        one.column == other.column
        and one.num_borders == len(other.bounds or ())
        and (one.quantiles is not None or one.bounds == (other.bounds or ()))
        for one, other in zip(specs, axes)
    )


def with_limit(cells: Cells | None, limit: float | None) -> Cells | None:
    """The cells of another output; a limit of this mixture holds for those that had none there."""
    if cells is None or limit is None:
        return cells
    return cells.model_copy(update={"max_epochs": tuple(limit if own is None else own for own in cells.max_epochs)})
