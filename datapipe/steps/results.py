"""Checks whether the results of stages keep their contract.

A breach fails the run and quarantines nothing. `guard.py` adds the stage's name, its code and the document to the StageError.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.columns import numbers
from datapipe.dataclass import replace
from datapipe.errors import StageError
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.stage.base import BELOW_SHARE, Filter, FilterResult, Map, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.findings import FOUND
from datapipe.stage.segments import SEGMENTS, check_segments
from datapipe.steps.cut import check_scores

_OWN: frozenset[str] = frozenset(OWN_COLUMNS) - {"text"}


def checked_filter(stage: Filter, batch: DocumentBatch) -> FilterResult:
    """The result of a filter: a decision on every document, and a rule for every drop. Raises StageError."""
    result = stage.process(batch)
    if not isinstance(result, FilterResult):
        raise StageError(f"expected a FilterResult, found {type(result).__name__}")
    rules = list(stage.rules())
    if not all(isinstance(rule, Rule) for rule in rules) or len({rule.name for rule in rules}) < len(rules):
        raise StageError(f"rules: expected records of Rule with different names, found {rules!r:.200}")
    _check_array("keep", result.keep, batch.num_docs, "b")
    _check_array("rule", result.rule, batch.num_docs, "iu")
    _check_array("value", result.value, batch.num_docs, "iufb")
    if result.limits and len(result.limits) != len(rules):
        raise StageError(f"limits: expected an array for each of {len(rules)} rules, found {len(result.limits)}")
    for limits in (*result.limits, *([] if result.limit is None else [result.limit])):
        _check_array("limit", limits, batch.num_docs, "iufb")
    dropped = result.rule[~result.keep]
    wrong = dropped[(dropped < 0) | (dropped >= len(rules))]
    if len(wrong):
        raise StageError(f"rule: expected 0 to {len(rules) - 1} for every dropped document, found {wrong[0]}")
    if result.measured or stage.mode == "tag":
        _check_measured(stage, result, len(rules), batch.num_docs)
    if stage.kept_share() is not None:
        _check_ranked(stage, rules, result)
    if result.findings is not None:
        _check_findings(result.findings, batch.num_docs)
    if stage.extracts and "text" not in result.columns:
        raise StageError(
            "it extracts, and returned no column 'text'. Return the text of each page, an empty one where it is dropped"
        )
    return replace(result, columns=_checked_columns(stage, result.columns, batch.num_docs))


_KINDS = {"b": "bool", "iu": "whole numbers", "iufb": "numbers"}  # of NumPy's data types


def _check_array(name: str, array: Any, num_docs: int, kinds: str) -> None:
    if not isinstance(array, np.ndarray) or array.shape != (num_docs,):
        got = f"shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise StageError(f"{name}: expected a NumPy array of shape ({num_docs},), found {got}")
    if array.dtype.kind not in kinds:
        raise StageError(f"{name}: expected {_KINDS[kinds]}, found {array.dtype}")


def _check_measured(stage: Filter, result: FilterResult, num_rules: int, num_docs: int) -> None:
    """Raises StageError where `mode: tag` would have no value, or no rule, for a document."""
    if len(result.measured) != num_rules:
        raise StageError(f"measured: expected an array for each of {num_rules} rules, found {len(result.measured)}")
    for index, values in enumerate(result.measured):
        _check_array(f"measured[{index}]", values, num_docs, "iufb")
    if stage.mode == "tag" and num_docs and not -1 <= int(result.rule.min()) <= int(result.rule.max()) < num_rules:
        raise StageError(f"rule: expected -1 to {num_rules - 1}, found {result.rule.min()} to {result.rule.max()}")


def _check_ranked(stage: Filter, rules: list[Rule], result: FilterResult) -> None:
    if not rules or rules[-1].name != BELOW_SHARE or len(result.measured) != len(rules):
        raise StageError(
            f"it keeps a share of the documents. Expected `self.below_share(option)` as the last of its rules, and what each "
            f"rule measured; found the rules {', '.join(rule.name for rule in rules)} and {len(result.measured)} arrays"
        )
    check_scores(np.asarray(result.measured[-1], np.float64))


def _check_findings(findings: Any, num_docs: int) -> None:
    """Raises StageError for findings of another schema, or of rows out of order or outside of the batch."""
    if not isinstance(findings, pa.RecordBatch) or not findings.schema.equals(FOUND):
        got = findings.schema.names if isinstance(findings, pa.RecordBatch) else type(findings).__name__
        raise StageError(f"findings: expected a record batch with the schema findings.FOUND, found {got}")
    rows = numbers(findings.column("row"))
    if len(rows) and (rows[0] < 0 or rows[-1] >= num_docs or (rows[1:] < rows[:-1]).any()):
        raise StageError(f"findings: expected rows from 0 to {num_docs - 1} in ascending order")


def checked_map(stage: Map, batch: DocumentBatch) -> dict[str, pa.Array]:
    """The columns of a map: Arrow arrays of the batch's length, texts as large_string. Raises StageError."""
    return _checked_columns(stage, stage.process(batch), batch.num_docs)


def _checked_columns(stage: Filter | Map, columns: Any, num_docs: int) -> dict[str, pa.Array]:
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) and name for name in columns):
        raise StageError(f"expected a dict of Arrow arrays by column name, found {type(columns).__name__}")
    for name, array in columns.items():
        _check_column(name, array, num_docs, _OWN - {SEGMENTS} if SEGMENTS in (stage.writes or ()) else _OWN)
    _check_names(stage, columns)
    for name in stage.counts:
        if not pa.types.is_integer(columns[name].type):
            raise StageError(f"the count '{name}': expected whole numbers, found {columns[name].type}")
    checked = {**columns, "text": _texts(columns["text"])} if "text" in columns else dict(columns)
    if SEGMENTS in checked:
        check_segments(checked[SEGMENTS], checked.get("text"))
    return checked


def _check_column(name: str, array: Any, num_docs: int, own: frozenset[str]) -> None:
    if name in own:
        raise StageError(f"the column '{name}' belongs to the engine. Return another name")
    if not isinstance(array, pa.Array):
        raise StageError(f"column '{name}': expected an Arrow array, found {type(array).__name__}")
    if len(array) != num_docs:
        raise StageError(f"column '{name}': expected {num_docs} entries, one per document, found {len(array)}")
    if pa.types.is_null(array.type):
        raise StageError(f"column '{name}' has only nulls and no type. Give it one: pa.nulls(n, pa.string())")


def _check_names(stage: Filter | Map, columns: Mapping[str, pa.Array]) -> None:
    missing = [counted for counted in stage.counts if counted not in columns]
    if missing:
        raise StageError(f"the count '{missing[0]}' is declared, but the stage returned no such column")
    if stage.writes is not None:
        others = sorted(columns.keys() - {*stage.writes, *stage.counts, "text"})
        if others:
            raise StageError(f"column '{others[0]}' is not one that it declares in `writes`: {_listed(stage.writes)}")


def _texts(texts: pa.Array) -> pa.Array:
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise StageError(f"column 'text': expected strings, found {texts.type}")
    if texts.null_count:
        raise StageError("column 'text' holds nulls. Return an empty string for an empty text, and drop documents in a filter")
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise StageError(f"column 'text' is not valid UTF-8: {error}") from error
    return texts.cast(pa.large_string())


def tags_of(name: str, stage: Filter, result: FilterResult) -> dict[str, pa.Array]:
    """The columns of a filter in tag mode: the first failed rule, its value, the measurement of every rule, labels."""
    rules = stage.rules()
    failed = pa.array([rule.name for rule in rules] or [""]).take(pa.array(result.rule, mask=result.rule < 0))
    measured = {f"{name}.{rule.name}": pa.array(values) for rule, values in zip(rules, result.measured, strict=True)}
    labels = {key: column for key, column in result.columns.items() if key != "text" and key not in stage.counts}
    return {f"{name}.rule": failed, f"{name}.value": pa.array(result.value), **measured, **labels}


class NewColumns:
    """The new columns of a stage: the same in every batch of a task, in the types of the first one."""

    def __init__(self) -> None:
        self._types: dict[str, pa.DataType] | None = None

    def same(self, columns: Mapping[str, pa.Array], batch: DocumentBatch) -> dict[str, pa.Array]:
        """The returned columns, new ones in the types of earlier batches. Raises StageError."""
        existing = {*batch.record.schema.names, *OWN_COLUMNS}
        new = {name: array for name, array in columns.items() if name not in existing}
        if self._types is None:
            self._types = {name: array.type for name, array in new.items()}
        if new.keys() != self._types.keys():
            raise StageError(f"expected the new columns of earlier batches: {_listed(self._types)}, found {_listed(new)}")
        return {**columns, **{name: _in_type(name, array, self._types[name]) for name, array in new.items()}}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _in_type(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array if array.type == kind else array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StageError(f"column '{name}': expected {kind}, as in earlier batches, found {array.type}: {error}") from error


def checked_tables(tables: Any, declared: Mapping[str, pa.Schema]) -> dict[str, pa.RecordBatch]:
    """Tables of a global stage, each with the schema that it declares. Raises StageError."""
    if not isinstance(tables, Mapping):
        raise StageError(f"expected a dict of record batches by table, found {type(tables).__name__}")
    for name, rows in tables.items():
        if name not in declared:
            raise StageError(f"table {name!r} is not declared. Expected some of: {', '.join(declared)}")
        if not isinstance(rows, pa.RecordBatch):
            raise StageError(f"table '{name}': expected a record batch, found {type(rows).__name__}")
        if not rows.schema.equals(declared[name]):
            expected, got = (schema.to_string(show_field_metadata=False) for schema in (declared[name], rows.schema))
            raise StageError(f"table '{name}': expected the columns {expected!r}, found {got!r}")
    return dict(tables)
