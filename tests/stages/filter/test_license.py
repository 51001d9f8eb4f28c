"""The filter of licences over every kind of column that documents may have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from datapipe.columns import make_keys
from datapipe.errors import UserError
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.license import License

VALUES = ["mit", None, "", "cc-by-nc-4.0", "MIT OR GPL-3.0-only", '["mit", "GPL-3.0-only"]', "Public Domain", "unknown"]


def _reasons(values: pa.Array, **options: Any) -> list[str | None]:
    keys = make_keys(1, np.arange(len(values), dtype=np.uint64))
    texts = pa.array([""] * len(values), pa.large_string())
    schema = pa.schema([*BASE_FIELDS, pa.field("terms", values.type)])
    stage = License(field="terms", **options)
    found = stage.process(DocumentBatch(pa.RecordBatch.from_arrays([keys, texts, texts, values], schema=schema)))
    return [None if number < 0 else stage.rules()[number].name for number in found.rule.tolist()]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_documents_are_kept_by_their_licence(kind: pa.DataType) -> None:
    no, none = "not_allowed", "unknown"
    values = pa.array(VALUES, pa.string()).cast(kind)
    assert _reasons(values, allowed=["MIT"]) == [None, none, none, no, None, no, no, none]
    allowed = ("Mit", "licenseref-public-domain")
    assert _reasons(values, allowed=allowed, missing="keep") == [None, None, None, no, None, no, None, None]
    assert _reasons(values, allowed=["unknown"]) == [no, None, None, no, no, no, no, None]


def test_a_column_that_is_no_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"the column 'terms' holds struct<.*expected text"):
        _reasons(pa.array([{"a": 1}]), allowed=["MIT"])


def test_a_list_of_licences_holds_licences() -> None:
    with pytest.raises(ValidationError, match="Did you mean 'MIT'"):
        License(allowed=("MITT",))
