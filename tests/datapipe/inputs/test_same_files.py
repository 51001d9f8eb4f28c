"""Files elsewhere are the same by their URLs."""

from __future__ import annotations

import pytest

from datapipe.inputs.same_files import same_files
from datapipe.stage.reader import InputFile


def _file(url: str, num_bytes: int = 7, mtime_ns: int = 1) -> InputFile:
    return InputFile(url=url, path=url.rpartition("/")[2], num_bytes=num_bytes, stamp=str(mtime_ns), mtime_ns=mtime_ns)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("s3://bucket/a.jsonl", "s3://bucket/a.jsonl", True),
        ("s3://bucket/a.jsonl?region=x", "s3://bucket/a.jsonl", True),
        ("s3://bucket/a.jsonl", "s3://other/a.jsonl", False),
        ("https://host/get?id=1", "https://host/get?id=1", True),
        ("https://host/get?id=1", "https://host/get?id=2", False),
        ("/gone/a.jsonl", "/gone/a.jsonl", False),
    ],
)
def test_url_is_the_same_file_without_the_options_of_a_store(one: str, other: str, is_same: bool) -> None:
    first, second = _file(one), _file(other)
    assert same_files({"a": [first], "b": [second]}) == ([[("a", first), ("b", second)]] if is_same else [])
