"""The cells of a source: the `split:` of a source, and the names and patterns by which a mixture speaks of cells.

    by: [language, topic, {column: quality, quantiles: 20}]      ─▶  cells en/science/0 to en/science/19, de/sport/0, …
    weights, repeat, …: {"*/*/19": 3, default: 1}                ─▶  of each cell, by the last pattern that matches

Which cells there are is known once all documents are cleaned (`steps/cells.py`). Until then only the
number of parts of a name can be wrong.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from datapipe.cell_names import DEFAULT
from datapipe.config.fields import Count, Record, Weight, as_tuple, parse_weight
from datapipe.config.problems import Problem, ProblemsError, described
from datapipe.config.sources.weight_rule import parse_rule
from datapipe.config.yaml import KeyPath
from datapipe.errors import suggest
from datapipe.reserved_columns import OWN_COLUMNS

if TYPE_CHECKING:
    from datapipe.config.sources.source import Source

OF_CELLS = ("tokens", "documents")
"""What a rule knows of a cell beside its parts."""

_MOST_AXES = 8


def below_limit(value: Any) -> Any:
    """A number of repeats or epochs. Raises ValueError for one of 2^40 or more."""
    if value >= 1 << 40:
        raise ValueError("expected a number below 2^40")
    return value


class AxisSpec(Record):
    """A column by which a source is split into cells."""

    column: str = Field(min_length=1, description="The column: a field in `keep`, or one that a stage adds.")
    bounds: Annotated[tuple[float, ...], BeforeValidator(as_tuple)] = Field(
        default=(),
        max_length=999,
        description="Borders between parts, ascending: [2, 10] makes the parts 0 (below 2), 1, and 2 (from 10 up).",
    )
    quantiles: int | None = Field(
        default=None, ge=2, le=100, description="Number of parts with equally many documents of the source, the lowest first."
    )

    def problems(self) -> Iterator[Problem]:
        if self.column in OWN_COLUMNS:
            yield ("column",), f"found '{self.column}', expected a column of values that few documents differ in"
        if self.bounds and self.quantiles is not None:
            yield ("quantiles",), "found beside bounds, expected one of them"
        if any(high <= low for low, high in pairwise(self.bounds)):
            yield ("bounds",), f"found {list(self.bounds)}, expected numbers in ascending order"

    @property
    def num_borders(self) -> int:
        return len(self.bounds) if self.quantiles is None else self.quantiles - 1

    @property
    def has_numbers(self) -> bool:
        """Whether its parts are intervals between numbers; otherwise each value has a part."""
        return bool(self.bounds) or self.quantiles is not None


Axis = Annotated[
    AxisSpec,
    BeforeValidator(
        lambda value: {"column": value} if isinstance(value, str) else value, json_schema_input_type=str | AxisSpec
    ),
    PlainSerializer(lambda axis: axis.model_dump(exclude_defaults=True) if axis.has_numbers else axis.column),
]


def _listed(value: Any) -> Any:
    """A list of axes, also of one axis without the brackets."""
    return (value,) if isinstance(value, str | Mapping) else as_tuple(value)


def _by_pattern(value: Any) -> Any:
    """Weights by pattern, where each wrong weight is a separate problem: a union would name all that it expected."""
    problems: list[Problem] = []
    for name, weight in value.items() if isinstance(value, Mapping) else ():
        try:
            parse_weight(weight)
        except ValueError as error:
            problems.append(((name,), f"found {described(weight)}, {error}"))
    if problems:
        raise ProblemsError(problems)
    return value


Repeats = Mapping[str, Annotated[Weight, AfterValidator(below_limit)]]


class SplitSpec(Record):
    """Splits a source into cells by columns of its documents. A cell is drawn as a source is."""

    by: Annotated[tuple[Axis, ...], BeforeValidator(_listed)] = Field(
        min_length=1,
        max_length=_MOST_AXES,
        description="The columns: [language, topic, {column: quality, quantiles: 20}]. A name alone has a part for each value: "
        "text, whole numbers, true and false. Documents without a value are in the part `none`.",
    )
    weights: Annotated[str | Mapping[str, Weight] | None, BeforeValidator(_by_pattern)] = Field(
        default=None,
        description="How the cells divide the weight of the source: by pattern, {default: 1, 'en/*/19': 3}; by a rule over "
        "tokens, documents and columns, 'tokens * quality^2'; or by a table, weights.csv, with the columns cell or those of "
        "`by`, weight, repeat, max_epochs, max_tokens. Default: in proportion to the rows of an epoch.",
    )
    repeat: Repeats = Field(
        default_factory=dict,
        description="How often an epoch draws the documents of cells, by pattern: {'*/*/19': 2.5}. Default: once. 2.5: each "
        "document twice, and half of them, chosen by keyed hash, a third time.",
    )
    max_epochs: Mapping[str, Annotated[float, Field(gt=0), AfterValidator(below_limit)]] = Field(
        default_factory=dict, description="Maximum number of epochs of cells, by pattern. Default: that of the source."
    )
    max_tokens: Mapping[str, Count] = Field(
        default_factory=dict,
        description="Maximum tokens of each cell to train on, before repeats, by pattern: {'*/*/0': 1B}. Documents are taken "
        "in shuffled order until one does not fit. Default: all.",
    )

    def problems(self) -> Iterator[Problem]:
        columns = self.columns
        twice = next((column for number, column in enumerate(columns) if column in columns[:number]), None)
        if twice is not None:
            yield ("by",), f"found '{twice}' twice, expected each column once"
        for key in ("weights", "repeat", "max_epochs", "max_tokens"):
            named = getattr(self, key)
            for name in named if isinstance(named, Mapping) else ():
                if name != DEFAULT and (problem := self.name_problem(name)) is not None:
                    yield (key, name), problem
        if isinstance(self.weights, str) and not self.is_table:
            try:
                names = parse_rule(self.weights).names
            except ValueError as error:
                yield ("weights",), str(error)
                return
            known = (*OF_CELLS, *columns)
            for name in sorted(names.difference(known)):
                yield ("weights",), f"unknown name '{name}'.{suggest(name, known)} Expected some of: {', '.join(known)}"
        elif isinstance(self.weights, Mapping) and not any(self.weights.values()) and DEFAULT in self.weights:
            yield ("weights",), "every weight is 0. Expected at least one above 0"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(axis.column for axis in self.by)

    @property
    def is_table(self) -> bool:
        """Whether the weights are in a table."""
        return isinstance(self.weights, str) and self.weights.partition("?")[0].endswith(".csv")

    def name_problem(self, name: str) -> str | None:
        """What is wrong with the name of a cell, or a pattern, as far as it is known before there are cells."""
        found, expected = name.count("/") + 1, len(self.by)
        if found == expected:
            return None
        columns = "/".join(f"{{{column}}}" for column in self.columns)
        return f"found {found} parts, expected {expected}: {columns}. * stands for all of a part"


def cell_problems(path: KeyPath, name: str, sources: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with a key of weights that names cells of a source, SOURCE/PART/…: `path` is that of the key."""
    source, _, cell = name.partition("/")
    own: Source | Any = sources.get(source)
    split: SplitSpec | None = getattr(own, "split", None)
    if split is not None:
        problem = split.name_problem(cell)
    elif own is None:
        known = [name for name, each in sources.items() if getattr(each, "split", None) is not None]
        problem = f"unknown source '{source}'.{suggest(source, sources)} Expected one of: {', '.join(known or sources)}"
    elif len(getattr(own, "sources", ())) == 1:
        problem = None  # the cells of another output, which is not open yet
    elif hasattr(own, "snapshot"):
        problem = f"names a cell of '{source}'. Name the one source of that snapshot that has cells: sources: [NAME]"
    else:
        problem = f"names a cell, and the source '{source}' has no `split`. Write {source}"
    if problem is not None:
        yield path, problem
