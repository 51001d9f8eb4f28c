"""Checks the results of stages against their contract, and names the stage that breaks it.

A broken contract is the stage's fault, not a document's: it fails the task and quarantines nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.own_columns import OWN_COLUMNS
from datapipe.stage.base import Filter, FilterResult, Map
from datapipe.stage.documents import DocumentBatch

_OWN = set(OWN_COLUMNS) - {"text"}


def checked_filter(name: str, stage: Filter, batch: DocumentBatch) -> FilterResult:
    """The result of a filter, which must decide on every document and name a rule for every drop."""
    result = stage.process(batch)
    if not isinstance(result, FilterResult):
        raise _broken(name, f"expected a FilterResult, found {type(result).__name__}")
    for field, array in (("keep", result.keep), ("rule", result.rule), ("value", result.value)):
        if not isinstance(array, np.ndarray) or array.shape != (batch.num_docs,):
            found = f"shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise _broken(name, f"{field}: expected a NumPy array of shape ({batch.num_docs},), found {found}")
    if result.keep.dtype != np.bool_:
        raise _broken(name, f"keep: expected bool, found {result.keep.dtype}")
    dropped = result.rule[~result.keep]
    num_rules = len(stage.rules())
    if len(dropped) and not (dropped.min() >= 0 and dropped.max() < num_rules):
        wrong = dropped[(dropped < 0) | (dropped >= num_rules)][0]
        raise _broken(name, f"rule: expected 0 to {num_rules - 1} for every dropped document, found {wrong}")
    if result.limit is not None and result.limit.shape != (batch.num_docs,):
        raise _broken(name, f"limit: expected shape ({batch.num_docs},), found {result.limit.shape}")
    if stage.mode == "tag" and len(result.measured) != num_rules:
        raise _broken(name, f"measured: expected an array for each of {num_rules} rules, found {len(result.measured)}")
    return replace(result, columns=_checked_columns(name, result.columns, stage.counts, batch))


def checked_map(name: str, stage: Map, batch: DocumentBatch) -> dict[str, pa.Array]:
    """The columns that a map returned: Arrow arrays of the batch's length, texts as large_string."""
    columns = stage.process(batch)
    if not isinstance(columns, dict):
        raise _broken(name, f"expected a dict of Arrow arrays by column name, found {type(columns).__name__}")
    return _checked_columns(name, columns, stage.counts, batch)


def _checked_columns(
    name: str, columns: Mapping[str, pa.Array], counts: tuple[str, ...], batch: DocumentBatch
) -> dict[str, pa.Array]:
    for column, array in columns.items():
        if column in _OWN:
            raise _broken(name, f"the column '{column}' belongs to the engine. Return another name")
        if not isinstance(array, pa.Array):
            raise _broken(name, f"column '{column}': expected an Arrow array, found {type(array).__name__}")
        if len(array) != batch.num_docs:
            raise _broken(name, f"column '{column}': expected {batch.num_docs} entries, one per document, found {len(array)}")
        if pa.types.is_null(array.type):
            raise _broken(name, f"column '{column}' has only nulls and no type. Give it one: pa.nulls(n, pa.string())")
    missing = [counted for counted in counts if counted not in columns]
    if missing:
        raise _broken(name, f"the count '{missing[0]}' is declared, but the stage returned no such column")
    return {**columns, "text": _texts(name, columns["text"])} if "text" in columns else dict(columns)


def _texts(name: str, texts: pa.Array) -> pa.Array:
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise _broken(name, f"column 'text': expected strings, found {texts.type}")
    if texts.null_count:
        raise _broken(
            name, "column 'text' holds nulls. Return an empty string for an empty text, and drop documents in a filter"
        )
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _broken(name, f"column 'text' is not valid UTF-8: {error}") from error
    return texts.cast(pa.large_string())


def _broken(name: str, what: str) -> DatapipeError:
    return DatapipeError(f"stage {name} breaks its contract: {what}. See `datapipe/stage/base.py` for what it must return.")
