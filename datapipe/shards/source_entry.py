"""A source as manifests record it: where it comes from, and how it is drawn."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat, model_validator

from datapipe.shards.shard_table import CellRun, Count, ShardEntry, ShortText, absent

_MOST_EPOCHS = 1 << 40


def _floor(text: str) -> int:
    whole, _, divisor = text.partition("/")
    return int(whole) // int(divisor or 1)


def _exact(text: str) -> str:
    if _floor(text) >= _MOST_EPOCHS:
        raise ValueError(f"expected a number of at least 0 and below 2^40, found {text}")
    return text


ExactText = Annotated[str, Field(max_length=100, pattern=r"^\d+(/[1-9]\d*)?$"), AfterValidator(_exact)]


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


class CellAxis(BaseModel, frozen=True, extra="forbid"):
    """A column by which a source is cut into cells."""

    column: ShortText
    # ascending borders between numbers, given or found as quantiles; None where each value has its own cells
    bounds: tuple[FiniteFloat, ...] | None = None


class Cells(BaseModel, frozen=True, extra="forbid"):
    """How a source is cut into cells by columns of its documents, and how they are drawn. A cell is a source to the loader,
    which calls it SOURCE/NAME: crawl/en/science/19. `ShardEntry.cells` says which rows a cell has."""

    axes: tuple[CellAxis, ...]
    names: tuple[ShortText, ...]  # (num_cells,) "en/science/19": a part for each axis
    weights: tuple[Count, ...]  # (num_cells,) how the cells divide what is drawn of the source
    # (num_cells,) exact numbers such as "5/2": how often an epoch of the cell has its rows
    repeats: tuple[ExactText, ...]
    # (num_cells,) None: no limit
    max_epochs: tuple[Annotated[float, Field(gt=0, lt=_MOST_EPOCHS)] | None, ...]

    @model_validator(mode="after")
    def _one_of_each(self) -> Cells:
        if len({len(self.names), len(self.weights), len(self.repeats), len(self.max_epochs)}) > 1:
            raise ValueError("expected a name, a weight, repetitions and a limit of epochs for each cell")
        if len(set(self.names)) < len(self.names):
            raise ValueError("expected each cell once")
        return self

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each cell, by its name."""
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def least_times(self) -> tuple[int, ...]:
        """(num_cells,) how often an epoch of each cell has all its rows."""
        return tuple(_floor(repeat) for repeat in self.repeats)

    def times(self, run: CellRun) -> int:
        """How often an epoch of its cell has the rows of a run."""
        return self.least_times[run.cell] + run.again


class SourceEntry(Provenance, frozen=True):
    """What the loader needs of a source, and where it comes from. `weight` is an exact integer share; see `Phase`."""

    weight: Count
    max_epochs: Annotated[float, Field(gt=0, lt=_MOST_EPOCHS)] | None = None
    strata: Strata | None = None
    cells: Cells | None = absent()

    @model_validator(mode="after")
    def _strata_or_cells(self) -> SourceEntry:
        if self.strata is not None and self.cells is not None:
            raise ValueError("expected strata or cells, not both")
        return self

    def weighted(self, weight: int, cells: tuple[int, ...] | None) -> SourceEntry:
        """This source with another weight, and other weights of its cells, if any are given."""
        changed = {} if self.cells is None or cells is None else {"cells": self.cells.model_copy(update={"weights": cells})}
        return self.model_copy(update={"weight": weight, **changed})

    def epoch_rows(self, shard: ShardEntry) -> int:
        """The rows that an epoch of a source without cells has of a training shard."""
        repeats = 1 if self.strata is None or shard.stratum is None else self.strata.repeats[shard.stratum]
        return repeats * shard.sequences
