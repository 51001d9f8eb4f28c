"""How a run came to be what it is: which batch sizes and mixtures held from which step on, and what is left out since when.

    batches    [[step, sample, rows], …]                               the first from step 0
    mixtures   [{step, sample, recipe, places, data, …}, …]      likewise; `places` is how far each source had come
    skip       steps [[start, stop], …], documents {key: step}, shards {path: step}: left out from that step on

It is all that is needed, beside the snapshot and the seed, to say what any step of the run held, or will hold.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from datapipe.loader.order.layout import Layout
from datapipe.loader.order.recipe import Recipe, read_recipe
from datapipe.loader.order.steps import MOST_STEPS, BatchEra, merged
from datapipe.shards.manifest import Snapshot


@dataclass(frozen=True, kw_only=True)
class MixtureEra:
    """From `step` on, which begins at `sample`, sources are drawn by `recipe`.

    Attributes:
        places: by source, the samples it had given before; none where absent. Sources that left keep their place.
        data: by source, a digest of the rows it was drawn from.
        sizes: by source, samples in one epoch of it.
        snapshot: fingerprint of the snapshot.
    """

    step: int
    sample: int
    recipe: Recipe
    places: Mapping[str, int]
    data: Mapping[str, str]
    sizes: Mapping[str, int]
    snapshot: str


@dataclass(frozen=True, kw_only=True)
class Skips:
    """What is left out.

    Attributes:
        steps: ranges (start, stop) that are not handed out.
        documents: key in hex -> the step from which on its tokens are padding.
        shards: path -> the step from which on its rows are replaced by others of their source.
    """

    steps: tuple[tuple[int, int], ...] = ()
    documents: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)

    def joined(self, other: Skips, step: int) -> Skips:
        """These, and from `step` on those of `other` too; what was handed out before stays handed out."""
        later = [(max(start, step), stop) for start, stop in other.steps if stop > step]
        return Skips(
            steps=merged([*self.steps, *later]),
            documents=_earlier(self.documents, other.documents, step),
            shards=_earlier(self.shards, other.shards, step),
        )


def _earlier(known: Mapping[str, int], added: Mapping[str, int], step: int) -> dict[str, int]:
    """Since when each is left out, those `added` from `step` on at the latest."""
    return {**known, **{name: min(step, known.get(name, step)) for name in added}}


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The history of a run and what is decided of its future; see the head of this file."""

    batches: tuple[BatchEra, ...]
    mixtures: tuple[MixtureEra, ...]
    skips: Skips = field(default_factory=Skips)

    @property
    def global_batch_size(self) -> int:
        return self.batches[-1].size

    def mixture_at(self, sample: int) -> MixtureEra:
        """The one that holds at `sample`, where the last one may not have begun: a run may be taken up where it has been."""
        return self.mixtures[bisect_right(self.mixtures, sample, key=lambda era: era.sample) - 1]

    def with_batch_size(self, size: int, step: int, sample: int) -> Lineage:
        """The same with batches of `size` rows from `step` on, whatever was to hold later."""
        kept = tuple(era for era in self.batches if era.step < step)
        if not kept or kept[-1].size != size:
            kept = (*kept, BatchEra(step=step, sample=sample, size=size))
        # mixtures that are still to come hold from their samples on, which are in other steps now
        later = [
            replace(era, step=step - (sample - era.sample) // size) if era.sample > sample else era for era in self.mixtures
        ]
        return replace(self, batches=kept, mixtures=tuple(later))

    def with_mixture(self, era: MixtureEra) -> Lineage:
        """The same with another mixture from `leg.step` on."""
        kept = tuple(one for one in self.mixtures if one.sample < era.sample)
        return replace(self, mixtures=(*kept, era))

    def with_skips(self, skips: Skips) -> Lineage:
        return replace(self, skips=skips)

    def to_json(self) -> str:
        content = {
            "batches": [[era.step, era.sample, era.size] for era in self.batches],
            "mixtures": [
                {
                    "step": era.step,
                    "sample": era.sample,
                    "recipe": era.recipe.as_dict(),
                    "places": dict(era.places),
                    "data": dict(era.data),
                    "sizes": dict(era.sizes),
                    "snapshot": era.snapshot,
                }
                for era in self.mixtures
            ],
            "skip": {
                "steps": [list(one) for one in self.skips.steps],
                "documents": dict(self.skips.documents),
                "shards": dict(self.skips.shards),
            },
        }
        return json.dumps(content, sort_keys=True)


def read_lineage(text: str) -> Lineage:
    """The lineage that `to_json` wrote. Raises ValueError, with what is wrong, for anything else."""
    try:
        saved = _Saved.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'the top'}") from None
    batches = tuple(BatchEra(step=step, sample=sample, size=size) for step, sample, size in saved.batches)
    if any(start >= stop for start, stop in saved.skip.steps):
        raise ValueError(f"skipped steps {saved.skip.steps}")
    skips = Skips(steps=saved.skip.steps, documents=saved.skip.documents, shards=saved.skip.shards)
    _check_order(batches, saved.mixtures)
    return Lineage(batches=batches, mixtures=tuple(era.read() for era in saved.mixtures), skips=skips)


_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Step = Annotated[int, Field(ge=0, le=MOST_STEPS)]
_Positive = Annotated[int, Field(gt=0, lt=1 << 62)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class _SavedRecipe(_Record):
    sequence_length: _Positive
    phases: Annotated[tuple[tuple[_Count | None, dict[str, Annotated[int, Field(ge=0)]]], ...], Field(min_length=1)]
    max_epochs: dict[str, Annotated[float, Field(ge=0)]]
    exhausted: Literal["stop", "refuse", "redistribute"]
    total_tokens: _Count | None


class _SavedMixture(_Record):
    step: _Step
    sample: _Count
    recipe: _SavedRecipe
    places: dict[str, _Count]
    data: dict[str, str]
    sizes: dict[str, _Count]
    snapshot: str

    def read(self) -> MixtureEra:
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return MixtureEra(**{**fields, "recipe": read_recipe(self.recipe.model_dump())})


class _SavedSkips(_Record):
    steps: tuple[tuple[_Step, _Step], ...]
    documents: dict[Annotated[str, Field(pattern="^[0-9a-f]{32}$")], _Step]
    shards: dict[str, _Step]


class _Saved(_Record):
    """What the JSON of a lineage may hold: a state that was edited or torn must not become an order that nobody asked for."""

    batches: Annotated[tuple[tuple[_Step, _Count, _Positive], ...], Field(min_length=1)]
    mixtures: Annotated[tuple[_SavedMixture, ...], Field(min_length=1)]
    skip: _SavedSkips


def _check_order(batches: Sequence[BatchEra], mixtures: Sequence[_SavedMixture]) -> None:
    """Raises ValueError for legs that do not follow each other, or begin with more samples than there were."""
    for what, eras in (("batches", batches), ("mixtures", mixtures)):
        if (eras[0].step, eras[0].sample) != (0, 0) or any(
            later.step < era.step or later.sample < era.sample for era, later in zip(eras, eras[1:])
        ):
            raise ValueError(f"its {what} do not rise from step 0, sample 0")
    if len({era.step for era in batches}) < len(batches) or len({era.recipe.sequence_length for era in mixtures}) > 1:
        raise ValueError("two sizes of batches at one step, or two lengths of rows")
    for mixture in mixtures:
        if sum(mixture.places.values()) > mixture.sample:
            raise ValueError(f"places {mixture.places} are more than the {mixture.sample} samples before them")
        if any(until is None for until, _ in mixture.recipe.phases[:-1]) or mixture.recipe.phases[-1][0] is not None:
            raise ValueError("phases without an end are followed by others, or the last one ends")


def data_of(snapshot: Snapshot, layout: Layout) -> dict[str, str]:
    """By source, a digest of its rows in this split: its shards in order, with their sizes and checksums, and its strata."""
    found: dict[str, str] = {}
    for name, start, stop in zip(layout.sources, layout.source_shards, layout.source_shards[1:]):
        strata = snapshot.sources[name].strata
        lines = ["" if strata is None else strata.model_dump_json()]
        lines += [f"{shard.path} {shard.sequences} {shard.checksum}" for shard in layout.shards[start:stop]]
        found[name] = xxhash.xxh3_128_hexdigest("\n".join(lines).encode())
    return found
