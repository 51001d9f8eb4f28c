"""The documents that a stage sees: those whose columns have the values that its `when` names. Others pass the stage unchanged.

    when: {language: [ja, zh]}                        one of these values
    when: {language: "!= en", quality: ">= 3, < 5"}   each column that is named, and each comparison

Values are compared as text; `<`, `<=`, `>` and `>=` compare numbers, or dates in ISO 8601. A stage does not see documents
without a value, or with one of another kind.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.field_values import Value, are_listed, flags, limit_of, numbers_of, texts_of
from datapipe.stage.segments import SEGMENTS, SEGMENTS_TYPE

OUTSIDE_WHEN = "outside_when"
"""The count of documents that pass a stage, because its `when` is about others."""

_COMPARISON = re.compile(r"(>=|<=|!=|>|<)\s*(\S.*)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EXPECTED = "expected a value, a list of values, or comparisons such as '>= 3, < 5'"


@dataclass(frozen=True, slots=True)
class _Comparison:
    sign: str
    limit: float | str

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises ValueError."""
        matched = _COMPARISON.fullmatch(text.strip())
        if matched is None:
            raise ValueError(f"found '{text}', {_EXPECTED}")
        sign, limit = matched.groups()
        if sign == "!=":
            return cls(sign, limit)
        if _NUMBER.fullmatch(limit):
            return cls(sign, float(limit))
        limit_of(f"found '{text}', {_EXPECTED}", limit)
        return cls(sign, limit)


@dataclass(frozen=True, slots=True)
class When:
    """By column the values that documents have, or the comparisons that hold for them."""

    columns: Mapping[str, tuple[Value, ...] | tuple[_Comparison, ...]]

    @classmethod
    def of(cls, given: Any) -> Self:
        """The condition as a mixture has it. Raises ValueError."""
        if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) and name for name in given):
            raise ValueError(f"found {given!r}, expected columns with their values, such as {{language: [ja, zh]}}")
        return cls({name: _tests_of(name, value) for name, value in given.items()})

    def rows(self, batch: DocumentBatch, stage: str) -> np.ndarray:
        """The documents that the stage sees, (num_docs,) bool. Raises UserError for a missing column, and for one of lists."""
        asked_by, seen = f"{stage} (when)", np.ones(batch.num_docs, np.bool_)
        for name, tests in self.columns.items():
            column = batch.column(name, asked_by)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            texts = texts_of(column, name, asked_by)
            seen &= flags(column.is_valid())
            listed = tuple(test for test in tests if not isinstance(test, _Comparison))
            if listed:
                seen &= are_listed(column, texts, listed, name, asked_by)
            for test in (test for test in tests if isinstance(test, _Comparison)):
                seen &= _holds(test, column, texts, name, asked_by)
        return seen


def _tests_of(name: str, value: Any) -> tuple[Value, ...] | tuple[_Comparison, ...]:
    if isinstance(value, str) and _COMPARISON.match(value.strip()):
        return tuple(_Comparison.of(text) for text in value.split(","))
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not values or not all(isinstance(each, str | int | float) and each != "" for each in values):
        raise ValueError(f"{name}: found {value!r}, {_EXPECTED}")
    return tuple(values)


def _holds(test: _Comparison, column: pa.Array, texts: pa.Array, name: str, asked_by: str) -> np.ndarray:
    if test.sign == "!=":
        return ~are_listed(column, texts, (str(test.limit),), name, asked_by)
    numbers = numbers_of(column, texts, name, asked_by, by_date=isinstance(test.limit, str))
    return _COMPARE[test.sign](numbers, limit_of(asked_by, test.limit))  # NaN is neither


def rejoined(batch: DocumentBatch, rows: np.ndarray, processed: DocumentBatch, stage: str) -> DocumentBatch:
    """The documents of a batch in their order: those in `rows` (num_docs,) bool as far as they are left in `processed`, and the
    others unchanged, with nulls in new columns. Raises UserError for a column to which a stage has given another type."""
    others = [_column_of(batch, ~rows, field, stage) for field in processed.record.schema]
    together = pa.concat_batches(
        [processed.record, pa.record_batch(others, schema=processed.record.schema)]  # first those that the stage saw
    )
    order = pc.index_in(batch.keys, value_set=together.column("key"))
    kept, ordered = batch.filter(flags(order.is_valid())), together.take(order.drop_null())
    gone = [name for name in kept.record.schema.names if name not in ordered.schema.names]
    if gone:
        return DocumentBatch(ordered)
    before = dict(zip(kept.record.schema.names, kept.record.columns))
    same = {name for name in ordered.schema.names if name in before and ordered.column(name).equals(before[name])}
    if "text" not in same:
        same -= {SEGMENTS}
    new = {name: ordered.column(name) for name in ordered.schema.names if name not in same}
    return kept.with_columns(new) if new else kept


def _column_of(batch: DocumentBatch, rows: np.ndarray, field: pa.Field, stage: str) -> pa.Array:
    """A column of documents that a stage has not seen, in the type that it has behind the stage."""
    if field.name not in batch.record.schema.names:
        count = int(rows.sum())
        return pa.array([[]] * count, SEGMENTS_TYPE) if field.name == SEGMENTS else pa.nulls(count, field.type)
    column = batch.record.column(field.name).filter(pa.array(rows))
    try:
        return column if column.type == field.type else column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UserError(
            f"{stage} (when): the stage writes the column '{field.name}' as {field.type}, and other documents have it as "
            f"{column.type}. Let the stage write another column, or leave out `when`."
        ) from None
