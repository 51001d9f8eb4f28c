"""What is drawn when: the `mixture:` section of a mixture file and the `strata:` of a source, as frozen models.

    phases, schedules ─▶ stretches of plain weights         a linear schedule becomes a staircase of equal steps
    weighting         ─▶ weights from how much there is     `plan/weighting.py`, once it is packed
    exhausted, window ─▶ the snapshot, as they are

A linear schedule moves in a straight line from the shares of the phase before to its own. Its staircase of n stairs holds, on
stair i, the shares of the line at (2i + 1) / 2n of the way. At both ends of a stair as much of each source has been drawn as
along the line; in between they differ most in the middle of a stair, by half the slope times the square of half a stair. So of
a phase of L tokens in which the share of a source goes from p to q, what is drawn of it is never further than |q - p| L / 8n²
tokens from the line: with 64 stairs, less than 1/32,768 of the phase. That the ends of stairs fall on whole rows moves this by
half a row at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from datapipe.config.fields import Count, ExactShare, Record, Weight
from datapipe.config.problems import ProblemsError
from datapipe.config.units import plain_number
from datapipe.config.yaml import KeyPath
from datapipe.own_columns import OWN_COLUMNS
from datapipe.weights import MAX_WEIGHT_SUM, integer_weights

STAIRS = 64
Weights = Mapping[str, Fraction]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightPhase:
    """Exact integer weights, in their smallest form, until token `until_tokens` of the run (None: to the end)."""

    until_tokens: int | None
    weights: dict[str, int]


class PhaseSpec(Record):
    """Weights for one part of the training run."""

    until: ExactShare = Field(description="Where the phase ends, as a part of all tokens: 80%. The last one ends at 100%.")
    weights: dict[str, Weight] = Field(description="Weight of each source in this phase; sources that are left out have 0.")
    schedule: Literal["step", "linear"] = Field(
        default="step",
        description="step: these weights throughout. linear: in a straight line from the weights of the phase before (of the "
        "sources, for the first phase) to these.",
    )
    stairs: int = Field(
        default=STAIRS,
        ge=2,
        le=1024,
        description="Equal steps that a linear schedule is made of. What is drawn of a source whose share changes by d is "
        "never further from the straight line than d / (8 stairs²) of the phase's tokens: with 64, 1/32,768 of them.",
    )

    @model_validator(mode="after")
    def _stairs_of_linear(self) -> PhaseSpec:
        if self.schedule == "step" and self.stairs != STAIRS:
            raise ProblemsError([(("stairs",), "goes with schedule: linear; a step has none")])
        return self


def _temperature(value: Fraction) -> Fraction:
    if value < 1:
        raise ValueError("expected a number of at least 1: 1 draws in proportion to the tokens, more evens the sources out")
    return value


class MixtureSpec(Record):
    """How much is drawn from the sources, and when."""

    tokens: Count | None = Field(
        default=None, description="Tokens to train on: 100B. The loader stops there; without it, it never does."
    )
    phases: Annotated[tuple[PhaseSpec, ...], Field(strict=False)] = Field(
        default=(), description="Weights that change on the way, in order; by default the sources' own throughout."
    )
    weighting: Literal["given", "temperature", "unimax"] = Field(
        default="given",
        description="given: the sources' weights. temperature: in proportion to tokens^(1 / temperature). unimax: `tokens` "
        "shared evenly, but none repeated more than its max_epochs. Both take the tokens that there are once they are packed; "
        "before, for the tokenizer's sample and `datapipe plan`, bytes of text or input files stand in for them.",
    )
    temperature: Annotated[Weight, AfterValidator(_temperature)] | None = Field(
        default=None, description="Of weighting: temperature. 1: as many as there are; the higher, the more evenly."
    )
    max_epochs: float | None = Field(
        default=None, gt=0, description="How often any source may be repeated at most, where it does not say so itself."
    )
    exhausted: Literal["stop", "refuse", "redistribute"] = Field(
        default="stop",
        description="Where a source would pass its max_epochs. stop: training ends there. refuse: the run fails, if that "
        "would happen within `tokens`. redistribute: the other sources take its place, in their proportions.",
    )
    window: int = Field(
        default=8,
        ge=0,
        description="Shards of a source that are mixed at a time; 0: all. 8 of 256 MiB hold 524,288 rows of 2,048 16-bit "
        "tokens, a billion tokens. Each shard is fetched once an epoch, so a row costs its own 4 KiB, and this window and the "
        "next take 4 GiB of cache a source; with 0, a row that is not cached costs its block of 4 MiB. Documents are spread "
        "over shards at random in any case: what a window takes away is that two of one shard may be far apart.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> MixtureSpec:
        problems = [*self._phase_problems(), *self._weighting_problems()]
        if self.exhausted == "refuse" and self.tokens is None:
            problems.append(
                (("tokens",), "missing. Expected: the tokens to train on, since exhausted: refuse reckons with them")
            )
        if problems:
            raise ProblemsError(problems)
        return self

    def _phase_problems(self) -> Iterator[tuple[KeyPath, str]]:
        if self.phases and self.tokens is None:
            yield ("tokens",), "missing. Expected: the tokens to train on, since phases are parts of them"
        ends = [Fraction(0), *(phase.until for phase in self.phases)]
        for index, (start, end) in enumerate(pairwise(ends)):
            if end <= start:
                yield ("phases", index, "until"), f"found {_percent(end)}, expected more than {_percent(start)}"
        if self.phases and self.phases[-1].until != 1:
            yield ("phases", len(self.phases) - 1, "until"), f"found {_percent(ends[-1])}, expected 100% for the last phase"

    def _weighting_problems(self) -> Iterator[tuple[KeyPath, str]]:
        if self.phases and self.weighting != "given":
            yield ("phases",), f"cannot be combined with weighting: {self.weighting}, which is for the whole run. Leave one out"
        if self.weighting == "temperature" and self.temperature is None:
            yield ("temperature",), "missing. Expected: a number of at least 1, such as 2.0, for weighting: temperature"
        if self.weighting != "temperature" and self.temperature is not None:
            yield ("temperature",), f"goes with weighting: temperature, not {self.weighting}"
        if self.weighting == "unimax" and self.tokens is None:
            yield ("tokens",), "missing. Expected: the tokens to train on, which weighting: unimax shares among the sources"


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class StrataSpec(Record):
    """A source in parts by a number that each document carries, each in shards of its own."""

    by: str = Field(min_length=1, description="Column of the number: kept from the input with `keep`, or added by a stage.")
    bounds: Annotated[tuple[float, ...], BeforeValidator(_tuple)] = Field(
        min_length=1,
        max_length=99,
        description="Where one stratum ends and the next begins, ascending: [2, 10] makes three, of numbers below 2, from 2 to "
        "below 10, and from 10 on.",
    )
    repeat: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_tuple)] = Field(
        default=(),
        description="How often the documents of each stratum come up in one epoch of the source, lowest first: [1, 2, 3]; by "
        "default once. By the `size_column` of a dedup stage, this is FineWeb's rehydration.",
    )
    order: Literal["shuffled", "ascending", "descending"] = Field(
        default="shuffled",
        description="Of the strata in an epoch. shuffled: all mixed. ascending, descending: one after the other, a curriculum.",
    )

    @model_validator(mode="after")
    def _fit(self) -> StrataSpec:
        problems: list[tuple[KeyPath, str]] = []
        if self.by in OWN_COLUMNS:
            problems.append((("by",), f"found '{self.by}', expected a column of numbers"))
        if any(high <= low for low, high in pairwise(self.bounds)):
            problems.append((("bounds",), f"found {list(self.bounds)}, expected numbers in ascending order"))
        if self.repeat and len(self.repeat) != self.count:
            found = f"found {len(self.repeat)} numbers, expected {self.count}"
            problems.append((("repeat",), f"{found}: one for each stratum that {len(self.bounds)} bounds make"))
        if problems:
            raise ProblemsError(problems)
        return self

    @property
    def count(self) -> int:
        return len(self.bounds) + 1

    @property
    def repeats(self) -> tuple[int, ...]:
        """How often each stratum comes up in an epoch."""
        return self.repeat or (1,) * self.count


def stretches(spec: MixtureSpec, own: Weights) -> tuple[WeightPhase, ...]:
    """The phases of a run, linear ones as stairs, with every source of `own` named in each; one where there are no phases."""
    if not spec.phases:
        return (WeightPhase(until_tokens=None, weights=integer_weights(own)),)
    found: list[tuple[Fraction, Weights]] = []
    start, before = Fraction(0), own
    for phase in spec.phases:
        weights = {name: phase.weights.get(name, Fraction(0)) for name in own}
        steps = _stairs(before, weights, phase.stairs) if phase.schedule == "linear" else [weights]
        length = phase.until - start
        found += [(start + length * (number + 1) / len(steps), step) for number, step in enumerate(steps)]
        start, before = phase.until, weights
    return tuple(
        WeightPhase(
            until_tokens=None if number + 1 == len(found) else int(until * (spec.tokens or 0)),
            weights=integer_weights(weights),
        )
        for number, (until, weights) in enumerate(found)
    )


def _stairs(start: Weights, end: Weights, count: int) -> list[Weights]:
    first, last = _shares(start), _shares(end)
    parts = [Fraction(2 * number + 1, 2 * count) for number in range(count)]
    return [{name: first[name] + (last[name] - first[name]) * part for name in end} for part in parts]


def _shares(weights: Weights) -> dict[str, Fraction]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def linear_problems(spec: MixtureSpec, own: Weights) -> Iterator[tuple[KeyPath, str]]:
    """What keeps linear phases from being made into stairs."""
    before = own
    for index, phase in enumerate(spec.phases):
        weights = {name: phase.weights.get(name, Fraction(0)) for name in own}
        path = ("phases", index, "schedule")
        if phase.schedule == "linear" and any(weights.values()):
            if not any(before.values()):
                yield path, "linear has no weights to begin with: those of all sources are 0. Expected one above 0, or step"
            elif (
                2 * phase.stairs * lcm(*(share.denominator for one in (before, weights) for share in _shares(one).values()))
                >= MAX_WEIGHT_SUM
            ):
                yield path, "linear between weights of so many digits cannot be counted exactly. Expected rounder weights"
        before = weights


def _percent(share: Fraction) -> str:
    return f"{plain_number(share * 100)}%"
