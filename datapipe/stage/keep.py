"""The survivor policy: which document of a cluster is kept, and the rank that encodes it.

    keep: longest                                                    one criterion
    keep: [source_order, {highest: quality}, longest]                several: each breaks the ties of those before it

| criterion                | survivor                                                                  | bits in a list |
|--------------------------|---------------------------------------------------------------------------|----------------|
| source_order             | the document of the earliest source in the mixture                        | 10             |
| source_order: [a, b]     | the document of the earliest source in this list; unlisted sources follow | 10             |
| highest, lowest: COLUMN  | the greatest or least number in a column                                  | an equal share |
| earliest, latest: COLUMN | the first or last date in a column (`stage/dates.py`)                     | an equal share |
| longest, shortest        | the most or fewest bytes                                                  | an equal share |
| random                   | the least keyed hash of the key                                           | an equal share |
| first                    | the lowest key, which also breaks all remaining ties                      | none           |

The document of lowest (rank, key) survives. The top bit of the 64 marks new documents, so that
reference rows always survive (`tables.RANK`). Bits that do not fit are cut off, and the next
criterion decides. Two criteria have 26 bits each behind `source_order`, else 31; three are refused.

| value   | encoding                                                     | smallest difference, 26 bits | 31 bits          |
|---------|--------------------------------------------------------------|------------------------------|------------------|
| numbers | a sign, 11 bits of exponent, 14 (19) bits of fraction        | one part in 16,384           | one in 500,000   |
| dates   | 40 bits of seconds without the last 14 (9)                   | 4.6 hours                    | 8.5 minutes      |
| lengths | 6 bits of exponent, 20 (25) bits of fraction                 | exact to 1 MB, then 1e-6     | exact to 33 MB   |

A document without a number or date ranks last, for either end. Text is read as a number. Ranks are
bits, without arithmetic on floats, so they are equal on every machine.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import pyarrow as pa
from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from datapipe import columns, rng
from datapipe.dataclass import dataclass
from datapipe.errors import UserError, suggest
from datapipe.stage import dates
from datapipe.stage.base import StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import new_bit, source_number

_PLAIN = ("first", "longest", "shortest", "random", "source_order")
_OF_COLUMN = ("highest", "lowest", "earliest", "latest")
_FINAL = ("first", "random")
_EXPECTED = (
    f"expected one of {', '.join(_PLAIN)}, one of {{highest: COLUMN}}, {{lowest: COLUMN}}, {{earliest: COLUMN}}, "
    "{latest: COLUMN}, {source_order: [SOURCE, …]}, or a list of these"
)
_BITS = 63
_SOURCE_BITS = 10
_MAX_SHARING = 2
_MANY_UNREAD = 16
"""A batch with this many values, none of them readable, is an error and not an accident."""
_DATE_BITS, _DATE_MARGIN_S = 40, 1 << 36
_LENGTH_BITS = 58
"""Bits of a float from 1.0 to 2^64, counted from the bits of 1.0: 6 of the exponent and 52 of the fraction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """A criterion: its name, the column that it compares, the listed sources of `source_order`."""

    by: str
    column: str = ""
    sources: tuple[str, ...] = ()


def _parsed(value: Any) -> tuple[Criterion, ...]:
    criteria = tuple(_criterion(item) for item in (value if isinstance(value, list | tuple) else [value]))
    names = [criterion.by for criterion in criteria]
    if not criteria or len({(criterion.by, criterion.column) for criterion in criteria}) < len(criteria):
        raise ValueError("expected at least one criterion, and each once")
    final = next((name for name in names[:-1] if name in _FINAL), None)
    if final is not None:
        raise ValueError(f"'{final}' leaves no ties, so the criteria after it have no effect. Put '{final}' last")
    sharing = [name for name in names if name not in ("first", "source_order")]
    if len(sharing) > _MAX_SHARING:
        raise ValueError(
            f"found {len(sharing)} criteria beside source_order and first ({', '.join(sharing)}), expected at most "
            f"{_MAX_SHARING}, which is what a rank of 64 bits can hold. Leave out the last"
        )
    return criteria


def _criterion(value: Any) -> Criterion:
    if isinstance(value, Criterion):
        return value
    if isinstance(value, str) and value in _PLAIN:
        return Criterion(by=value)
    if isinstance(value, str):
        raise _unknown(value, _PLAIN)
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError(_EXPECTED)
    [(by, argument)] = value.items()
    if by not in (*_OF_COLUMN, "source_order"):
        raise _unknown(str(by), (*_OF_COLUMN, "source_order"))
    if by in _OF_COLUMN and isinstance(argument, str) and argument:
        return Criterion(by=by, column=argument)
    is_list = isinstance(argument, list | tuple) and argument and all(isinstance(source, str) for source in argument)
    if by == "source_order" and is_list:
        if len(set(argument)) < len(argument):
            raise ValueError("expected each source once")
        return Criterion(by=by, sources=tuple(argument))
    raise ValueError(_EXPECTED)


def _unknown(name: str, known: Sequence[str]) -> ValueError:
    meant = suggest(name, known)
    return ValueError(f"{_EXPECTED}.{meant}" if meant else _EXPECTED)


def _written(criteria: tuple[Criterion, ...]) -> Any:
    arguments = [(criterion.by, criterion.column or list(criterion.sources)) for criterion in criteria]
    written = [{by: argument} if argument else by for by, argument in arguments]
    return written[0] if len(written) == 1 else written


_ARGUMENTS = {
    **{name: {"type": "string", "minLength": 1} for name in _OF_COLUMN},
    "source_order": {"type": "array", "items": {"type": "string"}, "minItems": 1},
}
_CRITERION_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": list(_PLAIN)},
        {"type": "object", "properties": _ARGUMENTS, "additionalProperties": False, "minProperties": 1, "maxProperties": 1},
    ]
}
Keep = Annotated[
    tuple[Criterion, ...],
    PlainValidator(_parsed),
    PlainSerializer(_written),
    WithJsonSchema({"anyOf": [*_CRITERION_SCHEMA["anyOf"], {"type": "array", "items": _CRITERION_SCHEMA, "minItems": 1}]}),
]


class KeepingOne(Global):
    """A global stage that keeps one document of each cluster."""

    keep: Keep = Field(
        default=cast(Any, "first"),  # as a mixture spells it
        validate_default=True,
        description="Which document of a cluster survives. first: the lowest key, which is the earliest within a file. "
        "longest, shortest: by bytes. random: by a keyed hash. source_order: by the order of sources in the mixture, or in "
        "{source_order: [SOURCE, …]}. {highest: COLUMN}, {lowest: COLUMN}: by a number. {earliest: COLUMN}, {latest: COLUMN}: "
        "by an ISO date. In a list each criterion breaks the ties of those before it; the lowest key breaks the ties that "
        "remain.",
    )

    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)  # it reads numbers and dates from text

    def columns_read(self) -> Mapping[str, str]:
        return {
            criterion.column: f"keep: {{{criterion.by}: {criterion.column}}}" for criterion in self.keep if criterion.column
        }

    def source_order(self) -> tuple[str, ...] | None:
        return next((criterion.sources for criterion in self.keep if criterion.by == "source_order"), None)


def survivor_ranks(keep: Keep, batch: DocumentBatch, context: StageContext) -> np.ndarray:
    """The rank of each document of this run, (num_docs,) uint64: the lowest survives. Raises UserError."""
    sharing = sum(criterion.by not in ("first", "source_order") for criterion in keep)
    left = _BITS - _SOURCE_BITS * any(criterion.by == "source_order" for criterion in keep)
    ranks = np.zeros(batch.num_docs, np.uint64)
    for criterion in keep:
        if criterion.by == "first":
            break
        bits = _SOURCE_BITS if criterion.by == "source_order" else left // sharing
        ranks = ranks << np.uint64(bits) | _code(criterion, batch, context, bits)
    return ranks | new_bit(np.uint64)


def _code(criterion: Criterion, batch: DocumentBatch, context: StageContext, bits: int) -> np.ndarray:
    """The value of one criterion for each document in `bits` bits, (num_docs,) uint64: the lowest survives."""
    last = np.uint64((1 << bits) - 1)
    if criterion.by == "source_order":
        return np.full(batch.num_docs, source_number(context.source_position, 1 << bits), np.uint64)
    if criterion.by == "random":
        hashed = rng.keyed_hash(columns.key_halves(batch.keys), rng.seed_for(context.seed, context.name, "survivor"))
        return hashed >> np.uint64(64 - bits)
    if criterion.by in ("longest", "shortest"):
        code = _length_code(columns.text_lengths(batch.texts), bits)
        return last - code if criterion.by == "longest" else code
    asked_by = f"{context.name}: keep: {{{criterion.by}: {criterion.column}}}"
    column = _column(criterion, batch, asked_by)
    is_date = criterion.by in ("earliest", "latest")
    code, is_known = _date_code(column, bits) if is_date else _number_code(column, bits)
    num_values = len(column) - column.null_count
    if _is_text(column.type) and not is_known.any() and num_values >= _MANY_UNREAD:  # it would decide nothing
        example = column.drop_null()[0].as_py()
        read_as = "ISO 8601 dates, such as 2024-03-09" if is_date else "numbers"
        raise UserError(f"{asked_by}: found {num_values} values such as {example!r}, expected {read_as}. Name another column.")
    return np.where(is_known, last - code if criterion.by in ("latest", "highest") else code, last)


def _length_code(lengths: np.ndarray, bits: int) -> np.ndarray:
    """Whole numbers from 0, ascending: exact from 40 bits on, else by their leading bits."""
    if bits >= 40:
        return np.minimum(lengths.astype(np.uint64), np.uint64((1 << bits) - 1))
    floats = (lengths + 1).astype(np.float64).view(np.uint64) - np.float64(1).view(np.uint64)
    return floats >> np.uint64(_LENGTH_BITS - bits)


def _date_code(column: pa.Array, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Dates, ascending, never all zeros or all ones, and which rows have one."""
    seconds, is_date = dates.seconds(column)
    code = np.where(is_date, seconds + _DATE_MARGIN_S, 0).astype(np.uint64)
    return code >> np.uint64(max(0, _DATE_BITS - bits)), is_date


def _number_code(column: pa.Array, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers, ascending, and which rows have one."""
    if _is_text(column.type):  # numbers kept from JSON are text
        floats = columns.numbers_in(column)
    else:
        floats = columns.numbers(column.cast(pa.float64(), safe=False).fill_null(np.nan))
    return columns.ordered(floats) >> np.uint64(64 - bits), ~np.isnan(floats)


def _is_text(column_type: pa.DataType) -> bool:
    return pa.types.is_string(column_type) or pa.types.is_large_string(column_type)


def _column(criterion: Criterion, batch: DocumentBatch, asked_by: str) -> pa.Array:
    column = batch.column(criterion.column, asked_by)
    is_date = criterion.by in ("earliest", "latest")
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null, _is_text)
    is_number = any(is_kind(column.type) for is_kind in kinds)
    if not (dates.is_dated(column.type) if is_date else is_number):
        expected = "dates: ISO 8601 text, a date or a timestamp" if is_date else "numbers"
        raise UserError(f"{asked_by}: found a column of {column.type}, expected {expected}")
    return column
