"""Types of mixture values with several spellings: "256MiB", "0.1%", "100B", one path or a list of paths.

Each type parses to a plain value (int, float, Fraction, tuple) and has a JSON Schema of its spellings. Numbers are exact:

    "256MiB", "1GB", 1048576      bytes     int         (a fraction of a byte is dropped)
    "100B", "2.5M", 1e9           counts    int         (100B: a hundred billion)
    "0.1%", 0.001                 shares    Fraction from 0 to 1
    0.7, "70%", "1/3"             weights   Fraction from 0
    "6h", "90s", 600              durations int         (seconds)

YAML parses 0.7 as a float. The shortest decimal form of the float is the number in the file, so 0.7 becomes exactly 7/10.
Each error is a ValueError whose text begins with "expected"; `problems.py` puts it after the value that was found.
"""

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from datapipe.config.problems import Problem, ProblemsError
from datapipe.weights import exact_number

_DECIMAL = 1000
_BINARY = 1024
_SIZE_UNITS = {"": 1, "b": 1} | {
    f"{letter}{ending}": base ** (power + 1)
    for power, letter in enumerate("kmgtp")
    for ending, base in (("b", _DECIMAL), ("ib", _BINARY))
}
_DURATION_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_QUANTITY = re.compile(r"([+-]?[0-9_]*\.?[0-9_]*(?:e[+-]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)

MAX_WEIGHT = 10**300  # the largest weight: a float can hold it
SIZE_EXPECTED = "expected a size above 0 such as 256MiB, 1GB or 1048576"
DURATION_EXPECTED = "expected a duration above 0 such as 90s, 30min, 6h or 2d"
COUNT_EXPECTED = "expected a whole number above 0 such as 100B, 2.5M or 1e9"
SHARE_EXPECTED = "expected a share from 0 to 1 such as 0.001, or a percentage such as 0.1%"
WEIGHT_EXPECTED = "expected a number of at least 0 such as 0.7, 70% or 1/3"

_MOST_BITS = 64


def parse_size(value: Any) -> int:
    """Whole bytes. KB, MB, GB, TB and PB are powers of 1000, KiB to PiB powers of 1024; case does not matter."""
    num_bytes = int(_quantity(value, _SIZE_UNITS, SIZE_EXPECTED))
    if num_bytes < 1:
        raise ValueError(SIZE_EXPECTED)
    return num_bytes


def parse_count(value: Any) -> int:
    """A whole number. K, M, B and T stand for 10^3, 10^6, 10^9 and 10^12; case does not matter."""
    return _whole(value, _COUNT_UNITS, COUNT_EXPECTED)


def parse_duration(value: Any) -> int:
    """Whole seconds. m and min are minutes."""
    return _whole(value, _DURATION_UNITS, DURATION_EXPECTED)


def parse_share(value: Any) -> Fraction:
    """A share from 0 to 1, exact."""
    share = _ratio(value, SHARE_EXPECTED)
    if not 0 <= share <= 1:
        raise ValueError(SHARE_EXPECTED)
    return share


def parse_weight(value: Any) -> Fraction:
    """A weight of at least 0, exact; `weights.integer_weights` rounds those of many digits."""
    weight = _ratio(value, WEIGHT_EXPECTED)
    if weight < 0:
        raise ValueError(WEIGHT_EXPECTED)
    if weight > MAX_WEIGHT:
        raise ValueError("expected a weight of at most 1e300")
    return weight


def plain_number(value: Fraction) -> int | float | str:
    """The spelling that `parse_share` and `parse_weight` parse back to `value`: 2, 0.7 or '1/3'."""
    if value.denominator == 1:
        return int(value)
    return float(value) if Fraction(repr(float(value))) == value else f"{value.numerator}/{value.denominator}"


def _whole(value: Any, units: dict[str, int], expected: str) -> int:
    number = _quantity(value, units, expected)
    if number < 1 or number.denominator != 1:
        raise ValueError(expected)
    return int(number)


def _quantity(value: Any, units: dict[str, int], expected: str) -> Fraction:
    if not isinstance(value, str):
        return _number(value, expected)
    match = _QUANTITY.fullmatch(value.strip())
    if match is None or match[2].lower() not in units:
        raise ValueError(expected)
    return _number(match[1], expected) * units[match[2].lower()]


def _ratio(value: Any, expected: str) -> Fraction:
    if isinstance(value, str) and value.strip().endswith("%"):
        return _number(value.strip()[:-1], expected) / 100
    return _number(value, expected)


def _number(value: Any, expected: str) -> Fraction:
    try:
        return exact_number(value)
    except ValueError as error:
        raise ValueError(expected) from error


_REFERENCE = r"\$\{.+\}"
"""A reference such as ${VAR}: the JSON Schema accepts it anywhere. Its value is checked when the mixture is loaded."""


class Record(BaseModel):
    """A frozen part of a mixture. It refuses unknown keys and does not convert text to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, serialize_by_alias=True)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if problems := [*self._large_numbers()] or list(self.problems()):
            raise ProblemsError(problems)
        return self

    def _large_numbers(self) -> Iterable[Problem]:
        for name, value in self:
            if isinstance(value, int) and (num_bits := value.bit_length()) > _MOST_BITS:
                yield (name,), f"found a number of {num_bits} bits, expected one of at most {_MOST_BITS}"

    def problems(self) -> Iterable[Problem]:
        """What is wrong with values that are right by themselves."""
        return ()


def _number_or_text(pattern: str, number: dict[str, Any], *examples: int | float | str) -> WithJsonSchema:
    text = {"type": "string", "pattern": f"{pattern}|{_REFERENCE}"}
    return WithJsonSchema({"anyOf": [number, text], "examples": list(examples)})


def _paths(value: Any) -> Any:
    paths = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else None
    if not paths or not all(isinstance(path, str) and path.strip() for path in paths):
        raise ValueError("expected a path, a glob or a list of them")
    return paths


def _not_empty_and_distinct(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if not lengths:
        raise ValueError("expected at least one length")
    if len(set(lengths)) < len(lengths):
        raise ValueError("expected each length once")
    return lengths


def as_tuple(value: Any) -> Any:
    """A list of YAML as a tuple, which strict models take; other values as they are."""
    return tuple(value) if isinstance(value, list) else value


_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_LENGTH = {"type": "integer", "minimum": 2, "maximum": 1 << 24}
_UNIT_INTERVAL = {"type": "number", "minimum": 0, "maximum": 1}

ByteSize = Annotated[
    int, BeforeValidator(parse_size), _number_or_text(r"^[0-9._]+ *([kKmMgGtTpP][iI]?)?[bB]?$", _POSITIVE, "256MiB")
]
Count = Annotated[int, BeforeValidator(parse_count), _number_or_text(r"^[0-9._eE+]+ *[kKmMbBtT]?$", _POSITIVE, "100B", "2.5M")]
Duration = Annotated[
    int, BeforeValidator(parse_duration), _number_or_text(r"^[0-9._]+ *(s|m|min|h|d)?$", _POSITIVE, "6h", "30min")
]
Share = Annotated[
    float, BeforeValidator(lambda value: float(parse_share(value))), _number_or_text("%$", _UNIT_INTERVAL, "0.1%", 0.001)
]
ExactShare = Annotated[
    Fraction,
    PlainValidator(parse_share),
    PlainSerializer(plain_number),
    _number_or_text("%$", _UNIT_INTERVAL, "80%", 0.8),
]
Weight = Annotated[
    Fraction,
    PlainValidator(parse_weight),
    PlainSerializer(plain_number),
    _number_or_text(r"^[0-9.]+ *%$|^[0-9]+/[0-9]+$", {"type": "number", "minimum": 0}, 0.7, "70%", "1/3"),
]
Paths = Annotated[
    tuple[str, ...],
    BeforeValidator(_paths),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
Globs = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: () if value in ([], ()) else _paths(value)),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Lengths = Annotated[
    tuple[Annotated[int, Field(ge=2, le=1 << 24)], ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list | tuple) else (value,)),
    AfterValidator(_not_empty_and_distinct),
    PlainSerializer(lambda lengths: lengths[0] if len(lengths) == 1 else list(lengths)),
    WithJsonSchema({"anyOf": [_LENGTH, {"type": "array", "items": _LENGTH, "minItems": 1, "uniqueItems": True}]}),
]
Texts = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
