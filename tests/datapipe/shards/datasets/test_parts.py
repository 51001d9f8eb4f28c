"""The columns that files of one source have together."""

from __future__ import annotations

import pyarrow as pa
import pytest

from datapipe.errors import UserError
from datapipe.shards.datasets.parts import joined_schema


def test_schema_of_files_holds_the_values_of_additions_with_wider_types() -> None:
    first = pa.schema([("text", pa.large_string()), ("n", pa.int64()), ("m", pa.struct([("a", pa.int64())]))])
    second = pa.schema([("text", pa.large_string()), ("n", pa.float64()), ("m", pa.struct([("b", pa.bool_())]))])
    together = [("text", pa.large_string()), ("n", pa.float64()), ("m", pa.struct([("a", pa.int64()), ("b", pa.bool_())]))]
    assert joined_schema({"a": first, "b": second}) == pa.schema(together)


def test_column_whose_types_no_type_holds_is_refused_with_both_files() -> None:
    schemas = {"a.parquet": pa.schema([("zip", pa.int64())]), "b.parquet": pa.schema([("zip", pa.large_string())])}
    with pytest.raises(UserError, match=r"'zip' is int64 in a\.parquet and large_string in b\.parquet.*types: \{zip: string\}"):
        joined_schema(schemas)
