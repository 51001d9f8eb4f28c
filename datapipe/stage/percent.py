"""Shares in the options of stages: 0.5 or 50%."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema


def _as_number(value: Any) -> Any:
    """A percentage as a share; any other value unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    number = value.strip().removesuffix("%")
    if number == value.strip() or not number.strip().replace(".", "", 1).isdecimal():
        raise ValueError("expected a share from 0 to 1 such as 0.5, or a percentage such as 50%")
    return float(Decimal(number) / 100)  # in floats 0.07 / 100 != 0.0007


Share = Annotated[
    float,
    Field(ge=0.0, le=1.0),
    BeforeValidator(_as_number),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": "%$"}]}),
]
"""A number from 0 to 1, or a percentage."""
