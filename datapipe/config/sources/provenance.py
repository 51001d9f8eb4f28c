"""Where a source comes from: licence, homepage, dates, the model that wrote it, and its price.

    license: cc-by-4.0                      ─▶ "CC-BY-4.0"
    collected: 2024-05                      ─▶ ("2024-05", "2024-05")
    collected: {from: 2023-11, to: 2024}    ─▶ ("2023-11", "2024")

The snapshot records them, and the report and the card show them. No task depends on them, so an edit runs nothing again.
"""

import re
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from datapipe.config.fields import Record, as_tuple
from datapipe.config.problems import Problem
from datapipe.stage.licenses import allowed_name, spdx

_DATE = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")
_EXPECTED_DATE = "expected a date, month or year such as 2024-05-17, 2024-05 or 2024"
_EXPECTED_RANGE = f"{_EXPECTED_DATE}, or {{from: 2023-11, to: 2024-05}}"
_HOMEPAGE = re.compile(r"https?://[^\s/?#]+[^\s\x00-\x1f\x7f]*")


def _date(value: Any) -> str:
    """A date, month or year of the calendar. Raises ValueError."""
    text = str(value) if isinstance(value, str | date) or type(value) is int else ""
    if not _DATE.fullmatch(text):
        raise ValueError(_EXPECTED_DATE)
    try:
        date.fromisoformat(f"{text}-01-01"[:10] if len(text) == 4 else f"{text}-01"[:10])
    except ValueError:
        raise ValueError(f"{_EXPECTED_DATE}; '{text}' is not in the calendar") from None
    return text


def _collected(value: Any) -> tuple[str, str]:
    """The first and the last date. Raises ValueError."""
    if isinstance(value, tuple) and len(value) == 2:
        return value
    if not isinstance(value, dict):
        try:
            only = _date(value)
        except ValueError as error:
            raise ValueError(str(error).replace(_EXPECTED_DATE, _EXPECTED_RANGE)) from None
        return only, only
    if value.keys() != {"from", "to"}:
        raise ValueError(f"expected the keys from and to: {_EXPECTED_RANGE.removeprefix('expected ')}")
    first, last = _date(value["from"]), _date(value["to"])
    shared = min(len(first), len(last))
    if last[:shared] < first[:shared]:
        raise ValueError(f"expected a range that ends after it begins; it begins {first} and ends {last}")
    return first, last


def _collected_data(value: tuple[str, str]) -> str | dict[str, str]:
    first, last = value
    return first if first == last else {"from": first, "to": last}


def _homepage(value: str) -> str:
    if not _HOMEPAGE.fullmatch(value):
        raise ValueError("expected a URL that begins with https:// or http://")
    return value


License = Annotated[str, AfterValidator(spdx)]
AllowedLicenses = Annotated[
    tuple[Annotated[str, AfterValidator(allowed_name)], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else as_tuple(value)),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Homepage = Annotated[str, AfterValidator(_homepage)]
_DAY = {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 1000, "maximum": 9999}]}
_RANGE = {"type": "object", "properties": {"from": _DAY, "to": _DAY}, "required": ["from", "to"], "additionalProperties": False}
Collected = Annotated[
    tuple[str, str],
    BeforeValidator(_collected),
    PlainSerializer(_collected_data),
    WithJsonSchema({"anyOf": [*_DAY["anyOf"], _RANGE]}),
]
"""The first and the last date; the same twice for a single one."""


class SyntheticSpec(Record):
    """The model that wrote a corpus, and what it was asked."""

    model: str = Field(min_length=1, description="Name of the model: a name on the hub, or of an API with its version.")
    prompt: str | None = Field(default=None, min_length=1, description="The prompt, or a URL or file name of it.")


class CostSpec(Record):
    """What the text of a source cost, in US dollars. One of the two is given."""

    usd: float | None = Field(default=None, ge=0, description="In all.")
    usd_per_million_tokens: float | None = Field(
        default=None, ge=0, description="For each million tokens that are read; of dropped documents by their bytes."
    )

    def problems(self) -> Iterator[Problem]:
        if (self.usd is None) == (self.usd_per_million_tokens is None):
            yield (), "expected one of the keys usd and usd_per_million_tokens"
