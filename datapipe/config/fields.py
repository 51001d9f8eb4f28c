"""Types of mixture values that are written in more ways than one: "256MiB", "0.1%", "100B", one path or a list of them.

Each is the plain type past this point (int, float, Fraction, tuple), with a JSON Schema of what may be written.
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
"""Any text may come from the environment; what is filled in is checked when the mixture is read."""


class Record(BaseModel):
    """A frozen part of a mixture that takes no keys but its own and does not turn text into numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _number_or_text(pattern: str, number: dict[str, Any], *examples: int | float | str) -> WithJsonSchema:
    text = {"type": "string", "pattern": f"{pattern}|{_REFERENCE}"}
    return WithJsonSchema({"anyOf": [number, text], "examples": list(examples)})


def _share(value: Any) -> float:
    return float(units.parse_share(value))


def _paths(value: Any) -> Any:
    """One path is a list of one. Empty paths and empty lists are refused here, with words for a path."""
    paths = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else None
    if not paths or not all(isinstance(path, str) and path.strip() for path in paths):
        raise ValueError("expected a path, a glob or a list of them")
    return paths


def _globs(value: Any) -> Any:
    """Paths of which there may be none."""
    return () if isinstance(value, list | tuple) and not value else _paths(value)


def _lengths(value: Any) -> Any:
    """One length is a list of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _some_each_once(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if not lengths:
        raise ValueError("expected at least one length")
    if len(set(lengths)) < len(lengths):
        raise ValueError("expected each length once")
    return lengths


def _one_or_list(lengths: tuple[int, ...]) -> int | list[int]:
    return lengths[0] if len(lengths) == 1 else list(lengths)


def _texts(value: Any) -> Any:
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
Share = Annotated[float, BeforeValidator(_share), _number_or_text("%$", _UNIT_INTERVAL, "0.1%", 0.001)]
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
    BeforeValidator(_globs),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Lengths = Annotated[
    tuple[Annotated[int, Field(ge=2, le=1 << 24)], ...],
    BeforeValidator(_lengths),
    AfterValidator(_some_each_once),
    PlainSerializer(_one_or_list),
    WithJsonSchema({"anyOf": [_LENGTH, {"type": "array", "items": _LENGTH, "minItems": 1, "uniqueItems": True}]}),
]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
