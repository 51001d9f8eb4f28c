from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.config import units


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [
        ("256MiB", 256 * 1024**2),
        ("1GB", 10**9),
        ("1 gb", 10**9),
        ("64KiB", 65536),
        ("10kB", 10_000),
        ("2TiB", 2 * 1024**4),
        ("1.5GiB", 3 * 1024**3 // 2),
        ("0.3GiB", 322_122_547),
        ("512B", 512),
        ("512", 512),
        (1_000, 1_000),
        (1e6, 1_000_000),
    ],
)
def test_size_is_whole_bytes(written: object, num_bytes: int):
    assert units.parse_size(written) == num_bytes


@pytest.mark.parametrize(
    "written", ["", "MiB", "256M", "256 megabytes", "-1MB", "0", 0, 0.5, True, None, [1], float("nan"), "1e999B"]
)
def test_size_of_anything_else_is_refused(written: object):
    with pytest.raises(ValueError) as caught:
        units.parse_size(written)
    assert str(caught.value) == "expected a size above 0 such as 256MiB, 1GB or 1048576"


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("100B", 10**11),
        ("2.5M", 2_500_000),
        ("7k", 7_000),
        ("1.2T", 12 * 10**11),
        ("1e9", 10**9),
        (1e9, 10**9),
        ("1_000", 1_000),
        (123, 123),
        ("0.1B", 10**8),
    ],
)
def test_count_is_exact(written: object, count: int):
    assert units.parse_count(written) == count


@pytest.mark.parametrize(
    "written", ["1.5", "0.0001K", 1.5, "100 billion", "1GB", 0, -5, False, "", float("inf"), "1e400", "9e999999999"]
)
def test_count_of_anything_else_is_refused(written: object):
    with pytest.raises(ValueError) as caught:
        units.parse_count(written)
    assert str(caught.value) == "expected a whole number above 0 such as 100B, 2.5M or 1e9"


@pytest.mark.parametrize(
    ("written", "share"),
    [
        ("0.1%", "1/1000"),
        (0.001, "1/1000"),
        ("80%", "4/5"),
        ("12.5 %", "1/8"),
        (1, "1"),
        (0, "0"),
        ("0.3", "3/10"),
        ("100%", "1"),
    ],
)
def test_share_is_exact(written: object, share: str):
    assert units.parse_share(written) == Fraction(share)


@pytest.mark.parametrize("written", [80, "101%", -0.1, "%", "a%", True, None, float("nan")])
def test_share_of_anything_else_is_refused(written: object):
    with pytest.raises(ValueError) as caught:
        units.parse_share(written)
    assert str(caught.value) == "expected a share from 0 to 1 such as 0.001, or a percentage such as 0.1%"


@pytest.mark.parametrize(
    ("written", "weight"),
    [(0.7, "7/10"), ("70%", "7/10"), ("1/3", "1/3"), (2, "2"), (0, "0"), (1e-7, "1/10000000"), ("150%", "3/2")],
)
def test_weight_is_exact(written: object, weight: str):
    assert units.parse_weight(written) == Fraction(weight)


@pytest.mark.parametrize("written", ["abc", -1, "1/0", True, None, float("inf"), float("nan"), [], "1//2"])
def test_weight_of_anything_else_is_refused(written: object):
    with pytest.raises(ValueError) as caught:
        units.parse_weight(written)
    assert str(caught.value) == "expected a number of at least 0 such as 0.7, 70% or 1/3"


@pytest.mark.parametrize(
    ("written", "weight"),
    [
        (0.1 + 0.2, "0.30000000000000004"),
        ("1/12345678910", "1/12345678910"),
        (1e10, "1e10"),
        (5e-324, "5e-324"),
        (np.float64(0.7), "7/10"),
        (np.float32(0.7), "7/10"),
        (np.int64(3), "3"),
    ],
)
def test_weight_of_any_digits_and_of_numpy_is_the_number_that_is_written(written: object, weight: str):
    assert units.parse_weight(written) == Fraction(weight)
    assert units.parse_weight(units.plain_number(Fraction(weight))) == Fraction(weight)


def test_weight_that_no_float_can_hold_is_refused():
    with pytest.raises(ValueError, match="at most 1e300"):
        units.parse_weight(10**301)


@given(st.fractions(min_value=0, max_value=10**6, max_denominator=10**9))
def test_plain_number_reads_back_as_the_same_weight(weight: Fraction):
    assert units.parse_weight(units.plain_number(weight)) == weight


def test_plain_number_is_the_shortest_form():
    assert [units.plain_number(Fraction(text)) for text in ("2", "7/10", "1/3")] == [2, 0.7, "1/3"]
