"""Where a source comes from: licence, homepage, dates, the model that wrote it, its price; and what a mixture allows of these.

    license: cc-by-4.0                      ─▶ "CC-BY-4.0"
    collected: 2024-05                      ─▶ ("2024-05", "2024-05")
    collected: {from: 2023-11, to: 2024}    ─▶ ("2023-11", "2024")

    licenses, source without license_field ─▶ is its licence allowed?         else a problem, before anything runs
    licenses, source with license_field    ─▶ filter.license, as its first stage, or where its stages name it
    mixture.max_synthetic, weights         ─▶ is the share of synthetic sources allowed?      else a problem

The snapshot records where a source comes from, and the report and the card show it. No task depends
on it, so an edit runs nothing again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from datapipe.config.fields import Record, as_tuple
from datapipe.config.problems import Problem
from datapipe.config.stage_use import StageUse, with_stage
from datapipe.stage.licenses import UNKNOWN, allowed_name, is_allowed, named, spdx

if TYPE_CHECKING:
    from datapipe.config.mixture_schedule import MixtureSpec
    from datapipe.config.sources.source import Source

_DATE = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")
_EXPECTED_DATE = "expected a date, month or year such as 2024-05-17, 2024-05 or 2024"
_EXPECTED_RANGE = f"{_EXPECTED_DATE}, or {{from: 2023-11, to: 2024-05}}"
_HOMEPAGE = re.compile(r"https?://[^\s/?#]+[^\s\x00-\x1f\x7f]*")


def _date(value: Any) -> str:
    text = str(value) if isinstance(value, str | date) or type(value) is int else ""
    if not _DATE.fullmatch(text):
        raise ValueError(_EXPECTED_DATE)
    try:
        date.fromisoformat(f"{text}-01-01"[:10] if len(text) == 4 else f"{text}-01"[:10])
    except ValueError:
        raise ValueError(f"{_EXPECTED_DATE}; '{text}' is not in the calendar") from None
    return text


def _collected(value: Any) -> tuple[str, str]:
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
    PlainSerializer(lambda dates: dates[0] if dates[0] == dates[1] else dict(zip(("from", "to"), dates))),
    WithJsonSchema({"anyOf": [*_DAY["anyOf"], _RANGE]}),
]
"""The first and the last date; the same twice for a single one."""


class SyntheticSpec(Record):
    """The model that wrote a corpus, and its prompt."""

    model: str = Field(min_length=1, description="Name of the model: a name on the hub, or of an API with its version.")
    prompt: str | None = Field(default=None, min_length=1, description="The prompt, or its URL or file name.")


class CostSpec(Record):
    """What the text of a source cost, in US dollars. Give one of the two keys."""

    usd: float | None = Field(default=None, ge=0, description="US dollars for the whole corpus.")
    usd_per_million_tokens: float | None = Field(
        default=None,
        ge=0,
        description="US dollars per million tokens that were read. The tokens of dropped documents are estimated from "
        "their bytes.",
    )

    def problems(self) -> Iterator[Problem]:
        if (self.usd is None) == (self.usd_per_million_tokens is None):
            yield (), "expected one of the keys usd and usd_per_million_tokens"


FILTER = "filter.license"  # the stage that drops documents by their licence


def licensing_problems(
    allowed: Sequence[str], sources: Mapping[str, Source], stages: Mapping[str, Sequence[StageUse]]
) -> Iterator[Problem]:
    """The sources whose licence is not among the `allowed` ones; empty: all. `stages`: of each source, as they are listed."""
    for name, source in sources.items() if allowed else ():
        if source.license_field is not None:
            if any(use.alias == FILTER and use.name != FILTER for use in stages[name]):
                text = f"another stage has the name {FILTER}, which the filter of `licenses` has. Give it another one with `as`"
                yield ("sources", name), text
            own = [use for use in stages[name] if use.name == FILTER]
            if own and not any(_keeps_within(use, source.license_field, allowed) for use in own):
                text = (
                    f"{FILTER} has options that undo `licenses` ({', '.join(own[0].written())}). Leave them out: its field "
                    f"and the licences that it allows are those of the source and of `licenses`"
                )
                yield ("sources", name), text
        elif source.license is None and UNKNOWN not in allowed:
            text = (
                f"missing, and `licenses` allows {', '.join(allowed)} only. Write the license of the source; or, if its "
                f"documents have their own, `license_field`; or add {UNKNOWN} to `licenses`"
            )
            yield ("sources", name, "license"), text
        elif source.license is not None and not is_allowed(source.license, allowed):
            text = f"found '{source.license}', and `licenses` allows {', '.join(allowed)} only. Leave the source out, or add it"
            yield ("sources", name, "license"), text


def license_refusal(allowed: Sequence[str], license: str | None) -> str:
    """Why a mixture does not take rows of another output with this licence; empty if it does."""
    if not allowed or (is_allowed(license, allowed) if license is not None else UNKNOWN in allowed):
        return ""
    return (
        f"has the licence {license or UNKNOWN}, and `licenses` allows {', '.join(allowed)} only. Leave it out of `sources`, or "
        f"add its licence to `licenses`."
    )


def _keeps_within(use: StageUse, field: str, allowed: Sequence[str]) -> bool:
    """Whether a filter drops every document with a licence that a mixture does not allow."""
    options = use.options
    if use.when or options.get("mode", "drop") != "drop" or options.get("field", field) != field:
        return False
    listed = options.get("allowed", ())
    return not isinstance(listed, list | tuple) or all(is_allowed(named(str(name)), allowed) for name in listed)


def licensed_stages(allowed: Sequence[str], source: Source, stages: tuple[StageUse, ...]) -> tuple[StageUse, ...]:
    """The stages of a source, with the filter of its documents' licences where only some are
    `allowed`: first, or where they name it; its options may be left out there."""
    if not allowed or source.license_field is None:
        return stages
    is_kept = is_allowed(source.license or UNKNOWN, allowed)
    own = {"field": source.license_field, "allowed": list(allowed), "missing": "keep" if is_kept else "drop"}
    return with_stage(stages, FILTER, own)


def synthetic_problems(
    mixture: MixtureSpec, sources: Mapping[str, Source], shares: Mapping[str, Fraction]
) -> Iterator[Problem]:
    """The problem that the weights draw more of synthetic sources than a mixture allows; `shares`
    of all tokens, by source, are empty where the weights are not known yet."""
    written = [name for name, source in sources.items() if source.synthetic and shares.get(name)]
    share = sum((shares[name] for name in written), Fraction(0))
    if mixture.max_synthetic is not None and share > mixture.max_synthetic:
        text = (
            f"the weights draw {float(share):.2%} of the tokens from sources that models wrote ({', '.join(written)}), and "
            f"{float(mixture.max_synthetic):.2%} are allowed. Lower their weights, or raise max_synthetic"
        )
        yield ("mixture", "max_synthetic"), text
