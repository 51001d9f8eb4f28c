"""Versions of libraries in fingerprints: equal ones count as one, and the content stays readable beside them."""

import re

import pytest

from datapipe.records import versions
from datapipe.records.versions import EqualVersions, content_of, differences, fingerprint_of, normal


@pytest.fixture
def equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "EQUAL", (EqualVersions("pyarrow", "26.0", "26.0.10", "a test"),))


@pytest.mark.usefixtures("equal")
@pytest.mark.parametrize(
    ("library", "version", "expected"),
    [
        ("pyarrow", "26.0.0", "26.0"),
        ("pyarrow", "26.0.9", "26.0"),
        ("pyarrow", "26.0.10", "26.0"),
        ("pyarrow", "26.0.11", "26.0.11"),
        ("pyarrow", "25.9", "25.9"),
        ("pyarrow", "26.0.1.dev3", "26.0.1.dev3"),
        ("pyarrow.parquet", "26.0.1", "26.0.1"),
        ("pyarrow.any", "26.0.1", "26.0.1"),
        ("numpy", "26.0.1", "26.0.1"),
        ("pyarrow", "none", "none"),
    ],
)
def test_normal_form_is_the_first_of_equal_versions(library: str, version: str, expected: str) -> None:
    assert normal(library, version) == expected


@pytest.mark.usefixtures("equal")
def test_fingerprint_is_of_content_and_of_the_normal_form_of_versions() -> None:
    known = fingerprint_of({"a": 1}, "numpy=2.4.6 pyarrow=26.0.1")
    assert re.fullmatch("[0-9a-f]{64}", known)
    assert fingerprint_of({"a": 1}, "numpy=2.4.6 pyarrow=26.0.2") == known
    other = fingerprint_of({"a": 1}, "numpy=2.4.5 pyarrow=26.0.1")
    assert other != known
    assert content_of(other) == content_of(known) != content_of(fingerprint_of({"a": 2}, "numpy=2.4.6 pyarrow=26.0.1"))


@pytest.mark.usefixtures("equal")
def test_differences_are_those_that_may_change_bytes() -> None:
    now = "numpy=2.4.6 pyarrow=26.0.1"
    assert differences("numpy=2.4.6 pyarrow=26.0.2", now) == {}
    assert differences("numpy=2.4.5 pyarrow=27.0.0", now) == {"numpy": ("2.4.5", "2.4.6"), "pyarrow": ("27.0.0", "26.0.1")}
    assert differences("pyarrow=26.0.1", now) == {"numpy": ("none", "2.4.6")}
    before = "numpy=2.4.6 pyarrow=26.0.1 pyarrow.any=26.0.0 pyarrow.parquet=26.0.0"
    assert differences(before, f"{now} pyarrow.any=26.0.1 pyarrow.parquet=26.0.1") == {"pyarrow": ("26.0.0", "26.0.1")}
    assert differences("", now) == differences(now, "") == {}


def test_rows_of_equal_versions_are_in_order_and_apart() -> None:
    for row in versions.EQUAL:
        assert normal(row.library, row.last) == row.first == normal(row.library, row.first)
        assert row.evidence
