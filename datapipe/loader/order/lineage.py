"""The history of a run: batch sizes and mixtures, each from a step on, and what is left out from which step on.

    batches    [[step, sample, rows], …]                         eras of batch size, the first from step 0
    mixtures   [{step, sample, recipe, places, data, …}, …]      eras of mixture, the first from step 0
    skip       steps [[start, stop], …], documents {key: step}, shards {path: step}: left out from that step on

Snapshot, seed and lineage determine every step of the run, past and future. The layout above is the JSON in a loader's state;
`places` there is `MixtureEra.num_drawn`.
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
    """From `step` on, which begins at `sample`, `recipe` decides the source of each sample.

    Attributes:
        num_drawn: by source, samples drawn before this era; 0 where absent. A source that left the mixture keeps its count.
        data: by source, a digest of its rows.
        sizes: by source, samples of one epoch.
        snapshot: fingerprint of the snapshot.
    """

    step: int
    sample: int
    recipe: Recipe
    num_drawn: Mapping[str, int]
    data: Mapping[str, str]
    sizes: Mapping[str, int]
    snapshot: str


@dataclass(frozen=True, kw_only=True)
class Skips:
    """The steps, documents and shards that a run leaves out.

    Attributes:
        steps: ranges (start, stop) of steps that are not handed out.
        documents: key in hex -> the first step at which its tokens are padding.
        shards: path -> the first step at which its rows are replaced by other rows of the source.
    """

    steps: tuple[tuple[int, int], ...] = ()
    documents: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)

    def joined(self, other: Skips, step: int) -> Skips:
        """These skips, and those of `other` from `step` on; steps before `step` do not change."""
        later = [(max(start, step), stop) for start, stop in other.steps if stop > step]
        return Skips(
            steps=merged([*self.steps, *later]),
            documents=_first_steps(self.documents, other.documents, step),
            shards=_first_steps(self.shards, other.shards, step),
        )


def _first_steps(known: Mapping[str, int], added: Mapping[str, int], step: int) -> dict[str, int]:
    """By name, the first step that leaves it out; at most `step` for the names in `added`."""
    return {**known, **{name: min(step, known.get(name, step)) for name in added}}


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The eras of batch size and of mixture, and the skips, of one run; see the head of this file."""

    batches: tuple[BatchEra, ...]
    mixtures: tuple[MixtureEra, ...]
    skips: Skips = field(default_factory=Skips)

    @property
    def global_batch_size(self) -> int:
        return self.batches[-1].size

    def mixture_at(self, sample: int) -> MixtureEra:
        """The era that holds `sample`. It need not be the last one: a run may be resumed from an earlier step."""
        return self.mixtures[bisect_right(self.mixtures, sample, key=lambda era: era.sample) - 1]

    def with_batch_size(self, size: int, step: int, sample: int) -> Lineage:
        """This lineage with batches of `size` rows from `step` on; later eras of batch size are dropped."""
        kept = tuple(era for era in self.batches if era.step < step)
        if not kept or kept[-1].size != size:
            kept = (*kept, BatchEra(step=step, sample=sample, size=size))
        # later mixtures keep their first sample, which lies in another step now
        later = [
            replace(era, step=step - (sample - era.sample) // size) if era.sample > sample else era for era in self.mixtures
        ]
        return replace(self, batches=kept, mixtures=tuple(later))

    def with_mixture(self, era: MixtureEra) -> Lineage:
        """This lineage with the mixture of `era` from `era.step` on; later mixtures are dropped."""
        kept = tuple(earlier for earlier in self.mixtures if earlier.sample < era.sample)
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
                    "places": dict(era.num_drawn),
                    "data": dict(era.data),
                    "sizes": dict(era.sizes),
                    "snapshot": era.snapshot,
                }
                for era in self.mixtures
            ],
            "skip": {
                "steps": [list(steps) for steps in self.skips.steps],
                "documents": dict(self.skips.documents),
                "shards": dict(self.skips.shards),
            },
        }
        return json.dumps(content, sort_keys=True)


def read_lineage(text: str) -> Lineage:
    """The lineage that `to_json` wrote. Raises ValueError, with the reason, for any other text."""
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
        return MixtureEra(
            step=self.step,
            sample=self.sample,
            recipe=read_recipe(self.recipe.model_dump()),
            num_drawn=self.places,
            data=self.data,
            sizes=self.sizes,
            snapshot=self.snapshot,
        )


class _SavedSkips(_Record):
    steps: tuple[tuple[_Step, _Step], ...]
    documents: dict[Annotated[str, Field(pattern="^[0-9a-f]{32}$")], _Step]
    shards: dict[str, _Step]


class _Saved(_Record):
    """The JSON of a lineage, checked: an edited or truncated state is refused instead of giving some other order."""

    batches: Annotated[tuple[tuple[_Step, _Count, _Positive], ...], Field(min_length=1)]
    mixtures: Annotated[tuple[_SavedMixture, ...], Field(min_length=1)]
    skip: _SavedSkips


def _check_order(batches: Sequence[BatchEra], mixtures: Sequence[_SavedMixture]) -> None:
    """Raises ValueError for eras that are not in order, or that count more drawn samples than came before them."""
    for name, eras in (("batches", batches), ("mixtures", mixtures)):
        if (eras[0].step, eras[0].sample) != (0, 0) or any(
            later.step < era.step or later.sample < era.sample for era, later in zip(eras, eras[1:])
        ):
            raise ValueError(f"its {name} do not rise from step 0, sample 0")
    if len({era.step for era in batches}) < len(batches) or len({era.recipe.sequence_length for era in mixtures}) > 1:
        raise ValueError("two batch sizes at one step, or two sequence lengths")
    for mixture in mixtures:
        if sum(mixture.places.values()) > mixture.sample:
            raise ValueError(f"places {mixture.places} add up to more than the {mixture.sample} samples before them")
        if any(until is None for until, _ in mixture.recipe.phases[:-1]) or mixture.recipe.phases[-1][0] is not None:
            raise ValueError("only the last phase must have no end, and it must have none")


def digest_sources(snapshot: Snapshot, layout: Layout) -> dict[str, str]:
    """By source, a digest of its rows in this split: its shards in order, their sizes and checksums, and its strata."""
    digests: dict[str, str] = {}
    for name, start, stop in zip(layout.sources, layout.source_shards, layout.source_shards[1:]):
        strata = snapshot.sources[name].strata
        lines = ["" if strata is None else strata.model_dump_json()]
        lines += [f"{shard.numbered_path} {shard.sequences} {shard.checksum}" for shard in layout.shards[start:stop]]
        digests[name] = xxhash.xxh3_128_hexdigest("\n".join(lines).encode())
    return digests
