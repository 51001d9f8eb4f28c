"""Keeps documents by a field of theirs: licence, status, media type, score, language attribute.

    value of the field ── as text ───▶ keep, drop              equal to one of a list           rules `not_in_keep`, `in_drop`
                       │           └─▶ keep_matching, drop_…   a regular expression finds it    `not_matching`, `matching`
                       └─ as number ─▶ min_value, max_value    a value equal to a limit passes  `too_small`, `too_large`

Values that are numbers or true and false in the input are compared by their text, 200 or true; `min_value` and `max_value` read
text as a number, and text that is none counts as missing. Regular expressions are those of RE2, which take linear time; they
are searched anywhere in the value, so `^` and `$` bind them to its ends.

A document without a value, or with an empty one, is in no list and matches no expression: conditions to keep drop it, those to
drop keep it. `missing` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field as Option
from pydantic import field_validator, model_validator

from datapipe import columns
from datapipe.errors import UserError
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from stages.filter._columns import named_column

Value = str | int | float | bool

_KEEPING = ("keep", "keep_matching", "min_value", "max_value")
_DROPPING = ("drop", "drop_matching")


class Field(Filter):
    """Drops documents by the value of one of their fields: in a list, by a regular expression, or out of a range."""

    field: str = Option(
        min_length=1, description="Column with the value; the source must list it in `keep`, or a stage write it."
    )
    keep: tuple[Value, ...] = Option(default=(), description="The only values to keep, such as [cc-by-4.0, mit] or [200].")
    drop: tuple[Value, ...] = Option(default=(), description="Values to drop.")
    keep_matching: str = Option(default="", description="Regular expression (RE2) that must be found in the value.")
    drop_matching: str = Option(default="", description="Regular expression (RE2) that must not be found in the value.")
    min_value: float | None = Option(default=None, description="Least number to keep; null: no limit.")
    max_value: float | None = Option(default=None, description="Largest number to keep; null: no limit.")
    missing: Literal["keep", "drop"] | None = Option(
        default=None,
        description="What happens to a document without a value. Default: drop where keep, keep_matching, min_value or "
        "max_value is given, otherwise keep.",
    )

    before_text: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = ("without_value",)
    """Documents whose value is null or empty, or no number where a number is asked for."""

    libraries = ("pyarrow",)
    writes = ()

    @field_validator("keep_matching", "drop_matching")
    @classmethod
    def _is_expression(cls, expression: str) -> str:
        try:
            pc.match_substring_regex(pa.array([""]), expression)  # pyright: ignore[reportAttributeAccessIssue]
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"{str(error).removeprefix('Invalid regular expression: ')}. Expected a regular expression of RE2"
            ) from None
        return expression

    @model_validator(mode="after")
    def _has_condition(self) -> Field:
        if not self._is_keeping and not self.drop and not self.drop_matching and self.missing != "drop":
            raise ValueError(
                f"no condition is given. Expected at least one of: {', '.join((*_KEEPING, *_DROPPING))}, missing: drop"
            )
        if self.min_value is not None and self.max_value is not None and self.min_value > self.max_value:
            raise ValueError(f"min_value {self.min_value:g} is above max_value {self.max_value:g}, so no value passes")
        return self

    @property
    def _is_keeping(self) -> bool:
        """Whether some condition says what to keep."""
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
        """`missing` first, then the lists, the expressions and the range, as far as they are given."""
        given = {
            "missing": self._drops_missing,
            "not_in_keep": self.keep,
            "in_drop": self.drop,
            "not_matching": self.keep_matching,
            "matching": self.drop_matching,
        }
        flags = [Rule(name=name, limit=0, side="max") for name, is_given in given.items() if is_given]
        limits = [self.at_least("too_small", "min_value"), self.at_most("too_large", "max_value")]
        return [*flags, *(rule for rule in limits if rule.limit is not None)]

    def process(self, batch: DocumentBatch) -> FilterResult:
        values = self._values(batch)
        is_missing = _flags(pc.equal(values, ""))  # pyright: ignore[reportAttributeAccessIssue]
        numbers = np.empty(0)
        if self._has_range:
            numbers = _numbers(values)
            is_missing |= np.isnan(numbers)
        rules, without = self.rules(), {"without_value": pa.array(is_missing.astype(np.int32))}
        measured = [self._measured(rule.name, values, numbers, is_missing) for rule in rules]
        return FilterResult.from_rules(rules, measured, without)

    def _measured(self, rule: str, values: pa.Array, numbers: np.ndarray, is_missing: np.ndarray) -> np.ndarray:
        """What a rule measures: (num_docs,). A document without a value fails `missing` alone."""
        if rule == "missing":
            return is_missing
        if rule in ("too_small", "too_large"):
            return np.where(is_missing, np.nan, numbers)  # NaN is neither smaller nor greater than a limit
        if rule in ("not_in_keep", "in_drop"):
            is_hit = _is_in(values, self.keep if rule == "not_in_keep" else self.drop)
        else:
            expression = self.keep_matching if rule == "not_matching" else self.drop_matching
            is_hit = _flags(pc.match_substring_regex(values, expression))  # pyright: ignore[reportAttributeAccessIssue]
        return (is_hit ^ rule.startswith("not_")) & ~is_missing

    def _values(self, batch: DocumentBatch) -> pa.Array:
        """The values as text, (num_docs,) large_string; a null becomes an empty text. Raises UserError."""
        column = named_column(batch, "filter.field", self.field)
        try:
            return column.cast(pa.large_string()).fill_null("")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UserError(
                f"filter.field: the column '{self.field}' holds {column.type}, expected text, numbers, or true and false. Set "
                f"`field` to another column."
            ) from None


def _flags(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(bool)


def _is_in(values: pa.Array, listed: Sequence[Value]) -> np.ndarray:
    """Which texts are in a list: (num_docs,) bool."""
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in listed]
    return _flags(pc.is_in(values, value_set=pa.array(texts, pa.large_string())))  # pyright: ignore[reportAttributeAccessIssue]


def _numbers(values: pa.Array) -> np.ndarray:
    """Texts as numbers: (num_docs,) float64, NaN for text that is no number."""
    trimmed = pc.utf8_trim_whitespace(values)  # pyright: ignore[reportAttributeAccessIssue]
    is_number = pc.match_substring_regex(trimmed, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")  # pyright: ignore[reportAttributeAccessIssue]
    digits = pc.if_else(is_number, pc.replace_substring_regex(trimmed, r"^\+", ""), "nan")  # pyright: ignore[reportAttributeAccessIssue]
    return columns.numbers(digits.cast(pa.float64()))
