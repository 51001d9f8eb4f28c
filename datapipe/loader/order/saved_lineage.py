"""The lineage as JSON in a loader's state: the first mixture whole, each later one by what it changes.

    sources     [name, …]                            of all mixtures; columns follow this order
    batches     [[step, sample, rows], …]            eras of batch size, the first from step 0
    mixtures    [{step, sample, …}, …]               eras of mixture, the first from step 0
    skip        steps [[start, stop], …], documents {key: step}, shards {path: step}: left out from that step on
    removed     [[step, digest], …]                  documents taken down, as in `Lineage`; absent where there are none

A key that a mixture lacks is as in the mixture before it:

    snapshot, exhausted, total_tokens, group_rows    as in `MixtureEra` and `Recipe`; a first mixture without groups lacks it
    phases      [[until_tokens, weights], …]         weights relative to the phase before; 0: the source has none
    max_epochs, data, sizes                          null for a source that has none
    parts                                            {source: [count, origin, epochs]}: `Generations`, if there are several

A column (weights, max_epochs, data, sizes) is a list with one value for each source, or {source:
value} of those that change. The samples drawn before a mixture follow from the mixtures before it;
`places` holds the counts that differ, of sources that started over.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from datapipe.errors import SnapshotError
from datapipe.loader.order.grown_order import Generations
from datapipe.loader.order.lineage import Lineage, MixtureEra, Skips
from datapipe.loader.order.recipe import Recipe
from datapipe.loader.order.sample_order import num_drawn_at
from datapipe.loader.order.steps import MOST_STEPS, BatchEra
from datapipe.shards.manifest import Phase

_Value = TypeVar("_Value")

_BLANK = Recipe(sequence_length=1, phases=(Phase(until_tokens=None, weights={}),), max_epochs={})
_NOTHING = MixtureEra(step=0, sample=0, recipe=_BLANK, num_drawn={}, data={}, sizes={}, generations={}, snapshot="")
"""What stands before the first mixture."""

_RARE = 4
"""A column is written as {source: value} where fewer than one in so many sources change: a name is longer than a value."""


def lineage_json(lineage: Lineage) -> str:
    """The JSON of a lineage, from which `read_lineage` makes an equal one."""
    names = sorted({name for era in lineage.mixtures for name in _names(era)})
    content = {
        "sequence_length": lineage.mixtures[0].recipe.sequence_length,
        "sources": names,
        "batches": [[era.step, era.sample, era.size] for era in lineage.batches],
        "mixtures": [_era_changes(*eras, names) for eras in pairwise((_NOTHING, *lineage.mixtures))],
        "skip": {
            "steps": [list(steps) for steps in lineage.skips.steps],
            "documents": dict(sorted(lineage.skips.documents.items())),
            "shards": dict(sorted(lineage.skips.shards.items())),
        },
    }
    if lineage.removals:
        content["removed"] = [list(removal) for removal in lineage.removals]
    return json.dumps(content, separators=(",", ":"))


def _names(era: MixtureEra) -> set[str]:
    weighted = {name for phase in era.recipe.phases for name in phase.weights}
    return {*weighted, *era.recipe.max_epochs, *era.num_drawn, *era.data, *era.sizes}


def _era_changes(before: MixtureEra, era: MixtureEra, names: Sequence[str]) -> dict[str, Any]:
    """What an era changes of the era before it; of the first, all."""
    recipe, earlier, is_first = era.recipe, before.recipe, before is _NOTHING
    changes: dict[str, Any] = {"step": era.step, "sample": era.sample}
    if is_first or before.snapshot != era.snapshot:
        changes["snapshot"] = era.snapshot
    for name in ("exhausted", "total_tokens"):
        if is_first or getattr(earlier, name) != getattr(recipe, name):
            changes[name] = getattr(recipe, name)
    if recipe.group_rows != earlier.group_rows:
        changes["group_rows"] = recipe.group_rows
    if earlier.weights != recipe.weights:
        phases = recipe.weights
        bases = [earlier.weights[0][1], *(weights for _, weights in phases)]
        changes["phases"] = [[until, _column(base, weights, names, 0)] for base, (until, weights) in zip(bases, phases)]
    for name, base, column in (
        ("max_epochs", earlier.max_epochs, recipe.max_epochs),
        ("data", before.data, era.data),
        ("sizes", before.sizes, era.sizes),
    ):
        if is_first or base != column:
            changes[name] = _column(base, column, names, None)
    if era.generations != before.generations:
        changes["parts"] = {name: astuple(generations) for name, generations in sorted(era.generations.items())}
    expected = _continued(before, era.sample, era.data)
    places = {name: era.num_drawn.get(name, 0) for name in names if era.num_drawn.get(name, 0) != expected.get(name, 0)}
    return changes | ({"places": places} if places else {})


def _column(
    before: Mapping[str, _Value], after: Mapping[str, _Value], names: Sequence[str], absent: _Value | None
) -> list[_Value | None] | dict[str, _Value | None]:
    changed = {name: after.get(name, absent) for name in names if after.get(name, absent) != before.get(name, absent)}
    return changed if _RARE * len(changed) < len(names) else [after.get(name, absent) for name in names]


def _continued(before: MixtureEra, sample: int, data: Mapping[str, str]) -> dict[str, int]:
    """By source, the samples drawn before an era, where every source with the same rows continues; none is 0."""
    drawn = num_drawn_at(before, sample) if sample else {}
    return {name: count for name, count in drawn.items() if count and before.data.get(name) == data.get(name)}


def read_lineage(text: str) -> Lineage:
    """The lineage in the state of a loader. Raises ValueError, with the reason, for any other text."""
    try:
        saved = _Saved.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'the top'}") from None
    batches = tuple(BatchEra(step=step, sample=sample, size=size) for step, sample, size in saved.batches)
    if any(start >= stop for start, stop in saved.skip.steps):
        raise ValueError(f"skipped steps {saved.skip.steps}")
    skips = Skips(steps=saved.skip.steps, documents=saved.skip.documents, shards=saved.skip.shards)
    _check_order("batches", [(era.step, era.sample) for era in batches])
    _check_order("mixtures", [(era.step, era.sample) for era in saved.mixtures])
    if len(set(saved.sources)) < len(saved.sources):
        raise ValueError("a source is listed twice")
    eras = [_NOTHING]
    try:
        for era in saved.mixtures:
            eras.append(era.read(eras[-1], saved.sequence_length, saved.sources))
    except SnapshotError as error:  # of a mixture that cannot be drawn from
        raise ValueError(str(error)) from error
    _check_mixtures(eras[1:])
    if len({era.step for era in batches}) < len(batches):
        raise ValueError("two batch sizes at one step")
    steps = [step for step, _ in saved.removed]
    if steps != sorted(set(steps)):
        raise ValueError(f"documents taken down at steps {steps}")
    return Lineage(batches=batches, mixtures=tuple(eras[1:]), skips=skips, removals=saved.removed)


_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Step = Annotated[int, Field(ge=0, le=MOST_STEPS)]
_Positive = Annotated[int, Field(gt=0, lt=1 << 62)]
_Weight = Annotated[int, Field(ge=0)]
_Epochs = Annotated[float, Field(ge=0)]
_Digest = Annotated[str, Field(pattern="^[0-9A-Za-z_-]{12}$")]
_Removals = tuple[tuple[_Step, Annotated[str, Field(pattern="^([0-9a-f]{18})?$")]], ...]
_Exhausted = Literal["stop", "refuse", "redistribute"]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class _SavedSkips(_Record):
    steps: tuple[tuple[_Step, _Step], ...]
    documents: dict[Annotated[str, Field(pattern="^[0-9a-f]{32}$")], _Step]
    shards: dict[str, _Step]


_MAY_LACK = {"max_epochs", "places", "group_rows", "parts"}  # Keys that the first mixture may lack


class _SavedEra(_Record):
    """An era by what it changes; a field that is not set is as in the era before."""

    step: _Step
    sample: _Count
    snapshot: str = ""
    exhausted: _Exhausted = "stop"
    total_tokens: _Count | None = None
    group_rows: _Positive = 1
    phases: Annotated[tuple[tuple[_Count | None, tuple[_Weight, ...] | dict[str, _Weight]], ...], Field(min_length=1)] = ()
    max_epochs: tuple[_Epochs | None, ...] | dict[str, _Epochs | None] = {}
    data: tuple[_Digest | None, ...] | dict[str, _Digest | None] = {}
    sizes: tuple[_Count | None, ...] | dict[str, _Count | None] = {}
    places: dict[str, _Count] = {}
    parts: dict[str, tuple[_Positive, _Count, _Count]] = {}

    def read(self, before: MixtureEra, sequence_length: int, names: Sequence[str]) -> MixtureEra:
        """The era that follows `before`. Raises ValueError for columns that do not fit the sources."""
        lacking = _SavedEra.model_fields.keys() - _MAY_LACK - self.model_fields_set if before is _NOTHING else set()
        if lacking:
            raise ValueError(f"the first mixture lacks {', '.join(sorted(lacking))}")
        if strangers := set(self.parts) - set(names):
            raise ValueError(f"parts of '{min(strangers)}', which is not one of its sources")
        generations = {source: Generations(*numbers) for source, numbers in self.parts.items()}
        data = _applied(before.data, self.data, names, None)
        return MixtureEra(
            step=self.step,
            sample=self.sample,
            recipe=self._read_recipe(before.recipe, sequence_length, names),
            num_drawn=_applied(_continued(before, self.sample, data), self.places, names, 0),
            data=data,
            sizes=_applied(before.sizes, self.sizes, names, None),
            generations=generations if "parts" in self.model_fields_set else before.generations,
            snapshot=self.snapshot if "snapshot" in self.model_fields_set else before.snapshot,
        )

    def _read_recipe(self, before: Recipe, sequence_length: int, names: Sequence[str]) -> Recipe:
        phases: list[Phase] = []
        weights: Mapping[str, int] = before.phases[0].weights
        for until, column in self.phases:
            weights = _applied(weights, column, names, 0)
            phases.append(Phase(until_tokens=until, weights=weights))
        given = self.model_fields_set & {"exhausted", "total_tokens", "group_rows"}
        return replace(
            before,
            sequence_length=sequence_length,
            phases=tuple(phases) or before.phases,
            max_epochs=_applied(before.max_epochs, self.max_epochs, names, None),
            **{name: getattr(self, name) for name in given},
        )


def _applied(
    before: Mapping[str, _Value],
    column: Sequence[_Value | None] | Mapping[str, _Value | None],
    names: Sequence[str],
    absent: _Value | None,
) -> dict[str, _Value]:
    """`before` with the changes of a column; the inverse of `_column`."""
    if not isinstance(column, Mapping) and len(column) != len(names):
        raise ValueError(f"a column of {len(column)} values for {len(names)} sources")
    given = column if isinstance(column, Mapping) else dict(zip(names, column))
    if not set(given) <= set(names):
        raise ValueError(f"a value of '{min(set(given) - set(names))}', which is not one of its sources")
    return {name: value for name, value in {**before, **given}.items() if value is not None and value != absent}


class _Saved(_Record):
    """The JSON of a lineage, checked: an edited or truncated state is refused instead of giving some other order."""

    sequence_length: _Positive
    sources: tuple[Annotated[str, Field(min_length=1)], ...]
    batches: Annotated[tuple[tuple[_Step, _Count, _Positive], ...], Field(min_length=1)]
    mixtures: Annotated[tuple[_SavedEra, ...], Field(min_length=1)]
    skip: _SavedSkips
    removed: _Removals = ()


def _check_order(name: str, begins: Sequence[tuple[int, int]]) -> None:
    if begins[0] != (0, 0) or any(later[0] < earlier[0] or later[1] < earlier[1] for earlier, later in zip(begins, begins[1:])):
        raise ValueError(f"its {name} do not rise from step 0, sample 0")


def _check_mixtures(mixtures: Sequence[MixtureEra]) -> None:
    """Raises ValueError for mixtures that count more drawn samples than came before them, or whose phases have no end."""
    for era in mixtures:
        if sum(era.num_drawn.values()) > era.sample:
            raise ValueError(f"samples {era.num_drawn} of sources before sample {era.sample}")
        *ends, last = (phase.until_tokens for phase in era.recipe.phases)
        if last is not None or None in ends:
            raise ValueError("only the last phase must have no end, and it must have none")
