"""The licences of documents, by the column that has them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from datapipe.errors import UserError
from datapipe.stage.licenses import license_codes


@pytest.mark.parametrize(
    "column", [pa.array([["mit", "isc"], None, ["mit"]]), pa.array(['["mit", "isc"]', None, '["mit"]'])], ids=["list", "JSON"]
)
def test_lists_of_licences_are_those_of_their_json(column: pa.Array) -> None:
    numbers, names = license_codes(column, "license")
    assert [names[number] for number in numbers] == ["MIT AND ISC", "unknown", "MIT"]


def test_column_of_anything_else_is_refused() -> None:
    for column in (pa.array([[1]]), pa.array([{"a": 1}])):
        with pytest.raises(UserError, match=r"the column 'license' holds .*, expected text"):
            license_codes(column, "license")
