"""The filter of licences over every kind of column that documents may have."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from datapipe.errors import UserError
from stages.filter.license import License
from tests.support.decisions import reasons
from tests.support.global_stages import batch_of

VALUES = ["mit", None, "", "cc-by-nc-4.0", "MIT OR GPL-3.0-only", '["mit", "GPL-3.0-only"]', "Public Domain", "unknown"]


def _reasons(values: pa.Array, **options: object) -> list[str | None]:
    stage = License.model_validate({"field": "terms", **options})
    return reasons(stage, batch_of([""] * len(values), terms=values))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_documents_are_kept_by_their_licence(kind: pa.DataType) -> None:
    no, none = "not_allowed", "unknown"
    values = pa.array(VALUES, pa.string()).cast(kind)
    assert _reasons(values, allowed=["MIT"]) == [None, none, none, no, None, no, no, none]
    allowed = ("Mit", "licenseref-public-domain")
    assert _reasons(values, allowed=allowed, missing="keep") == [None, None, None, no, None, no, None, None]
    assert _reasons(values, allowed=["unknown"]) == [no, None, None, no, no, no, no, None]


def test_a_column_or_licence_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="'terms'"):
        _reasons(pa.array([{"a": 1}]), allowed=["MIT"])
    with pytest.raises(ValidationError, match="'MIT'"):
        License(allowed=("MITT",))
