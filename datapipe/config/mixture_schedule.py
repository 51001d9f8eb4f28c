"""The schedule of the mixture: the `mixture:` section of a mixture file and the `strata:` of a source, as frozen models.

    phases, schedules ─▶ phases of constant weights      a linear schedule becomes a staircase of equal steps
    weighting         ─▶ weights from token counts       `steps/weighting.py`, after packing
    exhausted, window ─▶ the snapshot, unchanged

A linear schedule moves in a straight line from the shares of the previous phase to its own. Its staircase has n = 64 stairs,
which end on whole rows; stair i holds the shares at (2i + 1) / 2n of the way, so at both ends of a stair as much of each source
is drawn as by the line. Between them, where the share of a source changes from p to q in L tokens, the difference is at most
|q - p| L / 8n², 1/32,768 of the phase.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from datapipe.config.fields import Count, ExactShare, Record, Weight, as_tuple, plain_number
from datapipe.config.problems import Problem
from datapipe.dataclass import dataclass
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.weights import integer_weights

STAIRS = 64  # Equal steps that approximate a linear schedule
Weights = Mapping[str, Fraction]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightPhase:
    """Exact integer weights without a common divisor, until token `until_tokens` of the run (None: to the end)."""

    until_tokens: int | None
    weights: dict[str, int]


class PhaseSpec(Record):
    """The weights of one part of the training run."""

    until: ExactShare = Field(description="End of the phase, as a share of all tokens: 80%. The last phase ends at 100%.")
    weights: dict[str, Weight] = Field(
        description="Weight of each source in this phase. Sources that are left out have 0. Of a source with `split`, cells "
        "may be named, also by patterns: {crawl/en/*/19: 2, crawl: 1}. The last one that matches a cell has it, and the source "
        "the others."
    )
    schedule: Literal["step", "linear"] = Field(
        default="step", description="step: constant weights. linear: a straight line from the weights before to these."
    )


def _temperature(value: Fraction) -> Fraction:
    if value < 1:
        raise ValueError("expected a number of at least 1: 1 draws in proportion to the tokens, a higher one more evenly")
    return value


def _below_all(share: Fraction) -> Fraction:
    if not 0 < share < 1:
        raise ValueError("expected more than 0% and less than 100%")
    return share


class ReplaySpec(Record):
    """Earlier training data that is mixed in again, for continual pretraining."""

    from_: str = Field(
        alias="from", min_length=1, description="Output of the earlier run, a path or URL. Its rows are mixed in unchanged."
    )
    version: str | None = Field(
        default=None, min_length=1, description="Fingerprint of the snapshot, or its first digits. Default: the newest one."
    )
    share: Annotated[ExactShare, AfterValidator(_below_all)] = Field(
        description="Share of all training tokens, in every phase: 5%. The sources of the earlier run share it in the "
        "proportions of that run."
    )


class MixtureSpec(Record):
    """How many tokens training draws from each source, and when."""

    tokens: Count | None = Field(
        default=None, description="Tokens to train on: 100B. The loader stops there. Default: the loader never stops."
    )
    phases: Annotated[tuple[PhaseSpec, ...], Field(strict=False)] = Field(
        default=(), description="Weights that change during training, in order. Default: the constant weights of the sources."
    )
    weighting: Literal["given", "temperature", "unimax"] = Field(
        default="given",
        description="given: the weights of the sources. temperature: in proportion to tokens^(1 / temperature). unimax: shares "
        "`tokens` evenly, but repeats no source more than its max_epochs. temperature and unimax count tokens after packing; "
        "the tokenizer's sample and `datapipe plan` use bytes of text or of input files instead.",
    )
    temperature: Annotated[Weight, AfterValidator(_temperature)] | None = Field(
        default=None, description="For weighting: temperature. 1: in proportion to the tokens. Higher: more evenly."
    )
    max_epochs: float | None = Field(
        default=None, gt=0, description="Maximum number of epochs of every source that has no `max_epochs`."
    )
    exhausted: Literal["stop", "refuse", "redistribute"] = Field(
        default="stop",
        description="What happens when a source reaches its max_epochs. stop: training ends. refuse: the run fails if a source "
        "reaches it within `tokens`. redistribute: the other sources replace it, in proportion to their weights.",
    )
    max_synthetic: ExactShare | None = Field(
        default=None, description="Maximum share of tokens from `synthetic` sources: 30%. Default: no limit."
    )
    replay: ReplaySpec | None = Field(
        default=None, description="Earlier training data to mix in again: {from: runs/2025, share: 5%}."
    )
    window: int = Field(
        default=8,
        ge=0,
        description="Number of shards of a source that the loader shuffles together; 0: all. The loader fetches each shard "
        "once per epoch and caches two windows, which take 4 GiB per source with 8 shards of 256 MiB. With 0, a row that is "
        "not cached costs a read of 4 MiB. Documents are spread over shards at random in any case: a window only keeps rows of "
        "one shard near each other.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.exhausted == "refuse" and self.tokens is None:
            yield ("tokens",), "missing. Expected: the tokens to train on, for exhausted: refuse"
        if self.phases and self.tokens is None:
            yield ("tokens",), "missing. Expected: the tokens to train on, for phases"
        ends = [Fraction(0), *(phase.until for phase in self.phases)]
        for index, (start, end) in enumerate(pairwise(ends)):
            if end <= start:
                yield ("phases", index, "until"), f"found {_percent(end)}, expected more than {_percent(start)}"
        if self.phases and self.phases[-1].until != 1:
            yield ("phases", len(self.phases) - 1, "until"), f"found {_percent(ends[-1])}, expected 100% for the last phase"
        if self.replay is not None and self.weighting != "given":
            yield ("replay",), f"cannot be combined with weighting: {self.weighting}, which sets all weights. Leave one out"
        if self.phases and self.weighting != "given":
            yield (
                ("phases",),
                f"cannot be combined with weighting: {self.weighting}, which sets the weights of the whole run. Leave one out",
            )
        if self.weighting == "temperature" and self.temperature is None:
            yield ("temperature",), "missing. Expected: a number of at least 1, such as 2.0, for weighting: temperature"
        if self.weighting != "temperature" and self.temperature is not None:
            yield ("temperature",), f"needs weighting: temperature, found {self.weighting}. Leave it out"
        if self.weighting == "unimax" and self.tokens is None:
            yield ("tokens",), "missing. Expected: the tokens to train on, for weighting: unimax"


class StrataSpec(Record):
    """Divides a source into strata by a number of each document. A stratum has its own shards."""

    by: str = Field(
        min_length=1,
        description="Column with the number: a field in `keep`, or a column that a stage adds, such as `size_column` of a "
        "dedup stage or `score_column` of filter.classifier.",
    )
    bounds: Annotated[tuple[float, ...], BeforeValidator(as_tuple)] = Field(
        min_length=1,
        max_length=99,
        description="Ascending borders between strata. [2, 10] makes three strata: below 2, from 2 to below 10, and from 10.",
    )
    repeat: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(as_tuple)] = Field(
        default=(),
        description="How often an epoch of the source repeats each stratum, lowest stratum first: [1, 2, 3]. Default: once. "
        "With the `size_column` of a dedup stage this is FineWeb's rehydration.",
    )
    order: Literal["shuffled", "ascending", "descending"] = Field(
        default="shuffled",
        description="Order of the strata in an epoch. shuffled: mixed. ascending, descending: one by one, as a curriculum.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.by in OWN_COLUMNS:
            yield ("by",), f"found '{self.by}', expected a column of numbers"
        if any(high <= low for low, high in pairwise(self.bounds)):
            yield ("bounds",), f"found {list(self.bounds)}, expected numbers in ascending order"
        if self.repeat and len(self.repeat) != self.count:
            text = f"found {len(self.repeat)} numbers, expected {self.count}: one for each stratum of {len(self.bounds)} bounds"
            yield ("repeat",), text

    @property
    def count(self) -> int:
        return len(self.bounds) + 1

    @property
    def repeats(self) -> tuple[int, ...]:
        """How often an epoch repeats each stratum."""
        return self.repeat or (1,) * self.count

    def entry(self) -> dict[str, Any]:
        """The strata as manifests have them."""
        return {"column": self.by, "bounds": self.bounds, "repeats": self.repeats, "order": self.order}


def weight_phases(spec: MixtureSpec, source_weights: Weights) -> tuple[WeightPhase, ...]:
    """The phases of a run, each with every source; `source_weights` hold without them."""
    if not spec.phases:
        return (WeightPhase(until_tokens=None, weights=integer_weights(source_weights)),)
    steps: list[tuple[Fraction, Weights]] = []
    start, before = Fraction(0), source_weights
    for phase in spec.phases:
        weights = _of_all(phase, source_weights)
        stairs = _staircase(before, weights) if phase.schedule == "linear" else [weights]
        length = phase.until - start
        steps += [(start + length * (number + 1) / len(stairs), stair) for number, stair in enumerate(stairs)]
        start, before = phase.until, weights
    return tuple(
        WeightPhase(
            until_tokens=None if number + 1 == len(steps) else int(until * (spec.tokens or 0)),
            weights=integer_weights(weights),
        )
        for number, (until, weights) in enumerate(steps)
    )


def _of_all(phase: PhaseSpec, source_weights: Weights) -> Weights:
    """The weights of a phase with those of all sources, which come first."""
    return {**dict.fromkeys(source_weights, Fraction(0)), **phase.weights}


def _staircase(start: Weights, end: Weights) -> list[Weights]:
    first, last = _shares(start), _shares(end)
    parts = [Fraction(2 * number + 1, 2 * STAIRS) for number in range(STAIRS)]
    return [{name: first[name] + (last[name] - first[name]) * part for name in end} for part in parts]


def _shares(weights: Weights) -> dict[str, Fraction]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def linear_schedule_problems(spec: MixtureSpec, source_weights: Weights) -> Iterator[Problem]:
    """The linear phases that no staircase can represent, with the reasons."""
    before = source_weights
    for index, phase in enumerate(spec.phases):
        weights, path = _of_all(phase, source_weights), ("mixture", "phases", index, "schedule")
        if phase.schedule == "linear" and weights.keys() != before.keys():
            text = "linear needs the cells and patterns of the phase before, in the same order. Expected the same ones, or step"
            yield path, text
        if phase.schedule == "linear" and any(weights.values()) and not any(before.values()):
            yield path, "linear needs weights to start from, but all weights before are 0. Expected one above 0, or step"
        before = weights


def _percent(share: Fraction) -> str:
    return f"{plain_number(share * 100)}%"
