"""A mixture whose rows come in groups of one source: whole batches of one source, or whole parts of a rank.

    sample g  ->  group g // R and row g % R in it  ->  Mixture over groups  ->  source, ordinal of the group  ->  ordinal

A group of R rows is to `mixing.Mixture` what a row is to a mixture without groups, so the same proof holds: every source is
within three groups of its exact share after every prefix of the run, no source starves, and any group is found in constant
time. Groups are counted from the first sample of the era. An era that follows begins with a new group, wherever that is.

A cap counts rows. Where the mixture redistributes, a source gives as many whole groups as its cap allows; otherwise the run
ends at the row that would pass it, in a group or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from datapipe.loader.order.grown_order import Parts
from datapipe.loader.order.mixing import Mixture, caps_of, first_past
from datapipe.loader.order.recipe import Recipe
from datapipe.shards.manifest import Phase


class GroupedMixture:
    """A recipe with groups over `sources` from sample `start` on. Arguments, methods and `end` are those of `Mixture`."""

    def __init__(
        self,
        recipe: Recipe,
        sources: tuple[str, ...],
        sizes: Sequence[int],
        start: int = 0,
        num_drawn: Sequence[int] = (),
        parts: Mapping[int, Parts] = {},
    ) -> None:
        self.sources, self.start = sources, start
        self._rows = recipe.group_rows
        drawn = list(num_drawn) or [0] * len(sources)
        self._num_drawn = np.array(drawn, np.int64)
        caps = caps_of(recipe, sources, sizes, parts)
        redistributes = recipe.exhausted == "redistribute"
        # most: by capped source, the whole groups that its cap allows from here on
        most = {source: max(0, cap - drawn[source]) // self._rows for source, cap in caps.items()} if redistributes else {}
        of_groups = _recipe_of_groups(recipe, start, [sources[source] for source in most])
        self._groups = Mixture(of_groups, sources, [most.get(source, 0) for source in range(len(sources))])
        self.end = (
            self._sample_at(self._groups.end) if redistributes else first_past(self.sample_of, sources, recipe, caps, drawn)
        )

    def assign(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Source index and ordinal of each sample: (n,) int64 each."""
        groups, rows = np.divmod(samples - self.start, self._rows)
        sources, ordinals = self._groups.assign(groups)
        return sources, ordinals * self._rows + rows + self._num_drawn[sources]

    def counts(self, sample: int) -> list[int]:
        """Samples of each source before `sample`, which is not before `start`."""
        group, row = divmod(sample - self.start, self._rows)
        counts = (np.array(self._groups.counts(group), np.int64) * self._rows + self._num_drawn).tolist()
        if row:
            counts[int(self._groups.assign(np.array([group]))[0][0])] += row
        return counts

    def sample_of(self, source: int, ordinal: int) -> int | None:
        """Sample `ordinal` of a source; None if it lies before `start`, or if the source never gets that far."""
        group_ordinal, row = divmod(ordinal - int(self._num_drawn[source]), self._rows)
        group = None if group_ordinal < 0 else self._groups.sample_of(source, group_ordinal)
        return None if group is None else self.start + group * self._rows + row

    def is_drawn(self, source: int) -> bool:
        """Whether a source has weight in any segment that holds at least one group."""
        return self._groups.is_drawn(source)

    def _sample_at(self, group: int | None) -> int | None:
        return None if group is None else self.start + group * self._rows


def _recipe_of_groups(recipe: Recipe, start: int, capped: Sequence[str]) -> Recipe:
    """The recipe with groups as samples, from sample `start` on: positions in tokens count from there.

    Args:
        capped: sources with a cap, whose size is given as the groups that it allows.
    """
    first_token = start * recipe.sequence_length
    later = [phase for phase in recipe.phases if phase.until_tokens is None or phase.until_tokens > first_token]
    phases = [
        Phase(until_tokens=None if phase.until_tokens is None else phase.until_tokens - first_token, weights=phase.weights)
        for phase in later
    ]
    return replace(
        recipe,
        sequence_length=recipe.sequence_length * recipe.group_rows,
        phases=tuple(phases),
        max_epochs=dict.fromkeys(capped, 1.0),
        total_tokens=None if recipe.total_tokens is None else max(0, recipe.total_tokens - first_token),
        group_rows=1,
    )


AnyMixture = Mixture | GroupedMixture
