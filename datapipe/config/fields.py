"""Types of mixture values with several spellings: "256MiB", "0.1%", "100B", one path or a list of paths.

Each type parses to a plain value (int, float, Fraction, tuple) and has a JSON Schema of its spellings.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from datapipe.config import units

_REFERENCE = r"\$\{.+\}"
"""A reference such as ${VAR}: the JSON Schema accepts it anywhere. Its value is checked when the mixture is loaded."""


class Record(BaseModel):
    """A frozen part of a mixture. It refuses unknown keys and does not convert text to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, serialize_by_alias=True)


def _number_or_text(pattern: str, number: dict[str, Any], *examples: int | float | str) -> WithJsonSchema:
    text = {"type": "string", "pattern": f"{pattern}|{_REFERENCE}"}
    return WithJsonSchema({"anyOf": [number, text], "examples": list(examples)})


def _paths(value: Any) -> Any:
    """A single path as a list. Raises ValueError for empty paths and empty lists."""
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
    int, BeforeValidator(units.parse_size), _number_or_text(r"^[0-9._]+ *([kKmMgGtTpP][iI]?)?[bB]?$", _POSITIVE, "256MiB")
]
Count = Annotated[
    int, BeforeValidator(units.parse_count), _number_or_text(r"^[0-9._eE+]+ *[kKmMbBtT]?$", _POSITIVE, "100B", "2.5M")
]
Duration = Annotated[
    int, BeforeValidator(units.parse_duration), _number_or_text(r"^[0-9._]+ *(s|m|min|h|d)?$", _POSITIVE, "6h", "30min")
]
Share = Annotated[
    float, BeforeValidator(lambda value: float(units.parse_share(value))), _number_or_text("%$", _UNIT_INTERVAL, "0.1%", 0.001)
]
ExactShare = Annotated[
    Fraction,
    PlainValidator(units.parse_share),
    PlainSerializer(units.plain_number),
    _number_or_text("%$", _UNIT_INTERVAL, "80%", 0.8),
]
Weight = Annotated[
    Fraction,
    PlainValidator(units.parse_weight),
    PlainSerializer(units.plain_number),
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
