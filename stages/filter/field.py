"""Keeps documents by one of their fields: status, media type, score, language attribute.

    value of the field ── as text ───▶ keep, drop              equal to one of a list           rules `not_in_keep`, `in_drop`
                       │           └─▶ keep_matching, drop_…   a regular expression finds it    `not_matching`, `matching`
                       └─ as number ─▶ min_value, max_value    a value equal to a limit passes  `too_small`, `too_large`
                          or date                              a value of another kind          `not_a_number`, `not_a_date`

Numbers, true and false are compared by their text. Limits are numbers, or dates in ISO 8601 for columns of dates, times or
such text; a date without a time means midnight, a time without a zone is UTC. Regular expressions (RE2) are searched anywhere
in the value. A document without a value is in no list and matches no expression; `missing` can change that.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field as Option
from pydantic import field_validator

from datapipe.columns import compute as pc
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.base import OF_KIND, OTHER_KIND
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.field_values import Value, are_listed, flags, limit_of, numbers_of, texts_of

_NAME = "filter.field"


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
        default=None, description="Minimum number or date to keep, such as 3 or 2024-05-17; null: no limit."
    )
    max_value: float | str | None = Option(
        default=None, description="Maximum number or date to keep, such as 3 or 2024-05-17T12:00:00Z; null: no limit."
    )
    missing: Literal["keep", "drop"] | None = Option(
        default=None,
        description="What happens to a document whose value is missing, or is not a number or date although limits are given. "
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
        least = -math.inf if self.min_value is None else limit_of("min_value", self.min_value)
        return least, math.inf if self.max_value is None else limit_of("max_value", self.max_value)

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
        column = batch.column(self.field, _NAME)
        values = texts_of(column, self.field, _NAME)
        is_missing = flags(pc.equal(values, ""))
        numbers = np.zeros(len(values))
        if self._has_range:
            numbers = numbers_of(column, values, self.field, _NAME, by_date=self._by_date)
        is_other = np.isnan(numbers) & ~is_missing
        is_value = ~is_missing & ~is_other  # a document without a value, or with one of another kind, fails that rule alone
        limited = np.where(is_value, numbers, np.nan)  # NaN is neither smaller nor greater than a limit
        measured = {"missing": is_missing, self._other_kind: is_other, "too_small": limited, "too_large": limited}
        if self.keep:
            measured["not_in_keep"] = is_value & ~are_listed(column, values, self.keep, self.field, f"{_NAME}: keep")
        if self.drop:
            measured["in_drop"] = is_value & are_listed(column, values, self.drop, self.field, f"{_NAME}: drop")
        if self.keep_matching:
            measured["not_matching"] = is_value & ~flags(pc.match_substring_regex(values, self.keep_matching))
        if self.drop_matching:
            measured["matching"] = is_value & flags(pc.match_substring_regex(values, self.drop_matching))
        rules = self.rules()
        counted = zip(self.counts, (is_missing, is_other, is_value & self._has_range))
        counts = {name: pa.array(each.astype(np.int32)) for name, each in counted}
        return FilterResult.from_rules(rules, [measured[rule.name] for rule in rules], counts)


def _shown(limit: float | str | None) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)
