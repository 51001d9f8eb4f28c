"""Keeps documents by a field of theirs: status, media type, score, language attribute.

    value of the field ── as text ───▶ keep, drop              equal to one of a list           rules `not_in_keep`, `in_drop`
                       │           └─▶ keep_matching, drop_…   a regular expression finds it    `not_matching`, `matching`
                       └─ as number ─▶ min_value, max_value    a value equal to a limit passes  `too_small`, `too_large`
                          or date                              a value of another kind          `not_a_number`, `not_a_date`

Numbers, true and false are compared by their text. Limits are numbers, or dates in ISO 8601 for
columns of dates, of times and of such text; a date without a time is its midnight, a time without a
zone is UTC. Regular expressions are those of RE2, and are searched anywhere in the value. A
document without a value is in no list and matches no expression, unless `missing` is set otherwise.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field as Option
from pydantic import field_validator

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.errors import UserError
from datapipe.stage import Filter, FilterResult, Rule, dates
from datapipe.stage.base import OF_KIND, OTHER_KIND
from datapipe.stage.documents import DocumentBatch

Value = str | int | float | bool


class Field(Filter):
    """Drops documents by the value of one of their fields: in a list, by a regular expression, or out of a range."""

    field: str = Option(
        min_length=1, description="Column with the value; the source must list it in `keep`, or a stage write it."
    )
    keep: tuple[Value, ...] = Option(default=(), description="The only values to keep, such as [cc-by-4.0, mit] or [200].")
    drop: tuple[Value, ...] = Option(default=(), description="Values to drop.")
    keep_matching: str = Option(default="", description="Regular expression (RE2) that must be found in the value.")
    drop_matching: str = Option(default="", description="Regular expression (RE2) that must not be found in the value.")
    min_value: float | str | None = Option(
        default=None, description="Least number or date to keep, such as 3 or 2024-05-17; null: no limit."
    )
    max_value: float | str | None = Option(
        default=None, description="Largest number or date to keep, such as 3 or 2024-05-17T12:00:00Z; null: no limit."
    )
    missing: Literal["keep", "drop"] | None = Option(
        default=None,
        description="What happens to a document without a value, or with one that is no number or date where limits are given. "
        "Default: drop where keep, keep_matching, min_value or max_value is given, otherwise keep.",
    )

    before_text: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = ("without_value", OTHER_KIND, OF_KIND)
    """Documents whose value is null or empty; is no number, or no date, where limits are given; is one."""

    libraries = ("pyarrow",)
    writes = ()

    @field_validator("keep_matching", "drop_matching")
    @classmethod
    def _is_expression(cls, expression: str) -> str:
        try:
            pc.match_substring_regex(pa.array([""]), expression)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"{str(error).removeprefix('Invalid regular expression: ')}. Expected a regular expression of RE2"
            ) from None
        return expression

    def check_options(self) -> None:
        if not self._is_keeping and not self.drop and not self.drop_matching and self.missing != "drop":
            options = "keep, keep_matching, min_value, max_value, drop, drop_matching, missing: drop"
            raise ValueError(f"no condition is given. Expected at least one of: {options}")
        least, most = self._limits
        given = [limit for limit in (self.min_value, self.max_value) if limit is not None]
        if len({isinstance(limit, str) for limit in given}) > 1:
            raise ValueError("min_value and max_value are a number and a date. Expected two numbers, or two dates")
        if least > most:
            raise ValueError(
                f"min_value {_shown(self.min_value)} is above max_value {_shown(self.max_value)}, so no value passes"
            )

    @property
    def _limits(self) -> tuple[float, float]:
        """The least and the largest value to keep; dates in seconds since 1970. Raises ValueError for text that is no date."""
        least = -math.inf if self.min_value is None else _limit_of("min_value", self.min_value)
        return least, math.inf if self.max_value is None else _limit_of("max_value", self.max_value)

    @property
    def _by_date(self) -> bool:
        return isinstance(self.min_value, str) or isinstance(self.max_value, str)

    @property
    def _is_keeping(self) -> bool:
        return bool(self.keep or self.keep_matching) or self._has_range

    @property
    def _has_range(self) -> bool:
        return self.min_value is not None or self.max_value is not None

    @property
    def _drops_missing(self) -> bool:
        return self._is_keeping if self.missing is None else self.missing == "drop"

    def columns_read(self) -> Mapping[str, str]:
        return {self.field: "field"}

    def rules(self) -> Sequence[Rule]:
        """`missing`, the lists, the expressions and the range, as far as they are given."""
        given = {
            "missing": self._drops_missing,
            self._other_kind: self._drops_missing and self._has_range,
            "not_in_keep": self.keep,
            "in_drop": self.drop,
            "not_matching": self.keep_matching,
            "matching": self.drop_matching,
        }
        flags = [Rule(name=name, limit=0, side="max") for name, is_given in given.items() if is_given]
        least, most = self._limits
        options = ("", "") if self._by_date else ("min_value", "max_value")  # no threshold for a sweep over numbers
        limits = [
            Rule(name="too_small", limit=least, side="min", option=options[0]),
            Rule(name="too_large", limit=most, side="max", option=options[1]),
        ]
        return [*flags, *(rule for rule in limits if math.isfinite(rule.limit))]

    @property
    def _other_kind(self) -> str:
        return "not_a_date" if self._by_date else "not_a_number"

    def process(self, batch: DocumentBatch) -> FilterResult:
        column = batch.column(self.field, "filter.field")
        values = self._values(column)
        is_missing = _flags(pc.equal(values, ""))
        numbers = self._numbers(column, values) if self._has_range else np.zeros(len(values))
        is_other = np.isnan(numbers) & ~is_missing
        is_value = ~is_missing & ~is_other  # a document without a value, or with one of another kind, fails that rule alone
        limited = np.where(is_value, numbers, np.nan)  # NaN is neither smaller nor greater than a limit
        measured = {"missing": is_missing, self._other_kind: is_other, "too_small": limited, "too_large": limited}
        if self.keep:
            measured["not_in_keep"] = is_value & ~self._is_in("keep", column, values)
        if self.drop:
            measured["in_drop"] = is_value & self._is_in("drop", column, values)
        if self.keep_matching:
            measured["not_matching"] = is_value & ~_flags(pc.match_substring_regex(values, self.keep_matching))
        if self.drop_matching:
            measured["matching"] = is_value & _flags(pc.match_substring_regex(values, self.drop_matching))
        rules = self.rules()
        counted = zip(self.counts, (is_missing, is_other, is_value & self._has_range))
        counts = {name: pa.array(flags.astype(np.int32)) for name, flags in counted}
        return FilterResult.from_rules(rules, [measured[rule.name] for rule in rules], counts)

    def _is_in(self, option: Literal["keep", "drop"], column: pa.Array, values: pa.Array) -> np.ndarray:
        """Which values are in a list: (num_docs,) bool. Raises UserError for a list without dates over a column of them."""
        listed = self.keep if option == "keep" else self.drop
        if not _is_dated(column.type):
            return _are_listed(values, listed, pa.types.is_floating(column.type))
        try:
            wanted = [_limit_of(option, str(value)) for value in listed]
        except ValueError as error:
            raise UserError(f"filter.field: the column '{self.field}' holds {column.type}. {error}.") from None
        return np.isin(_seconds_of(column), wanted)

    def _numbers(self, column: pa.Array, values: pa.Array) -> np.ndarray:
        """The values as numbers, or as seconds since 1970: (num_docs,) float64, NaN for what is none. Raises UserError."""
        if self._by_date and not dates.is_dated(column.type):
            raise UserError(
                f"filter.field: the column '{self.field}' holds {column.type}, and a limit is a date. Expected dates, times or "
                f"ISO 8601 text: declare types: {{{self.field}: timestamp}} in the source, or write numbers as limits."
            )
        if not self._by_date and _is_dated(column.type):
            raise UserError(
                f"filter.field: the column '{self.field}' holds {column.type}, and its limits are numbers. Expected dates, as "
                f"in min_value: 2024-05-17."
            )
        if self._by_date:
            return _seconds_of(column)
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return columns.numbers(column.cast(pa.float64(), safe=False).fill_null(math.nan))
        return columns.numbers_in(values)

    def _values(self, column: pa.Array) -> pa.Array:
        try:
            return column.cast(pa.large_string()).fill_null("")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UserError(
                f"filter.field: the column '{self.field}' holds {column.type}, expected text, numbers, or true and false. Set "
                f"`field` to another column."
            ) from None


def _flags(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(bool)


def _shown(limit: float | str | None) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)


def _limit_of(option: str, value: float | str) -> float:
    if not isinstance(value, str):
        return value
    seconds = _seconds_of(pa.array([value], pa.large_string()))[0]
    if math.isnan(seconds):
        raise ValueError(
            f"{option}: '{value}' is no date. Expected one in ISO 8601, such as 2024-05-17 or 2024-05-17T12:00:00Z"
        )
    return float(seconds)


def _is_dated(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def _seconds_of(column: pa.Array) -> np.ndarray:
    """Dates and times in seconds since 1970, (num_docs,) float64; NaN for any other value."""
    seconds, is_date = dates.seconds(column)
    whole = (seconds - dates.EPOCH_S).astype(np.float64)
    if pa.types.is_timestamp(column.type) and column.type.unit != "s":
        fractions = pc.subsecond(column).fill_null(0)
        whole += fractions.to_numpy(zero_copy_only=False)
    return np.where(is_date, whole, np.nan)


def _are_listed(values: pa.Array, listed: Sequence[Value], are_floats: bool) -> np.ndarray:
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in listed]
    if are_floats:  # Arrow writes 1.0 as 1
        numbers = columns.numbers_in(pa.array(texts, pa.large_string()))
        texts = pa.array(numbers[~np.isnan(numbers)]).cast(pa.large_string()).to_pylist()
    return _flags(pc.is_in(values, value_set=pa.array(texts, pa.large_string())))
