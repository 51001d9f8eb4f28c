from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.config import units

SIZES = {"256MiB": 256 << 20, "1 gb": 10**9, "64KiB": 65536, "10kB": 10_000, "2TiB": 2 << 40, "1.5GiB": 3 << 29}
SIZES |= {"0.3GiB": 322_122_547, "512B": 512, "512": 512, 1_000: 1_000, 1e6: 1_000_000}
COUNTS = {"100B": 10**11, "2.5M": 2_500_000, "7k": 7_000, "1.2T": 12 * 10**11, "1e9": 10**9, "1_000": 1_000, 123: 123}
DURATIONS = {"90": 90, "90s": 90, "30min": 1800, "1m": 60, "6h": 21_600, "2d": 172_800, "1.5h": 5400}
SHARES = {"0.1%": "1/1000", 0.001: "1/1000", "80%": "4/5", "12.5 %": "1/8", 1: "1", 0: "0", "0.3": "3/10"}
WEIGHTS = {0.7: "7/10", "70%": "7/10", "1/3": "1/3", 2: "2", 0: "0", 1e-7: "1/10000000", "150%": "3/2"}
RIGHT = [
    *((units.parse_size, *pair) for pair in SIZES.items()),
    *((units.parse_count, *pair) for pair in COUNTS.items()),
    *((units.parse_duration, *pair) for pair in DURATIONS.items()),
    *((units.parse_share, written, Fraction(share)) for written, share in SHARES.items()),
    *((units.parse_weight, written, Fraction(weight)) for written, weight in WEIGHTS.items()),
]
NOTHING: list[object] = ["", True, None, [1], float("nan"), float("inf")]
WRONG = {
    units.parse_size: ["MiB", "256M", "256 megabytes", "-1MB", "0", 0, 0.5, "1e999B"],
    units.parse_count: ["1.5", "0.0001K", 1.5, "100 billion", "1GB", 0, -5, "1e400", "9e999999999"],
    units.parse_duration: ["0", "1w", "-1h", "0.5s", "1.5"],
    units.parse_share: [80, "101%", -0.1, "%", "a%"],
    units.parse_weight: ["abc", -1, "1/0", "1//2", 10**301],
}


@pytest.mark.parametrize(("parse", "written", "expected"), RIGHT)
def test_spelling_is_read_exactly(parse: Callable[[object], object], written: object, expected: object):
    assert parse(written) == expected


@pytest.mark.parametrize(
    ("parse", "written"), [(parse, written) for parse, listed in WRONG.items() for written in (*listed, *NOTHING)]
)
def test_anything_else_is_refused(parse: Callable[[object], object], written: object):
    with pytest.raises(ValueError, match=r"^expected "):
        parse(written)


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


@given(st.fractions(min_value=0, max_value=10**6, max_denominator=10**9))
def test_plain_number_reads_back_as_the_same_weight(weight: Fraction):
    assert units.parse_weight(units.plain_number(weight)) == weight


def test_plain_number_is_the_shortest_form():
    assert [units.plain_number(Fraction(text)) for text in ("2", "7/10", "1/3")] == [2, 0.7, "1/3"]
