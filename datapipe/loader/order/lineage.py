"""The history of a run: batch sizes, mixtures and skips, each from a step on.

Snapshot, seed and lineage determine every step of the run, past and future. `saved_lineage.py` has its JSON.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import xxhash

from datapipe import columns
from datapipe.columns import compute
from datapipe.dataclass import dataclass, field, replace
from datapipe.loader.order.grown_order import Generations
from datapipe.loader.order.layout import Layout
from datapipe.loader.order.recipe import Recipe
from datapipe.loader.order.steps import BatchEra, merged
from datapipe.shards.manifest import Snapshot


@dataclass(frozen=True, kw_only=True)
class MixtureEra:
    """From `step` on, which begins at `sample`, `recipe` decides the source of each sample."""

    step: int
    sample: int
    recipe: Recipe
    # by source, samples drawn before this era, also of sources that left the mixture; 0 where absent
    num_drawn: Mapping[str, int]
    data: Mapping[str, str]  # by source, a digest of its rows, as `short_digest` writes it
    sizes: Mapping[str, int]  # by source, samples of one epoch
    generations: Mapping[str, Generations]
    snapshot: str

    def generations_of(self, name: str) -> Generations:
        return self.generations.get(name, Generations())


@dataclass(frozen=True, kw_only=True)
class Skips:
    """What a run leaves out."""

    steps: tuple[tuple[int, int], ...] = ()
    # key in hex -> the first step at which its tokens are padding
    documents: Mapping[str, int] = field(default_factory=dict)
    # path -> the first step at which its rows are replaced by other rows of the source
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
    """The eras of batch size and of mixture, the skips, and the removed documents of one run; see the head of this file."""

    batches: tuple[BatchEra, ...]
    mixtures: tuple[MixtureEra, ...]
    skips: Skips = field(default_factory=Skips)
    # (step, digest): from `step` on, documents in the list of this digest are padding (`shards/removed.py`)
    removals: tuple[tuple[int, str], ...] = ()

    @property
    def global_batch_size(self) -> int:
        return self.batches[-1].size

    def mixture_at(self, sample: int) -> MixtureEra:
        """The era that holds `sample`. It need not be the last one: a run may be resumed from an earlier step."""
        return self.mixtures[bisect_right(self.mixtures, sample, key=lambda era: era.sample) - 1]

    def with_batch_size(self, size: int, step: int, sample: int) -> Lineage:
        """This lineage with batches of `size` rows from `step`, whose first sample is `sample`; later sizes are dropped."""
        kept = tuple(era for era in self.batches if era.step < step)
        if not kept or kept[-1].size != size or sample < kept[-1].sample + (step - kept[-1].step) * size:
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

    def with_removed(self, digest: str, step: int) -> Lineage:
        """This lineage with the documents of a list as padding from `step` on."""
        kept = tuple(removal for removal in self.removals if removal[0] < step)
        last = kept[-1][1] if kept else ""
        return replace(self, removals=kept if digest == last else (*kept, (step, digest)))


def digest_sources(snapshot: Snapshot, layout: Layout) -> dict[str, tuple[str, ...]]:
    """By source, digests of its rows in this split: of its first generation, of the first two, and so on. They cover its shards
    in order, their sizes and checksums, and how the source is drawn; of a cell, also its rows in the shards."""
    shards, runs = layout.shards, layout.runs
    sequences = shards.column("sequences").cast(pa.string())
    of_shard = compute.binary_join_element_wise("\n", shards.numbered_paths, " ", sequences, " ", shards.column("checksum"), "")
    line = of_shard.take(pa.array(runs.shards))
    if layout.is_cell.any():
        rows = (runs.starts - layout.shard_starts[runs.shards], runs.rows, layout.times)
        of_run = compute.binary_join_element_wise(line, *(pa.array(column).cast(pa.string()) for column in rows), " ")
        is_cut = np.repeat(layout.is_cell, np.diff(layout.source_runs))
        line = compute.if_else(pa.array(is_cut), of_run, line)
    offsets, lines = columns.text_buffers(columns.as_large_string(line))
    borders, content = offsets.tolist(), lines.data
    digests: dict[str, tuple[str, ...]] = {}
    for number, name in enumerate(layout.sources):
        strata, of_source = None if layout.is_cell[number] else snapshot.sources[name].strata, list[str]()
        digest = xxhash.xxh3_128(b"" if strata is None else strata.model_dump_json().encode())
        for part in layout.generations_of(number):
            digest.update(content[borders[part.start] : borders[part.stop]])
            of_source.append(short_digest(digest.digest()))
        digests[name] = tuple(of_source)
    return digests


def short_digest(digest: bytes) -> str:
    """The first 72 bits of a digest in 12 characters: a state holds one for each source, and compares each with one other."""
    return base64.urlsafe_b64encode(digest[:9]).decode()
