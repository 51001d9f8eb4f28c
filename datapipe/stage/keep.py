"""Which document of a cluster survives: a policy, and the number by which it ranks each document.

    keep: longest                                                    one criterion
    keep: [source_order, {highest: quality}, longest]                several, the first decides, the next breaks its ties

    criterion                 lowest rank has                                                bits in a list
    source_order              a document of the earliest source of the mixture,              10
    source_order: [a, b]      or of this list; sources that it does not name come after it
    highest, lowest: COLUMN   the greatest or least number in a column                       a share
    earliest, latest: COLUMN  the first or last date in a column (`stage/dates.py`)                a share
    longest, shortest         most or fewest bytes                                           a share
    random                    the least keyed hash of its key                                a share
    first                     nobody: the lowest key survives, as in every tie               none

A rank is 64 bits, and the lowest (rank, key) survives. The first of them is set in all documents of a run, and cleared in
those of earlier ones that it is held `against`, which therefore survive (`exchanges.RANK`). The criteria in a list share
the others, and what does not fit is cut off: the documents then tie, and the next criterion decides. Alone, or after
`source_order` alone, nothing is lost but the fractions of a second and the last bits of a number. Where two share, each has
26 bits after `source_order` and 31 without it:

    numbers   a sign, 11 bits of exponent, 14 (19) bits of fraction: they differ from one part in 16,384 (500,000) on
    dates     40 bits of seconds, of which the last 14 (9) go: they differ from 4.6 hours (8.5 minutes) on
    lengths   6 bits of exponent, 20 (25) of fraction: exact up to 1 MB (33 MB), then one part in one (33) million

Three that share are refused: 18 bits each would tell apart too little. A document without a number or a date (null, NaN, or
text that is none) comes after all that have one, whichever end is kept; numbers kept from JSON are text, and are read. Whole
numbers above 2^53 are rounded to the nearest float. Ranks are made of bits alone, never of arithmetic on floats, so they are
the same on any machine; a stage that computes a score rounds it, so that the columns are too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from datapipe import columns, rng
from datapipe.columns import compute as pc
from datapipe.errors import UserError, suggest
from datapipe.stage import dates
from datapipe.stage.base import StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.tables import new_bit

_PLAIN = ("first", "longest", "shortest", "random", "source_order")
_OF_COLUMN = ("highest", "lowest", "earliest", "latest")
_ENDS = ("first", "random")
_EXPECTED = (
    f"expected one of {', '.join(_PLAIN)}, one of {{highest: COLUMN}}, {{lowest: COLUMN}}, {{earliest: COLUMN}}, "
    "{latest: COLUMN}, {source_order: [SOURCE, …]}, or a list of these"
)
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?$"
_BITS = 63
_SOURCE_BITS = 10
_MOST_SHARING = 2
_MANY_UNREAD = 16
"""A batch of so many values in a row that cannot be read is no accident."""
_DATE_BITS, _DATE_MARGIN_S = 40, 1 << 36
_LENGTH_BITS = 58
"""Of the float just above a whole number below 2^64, counted from that of 1.0: 6 of the exponent and 52 of the fraction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """One test of who survives. `column` of those that go by one; `sources` as listed, empty for the mixture's own order."""

    by: str
    column: str = ""
    sources: tuple[str, ...] = ()

    def written(self) -> Any:
        """As it stands in a mixture."""
        named = self.column or list(self.sources)
        return {self.by: named} if named else self.by


def _parsed(value: Any) -> tuple[Criterion, ...]:
    """Criteria of what the mixture says. Raises ValueError."""
    found = tuple(_criterion(one) for one in (value if isinstance(value, list | tuple) else [value]))
    names = [one.by for one in found]
    if not found or len({(one.by, one.column) for one in found}) < len(found):
        raise ValueError("expected at least one criterion, and each once")
    ended = next((name for name in names[:-1] if name in _ENDS), None)
    if ended is not None:
        raise ValueError(f"nothing is decided after '{ended}', which leaves no ties that matter: put it last")
    sharing = [name for name in names if name not in ("first", "source_order")]
    if len(sharing) > _MOST_SHARING:
        raise ValueError(
            f"found {len(sharing)} criteria beside source_order and first ({', '.join(sharing)}), and a rank of 64 bits has "
            f"room for {_MOST_SHARING}: leave out the last"
        )
    return found


def _criterion(value: Any) -> Criterion:
    if isinstance(value, Criterion):
        return value
    if isinstance(value, str) and value in _PLAIN:
        return Criterion(by=value)
    if isinstance(value, str):
        raise _unknown(value, _PLAIN)
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError(_EXPECTED)
    [(by, named)] = value.items()
    if by not in (*_OF_COLUMN, "source_order"):
        raise _unknown(str(by), (*_OF_COLUMN, "source_order"))
    if by in _OF_COLUMN and isinstance(named, str) and named:
        return Criterion(by=by, column=named)
    if by == "source_order" and isinstance(named, list | tuple) and named and all(isinstance(one, str) for one in named):
        if len(set(named)) < len(named):
            raise ValueError("expected each source once")
        return Criterion(by=by, sources=tuple(named))
    raise ValueError(_EXPECTED)


def _unknown(name: str, known: Sequence[str]) -> ValueError:
    meant = suggest(name, known)
    return ValueError(f"{_EXPECTED}.{meant}" if meant else _EXPECTED)


def _written(criteria: tuple[Criterion, ...]) -> Any:
    found = [one.written() for one in criteria]
    return found[0] if len(found) == 1 else found


_NAMED = {
    **{name: {"type": "string", "minLength": 1} for name in _OF_COLUMN},
    "source_order": {"type": "array", "items": {"type": "string"}, "minItems": 1},
}
_ONE: dict[str, Any] = {
    "anyOf": [
        {"enum": list(_PLAIN)},
        {"type": "object", "properties": _NAMED, "additionalProperties": False, "minProperties": 1, "maxProperties": 1},
    ]
}
Keep = Annotated[
    tuple[Criterion, ...],
    PlainValidator(_parsed),
    PlainSerializer(_written),
    WithJsonSchema({"anyOf": [*_ONE["anyOf"], {"type": "array", "items": _ONE, "minItems": 1}]}),
]

KEEP_FIRST: Any = "first"
"""The default of an option of type `Keep`, as it is written; declare the option with `validate_default=True`."""

KEEP_TEXT = (
    "Which document survives: first (lowest key: within a file the earliest), longest or shortest (by bytes), random (by keyed "
    "hash), source_order (of the mixture, or {source_order: [SOURCE, …]}), {highest: COLUMN} or {lowest: COLUMN} of a number, "
    "{earliest: COLUMN} or {latest: COLUMN} of an ISO date. Or a list of these, where each breaks the ties of those before it; "
    "what is left goes to the lowest key."
)
"""What an option of type `Keep` says of itself."""


def source_order(keep: Keep) -> tuple[str, ...] | None:
    """The order of sources that a policy goes by: () for the mixture's own, None where it goes by none."""
    return next((one.sources for one in keep if one.by == "source_order"), None)


def survivor_ranks(keep: Keep, batch: DocumentBatch, context: StageContext) -> np.ndarray:
    """The rank of each document of this run, (num_docs,) uint64: the lowest survives.

    Args:
        keep: the policy.
        batch: the documents.
        context: as the stage was opened with. Raises UserError where a column is missing, or of another type.
    """
    sharing = sum(one.by not in ("first", "source_order") for one in keep)
    left = _BITS - (_SOURCE_BITS if source_order(keep) is not None else 0)
    ranks = np.zeros(batch.num_docs, np.uint64)
    for one in keep:
        if one.by == "first":
            break
        bits = _SOURCE_BITS if one.by == "source_order" else left // sharing
        code = _code(one, batch, context, bits)
        ranks = ranks << np.uint64(bits) | code
    return ranks | new_bit(np.uint64)


def _code(one: Criterion, batch: DocumentBatch, context: StageContext, bits: int) -> np.ndarray:
    """What one criterion says of each document in so many bits, (num_docs,) uint64: the lowest survives."""
    last = np.uint64((1 << bits) - 1)
    if one.by == "source_order":
        place = context.source_place
        if place is None or place > int(last):
            raise UserError(f"{context.name}: keep: source_order goes by at most {int(last) + 1:,} sources; this is {place}")
        return np.full(batch.num_docs, place, np.uint64)
    if one.by == "random":
        hashed = rng.keyed_hash(columns.key_halves(batch.keys), rng.seed_for(context.seed, context.name, "survivor"))
        return hashed >> np.uint64(64 - bits)
    if one.by in ("longest", "shortest"):
        code = _length_code(columns.text_lengths(batch.texts), bits)
        return last - code if one.by == "longest" else code
    column = _column(one, batch, context)
    read_as = "ISO 8601 dates, such as 2024-03-09" if one.by in ("earliest", "latest") else "numbers"
    code, there = _date_code(column, bits) if one.by in ("earliest", "latest") else _number_code(column, bits)
    _check_readable(column, there, f"{context.name}: keep: {{{one.by}: {one.column}}}", read_as)
    return np.where(there, last - code if one.by in ("latest", "highest") else code, last)


def _check_readable(column: pa.Array, there: np.ndarray, asked_by: str, read_as: str) -> None:
    """Raises UserError where a column of text holds many values and none can be read: then it would decide nothing."""
    if not _is_text(column.type) or there.any() or len(column) - column.null_count < _MANY_UNREAD:
        return
    example = column.drop_null()[0].as_py()
    raise UserError(
        f"{asked_by}: none of {len(column) - column.null_count} values is one, such as {example!r}; expected {read_as}"
    )


def _length_code(lengths: np.ndarray, bits: int) -> np.ndarray:
    """Whole numbers from 0, ascending: exactly where there is room for 2^40, else by their leading bits."""
    if bits >= 40:
        return np.minimum(lengths.astype(np.uint64), np.uint64((1 << bits) - 1))
    floats = (lengths + 1).astype(np.float64).view(np.uint64) - np.float64(1).view(np.uint64)
    return floats >> np.uint64(_LENGTH_BITS - bits)


def _date_code(column: pa.Array, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Dates ascending, and where there is one. The margin keeps the first and last second from being all zeros or ones."""
    seconds, there = dates.seconds(column)
    code = np.where(there, seconds + _DATE_MARGIN_S, 0).astype(np.uint64)
    return code >> np.uint64(max(0, _DATE_BITS - bits)), there


def _number_code(column: pa.Array, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers ascending, by the bits of the float turned so that they sort, and where there is one."""
    if _is_text(column.type):  # as numbers are that were kept from JSON
        column = pc.if_else(pc.match_substring_regex(column, _NUMBER), column, pa.scalar(None, column.type))
    floats = column.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    turned = (floats + 0.0).view(np.uint64)  # adding 0 makes -0.0 the same as 0.0
    sign = np.uint64(1 << 63)
    code = np.where(turned & sign, ~turned, turned | sign)
    return code >> np.uint64(64 - bits), ~np.isnan(floats)


def _is_text(column_type: pa.DataType) -> bool:
    return pa.types.is_string(column_type) or pa.types.is_large_string(column_type)


def _column(one: Criterion, batch: DocumentBatch, context: StageContext) -> pa.Array:
    asked_by = f"{context.name}: keep: {{{one.by}: {one.column}}}"
    column = batch.column(one.column, asked_by)
    is_date = one.by in ("earliest", "latest")
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null, _is_text)
    is_number = any(is_kind(column.type) for is_kind in kinds)
    if not (dates.is_dated(column.type) if is_date else is_number):
        expected = "dates: ISO 8601 text, a date or a timestamp" if is_date else "numbers"
        raise UserError(f"{asked_by}: found a column of {column.type}, expected {expected}")
    return column
