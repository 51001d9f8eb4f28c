"""A source as manifests record it: where it comes from, and how it is drawn."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, Field, FiniteFloat, model_validator

from datapipe.shards.shard_table import Count, ShardGroup, ShortText, absent

_MOST_EPOCHS = 1 << 40


class SyntheticEntry(BaseModel, frozen=True, extra="forbid"):
    """The model that wrote a source, and its prompt, or where the prompt is written."""

    model: str
    prompt: str | None = None


class Provenance(BaseModel, frozen=True, extra="forbid"):
    """Where a source comes from. Fields that older manifests do not have are left out where they have no value."""

    license: str | None = None  # an expression of SPDX; free text in older manifests
    synthetic: bool | SyntheticEntry = False  # whether a model wrote the source, or which one
    license_field: str | None = absent()  # the column with the licence of each document
    homepage: str | None = absent()
    collected: tuple[str, str] | None = absent()  # the first and the last date, month or year


class Strata(BaseModel, frozen=True, extra="forbid"):
    """How a source is cut into strata by a numeric column of its documents, and how the strata are drawn."""

    column: ShortText  # name of the column: a score, a cluster size
    bounds: tuple[FiniteFloat, ...]  # ascending; stratum i holds bounds[i - 1] <= number < bounds[i]
    # repetitions of each stratum in one epoch of the source
    repeats: tuple[Annotated[int, Field(ge=0, lt=_MOST_EPOCHS)], ...]
    # of the strata in an epoch: all mixed, lowest first, or highest first
    order: Literal["shuffled", "ascending", "descending"] = "shuffled"

    @model_validator(mode="after")
    def _one_repeat_each(self) -> Strata:
        if len(self.repeats) != len(self.bounds) + 1 or any(low > high for low, high in pairwise(self.bounds)):
            raise ValueError("expected ascending bounds, and one repeat more than bounds")
        return self


class SourceEntry(Provenance, frozen=True):
    """What the loader needs of a source, and where it comes from. `weight` is an exact integer share; see `Phase`."""

    weight: Count
    max_epochs: Annotated[float, Field(gt=0, lt=_MOST_EPOCHS)] | None = None
    strata: Strata | None = None

    def repeats_of(self, group: ShardGroup) -> int:
        """How often an epoch of the source has the rows of a shard."""
        return 1 if self.strata is None or group.stratum is None else self.strata.repeats[group.stratum]
