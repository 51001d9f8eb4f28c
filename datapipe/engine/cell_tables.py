"""Tables of the weights of cells: `split: {weights: weights.csv}` becomes weights, repeats and limits by name in the mixture.

    cell,weight,repeat            language,topic,weight
    en/science,0.3,2.5            en,science,0.3               a row for each cell; in the column cell also patterns
    en/sport,0.1,                 en,sport,0.1

Cells that a table does not list have weight 0, unless the column cell has a row for `default`. The mixture that the
output keeps has the numbers, so that it can be run again when the table has changed.
"""

import csv
import io
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from datapipe.cell_names import DEFAULT, NONE, part_of
from datapipe.config.fields import parse_count, parse_weight
from datapipe.config.mixture import Mixture
from datapipe.config.sources.split import SplitSpec, below_limit
from datapipe.credentials import masked
from datapipe.errors import UserError, suggest
from datapipe.quantities import counted
from datapipe.stage.decoding import BrokenStreamError, as_utf8
from datapipe.storage.root import open_input


def _epochs(text: str) -> float:
    if not (number := float(below_limit(parse_weight(text)))):
        raise ValueError("expected a number above 0")
    return number


_NUMBERS: dict[str, Callable[[str], Any]] = {
    "weight": parse_weight,
    "repeat": lambda text: below_limit(parse_weight(text)),
    "max_epochs": _epochs,
    "max_tokens": parse_count,
}
_CELL = "cell"
_MOST_BYTES = 64 << 20


def with_cell_tables(mixture: Mixture) -> Mixture:
    """The mixture with the numbers of its tables. Raises UserError for a table that cannot be read, and for a wrong row."""
    changed: dict[str, SplitSpec] = {}
    for name, source in mixture.sources.items():
        if source.split is not None and source.split.is_table:
            where = f"{mixture.where('sources', name, 'split', 'weights')}: {masked(str(source.split.weights))}"
            changed[name] = _with_table(source.split, _content(str(source.split.weights), where), where)
            if source.max_tokens is not None and changed[name].max_tokens:
                raise UserError(f"{where}: found max_tokens beside that of the source, expected one of them. Leave one out")
    return mixture.with_source_values("split", changed) if changed else mixture


def _content(path: str, where: str) -> str:
    try:
        with open_input(path) as stream:
            return b"".join(as_utf8(iter([stream.read(_MOST_BYTES)]))).decode().lstrip("\ufeff")
    except (OSError, ValueError, BrokenStreamError) as error:
        raise UserError(f"{where}: {error}. Expected a table with the columns cell and weight.") from error


def _with_table(spec: SplitSpec, content: str, where: str) -> SplitSpec:
    try:
        heading, *rows = [*csv.reader(io.StringIO(content, newline=None))] or [[]]
    except csv.Error as error:
        raise UserError(f"{where}: {error}. Expected CSV: a line for each row, with commas between values") from error
    heading = [column.strip() for column in heading]
    names = [_CELL] if _CELL in heading else list(spec.columns)
    _check_heading(heading, names, where)
    found: dict[str, dict[str, Any]] = {column: {} for column in _NUMBERS}
    for number, row in enumerate(rows, 2):
        if not any(value.strip() for value in row):
            continue
        place = f"{where}, line {number}"
        if len(row) != len(heading):
            raise UserError(f"{place}: found {counted(len(row), 'value')}, expected {len(heading)}: {', '.join(heading)}")
        values = dict(zip(heading, map(str.strip, row)))
        cell = _cell_of(spec, values, names, place)
        if cell in found["weight"]:
            raise UserError(f"{place}: found the cell {cell} twice, expected each one once")
        for column in _NUMBERS:
            if values.get(column) or column == "weight":
                found[column][cell] = _number(column, values[column], place)
    if not any(found["weight"].values()):
        raise UserError(f"{where}: found no weight above 0, expected a row for each cell that is drawn")
    return _changed(spec, found)


def _check_heading(heading: list[str], names: list[str], where: str) -> None:
    known = [*names, *_NUMBERS]
    missing = [column for column in (*names, "weight") if column not in heading]
    if missing:
        raise UserError(f"{where}: no column {missing[0]}, found {', '.join(heading)}. Expected {', '.join(known)}")
    for number, column in enumerate(heading):
        if column not in known or column in heading[:number]:
            problem = "twice" if column in known else f"unknown.{suggest(column, known)}"
            raise UserError(f"{where}: column '{column}' is {problem} Expected {', '.join(known)}")


def _cell_of(spec: SplitSpec, values: Mapping[str, str], names: list[str], place: str) -> str:
    if names == [_CELL]:
        cell = values[_CELL]
    else:
        parts = (values[axis.column] or NONE if axis.has_numbers else part_of(values[axis.column]) for axis in spec.by)
        cell = "/".join(parts)
    problem = None if cell == DEFAULT else spec.name_problem(cell)
    if problem is not None:
        raise UserError(f"{place}: cell '{cell}': {problem}")
    return cell


def _number(column: str, text: str, place: str) -> Any:
    try:
        return _NUMBERS[column](text)
    except ValueError as error:
        raise UserError(f"{place}: {column}: found '{text}', {error}") from error


def _changed(spec: SplitSpec, found: Mapping[str, dict[str, Any]]) -> SplitSpec:
    own = {column: {**getattr(spec, column), **found[column]} for column in _NUMBERS if column != "weight"}
    values: dict[str, Any] = {"by": spec.by, "weights": {DEFAULT: Fraction(0), **found["weight"]}, **own}
    return SplitSpec(**values)
