"""The source of each sample: exact quotas at every prefix, by arithmetic alone, in both directions.

    sample g  ->  group g // R  ->  segment  ->  down a tree of two-way splits  ->  (source, ordinal of the group)
                                                                                ->  ordinal: samples of that source before g

Rows come in groups of R = `group_rows` rows of one source, counted from the first sample of the
mixture: 1 unless the loader asks for more. To what follows, a group is a sample.

A run is a sequence of segments with constant weights (`segments.py`). Each finite segment gives every source a whole number of
samples, so that at each border every source is within one sample of its exact share of all samples so far. Within a segment
those counts are the leaves of a Huffman tree; in the last, endless segment the weights are. Of the first n samples that reach a
node whose children weigh a and b, the left child gets floor((n*a + floor((a+b)/2)) / (a+b)): within half a sample of its share.

The bound. A child inherits its parent's error, scaled by its share of the parent, and adds at most half a sample. Two levels
of a Huffman tree at least halve a weight: let v be a child of p, p a child of g, and u the sibling of p. When v was joined, v
was among the two lightest nodes, and u (or a part of u) existed and was no lighter; so g weighs at least v + u, at least
twice v. The errors on the way down add up to less than (1 + 1 + 1/2 + 1/2 + 1/4 + ...) / 2 = 2. A segment starts and ends
within one sample of the exact shares, and the line between two borders is no farther from them. So **every source is within
three samples of its exact share after every prefix of the run**, for any weights and any number of phases, and within two
in a run of one phase (measured: 1.0 over 1,000 tiny weights). Block-wise integer counts would round small weights away, and
random draws would deviate by the square root of n.

The ordinals of a source continue from segment to segment, so a change of weights repeats nothing. A
cap counts rows: where the mixture redistributes, a source gives as many whole groups as its cap
allows; otherwise the run ends at the row that would pass it.
"""

import heapq
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import gcd
from typing import NamedTuple

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.errors import SnapshotError
from datapipe.kernels.tokens import quota
from datapipe.loader.order.grown_order import Generations
from datapipe.loader.order.recipe import Recipe
from datapipe.loader.order.segments import Segment, border_counts, plan_segments
from datapipe.weights import MAX_WEIGHT_SUM

MOST_SAMPLES = (1 << 63) - 1  # the stop of a segment without end, for kernels
LAST_SAMPLE = 1 << 62  # a cap that no sample before it passes is never passed


class Node(NamedTuple):
    """A two-way split. A child is the number of a node, or ~leaf."""

    left_weight: int
    total: int
    left: int
    right: int


class SplitTree:
    """The leaves 0..n-1 of positive integer `weights`, drawn in exact proportion. Node 0 is the root."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.num_leaves = len(weights)
        self.nodes = _huffman(weights)

    @cached_property
    def table(self) -> np.ndarray:
        """(num_nodes, 4) int64: the attributes of each node."""
        return np.array(self.nodes, np.int64).reshape(-1, 4)

    @cached_property
    def _parents(self) -> dict[int, tuple[int, bool]]:
        """By child (node or ~leaf): the number of its parent, and whether it is the left child."""
        parents = {node.left: (number, True) for number, node in enumerate(self.nodes)}
        parents.update({node.right: (number, False) for number, node in enumerate(self.nodes)})
        return parents

    def counts(self, count: int) -> np.ndarray:
        """Samples of each leaf, of the first `count`: (num_leaves,) int64. In Python: a run that only counts needs no numba."""
        by_node, by_leaf = [int(count)] * len(self.nodes), [int(count)] * self.num_leaves
        for number, (left_weight, total, left, right) in enumerate(self.nodes):  # a parent comes before its children
            before = (by_node[number] * left_weight + total // 2) // total
            for child, samples in ((left, before), (right, by_node[number] - before)):
                if child < 0:
                    by_leaf[~child] = samples
                else:
                    by_node[child] = samples
        return np.array(by_leaf, np.int64)

    def nth(self, leaf: int, ordinal: int) -> int:
        """The number of sample `ordinal` of `leaf`."""
        child = ~leaf
        while child in self._parents:
            child, is_left = self._parents[child]
            node = self.nodes[child]
            half = node.total // 2
            if is_left:  # the least n with left_count(n + 1) > ordinal
                ordinal = -(((ordinal + 1) * node.total - half) // -node.left_weight) - 1
            else:
                ordinal = (ordinal * node.total + half) // (node.total - node.left_weight)
        return ordinal


def _huffman(weights: Sequence[int]) -> tuple[Node, ...]:
    """The nodes, root first. Equal weights join in the order of their leaves, then of their creation."""
    common = gcd(*weights)
    heap = [(weight // common, order, ~order) for order, weight in enumerate(weights)]
    heapq.heapify(heap)
    num_nodes = len(weights) - 1
    nodes: list[Node] = []
    while len(heap) > 1:
        small, _, left = heapq.heappop(heap)
        large, _, right = heapq.heappop(heap)
        nodes.append(Node(small, small + large, left, right))
        # the root is made last and becomes node 0
        heapq.heappush(heap, (small + large, len(weights) + len(nodes), num_nodes - len(nodes)))
    return tuple(reversed(nodes))


@dataclass(frozen=True, kw_only=True)
class SegmentQuotas:
    """The quota of each source in one segment. Groups count as samples, from the first one of the mixture."""

    start: int
    stop: int | None  # first sample of the next segment; None for the last
    # by source, above 0: samples that add up to the length of the segment; weights in an endless one
    weights: Mapping[int, int]
    num_drawn: Sequence[int]  # (num_sources,) samples of each source before `start`

    @cached_property
    def tree(self) -> SplitTree:
        return SplitTree(list(self.weights.values()))

    @cached_property
    def leaf_of(self) -> dict[int, int]:
        return {source: leaf for leaf, source in enumerate(self.weights)}

    @cached_property
    def leaves(self) -> np.ndarray:
        """(num_leaves, 2) int64: the source of each leaf, and its `num_drawn`."""
        return np.array([(source, self.num_drawn[source]) for source in self.weights], np.int64).reshape(-1, 2)

    def assign(self, samples: np.ndarray, sources: np.ndarray, ordinals: np.ndarray) -> int:
        """Sets source and ordinal of the samples of this segment, (n,) int64 each; returns the number of other samples."""
        stop = MOST_SAMPLES if self.stop is None else self.stop
        return quota.assign(samples, self.start, stop, self.tree.table, self.leaves, sources, ordinals)

    def counts_until(self, stop: int) -> np.ndarray:
        """Samples of each source before sample `stop`, which lies in this segment or right after it: (num_sources,) int64."""
        counts = np.array(self.num_drawn, np.int64)
        counts[self.leaves[:, 0]] += self.tree.counts(stop - self.start)
        return counts


class Mixture:
    """A recipe over `sources`, which are numbered by their index, from sample `start` on. `sizes`:
    (num_sources,) samples of one epoch of each, for the caps. `generations`: by name, of the
    sources that have several. `end`: the first sample that no source may give, past a cap or after
    all caps; None if there is none."""

    def __init__(
        self,
        recipe: Recipe,
        sources: tuple[str, ...],
        sizes: Sequence[int],
        start: int = 0,
        num_drawn: Sequence[int] = (),
        generations: Mapping[str, Generations] = {},
    ) -> None:
        _check_weights(recipe, sources)
        self.sources, self.start, self._rows = sources, start, recipe.group_rows
        self._num_drawn = np.array(num_drawn or [0] * len(sources), np.int64)
        caps, redistributes = caps_of(recipe, sources, sizes, generations), recipe.exhausted == "redistribute"
        # most: by capped source, the whole groups that its cap allows from here on
        most = {source: max(0, cap - int(self._num_drawn[source])) // self._rows for source, cap in caps.items()}
        self._segments, exhausted = plan_segments(recipe, sources, start, most if redistributes else {})
        self._quotas = _plan_quotas(self._segments, border_counts(self._segments, len(sources)))
        self._starts = [quotas.start for quotas in self._quotas]
        if redistributes:
            self.end = None if exhausted is None else start + exhausted * self._rows
        else:
            self.end = self._first_past(recipe, caps)

    def assign(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Source index and ordinal over the whole run of each sample, (n,) int64 each. No sample lies before `start`."""
        rows = np.asarray(samples, np.int64) - self.start
        groups = rows if self._rows == 1 else rows // self._rows
        sources, ordinals = np.empty(len(groups), np.int64), np.empty(len(groups), np.int64)
        if len(groups) and self._quotas_at(int(groups[0])).assign(groups, sources, ordinals):
            assert int(groups.min()) >= 0
            for number in np.unique(np.searchsorted(self._starts, groups, side="right") - 1).tolist():
                self._quotas[number].assign(groups, sources, ordinals)
        if self._rows > 1:
            ordinals = ordinals * self._rows + rows % self._rows
        return sources, ordinals + self._num_drawn[sources]

    def counts(self, sample: int) -> list[int]:
        """Samples of each source before `sample`, which is not before `start`."""
        return self._counts(sample).tolist()

    def _counts(self, sample: int) -> np.ndarray:
        group, row = divmod(sample - self.start, self._rows)
        counts = self._num_drawn + self._quotas_at(group).counts_until(group) * self._rows
        if row:
            counts[int(self.assign(np.array([sample]))[0][0])] += row
        return counts

    def sample_of(self, source: int, ordinal: int) -> int | None:
        """Sample `ordinal` of a source; None if it lies before `start`, or if the source never gets that far."""
        of_source, row = divmod(ordinal - int(self._num_drawn[source]), self._rows)
        stops = [quotas.num_drawn[source] for quotas in self._quotas[1:]]
        for quotas, stop in zip(self._quotas, [*stops, None]):
            if of_source >= 0 and source in quotas.weights and (stop is None or of_source < stop):
                group = quotas.start + quotas.tree.nth(quotas.leaf_of[source], of_source - quotas.num_drawn[source])
                return self.start + group * self._rows + row
        return None

    def is_drawn(self, source: int) -> bool:
        """Whether a source has weight in any segment that holds at least one sample."""
        return any(source in segment.weights and segment.stop != segment.start for segment in self._segments)

    def _quotas_at(self, group: int) -> SegmentQuotas:
        return self._quotas[bisect_right(self._starts, group) - 1]  # an empty segment shares its start with the next

    def _first_past(self, recipe: Recipe, caps: Mapping[int, int]) -> int | None:
        """The first sample past the cap of its source. Raises SnapshotError if the recipe refuses such a run."""
        ends = [(self.sample_of(source, max(cap, int(self._num_drawn[source]))), source) for source, cap in caps.items()]
        first, source = min(((end, source) for end, source in ends if end is not None), default=(LAST_SAMPLE, 0))
        if first >= LAST_SAMPLE:
            return None
        if recipe.exhausted == "refuse" and (recipe.num_samples is None or first < recipe.num_samples):
            name, token = self.sources[source], first * recipe.sequence_length
            raise SnapshotError(
                f"source '{name}' would pass its max_epochs, {recipe.max_epochs[name]}, at token {token}, and the "
                f"mixture has `exhausted: refuse`. Lower its weight or `mixture.tokens`, raise its max_epochs, or set "
                f"`exhausted: redistribute` to give its share to the other sources."
            )
        return first


def _plan_quotas(segments: Sequence[Segment], borders: Sequence[list[int]]) -> list[SegmentQuotas]:
    planned: list[SegmentQuotas] = []
    for number, segment in enumerate(segments):
        num_drawn = borders[number]
        weights = dict(segment.weights)
        if segment.stop is not None:
            after = borders[number + 1]
            weights = {source: after[source] - num_drawn[source] for source in weights if after[source] > num_drawn[source]}
        stop = segments[number + 1].start if number + 1 < len(segments) else None
        planned.append(SegmentQuotas(start=segment.start, stop=stop, weights=weights, num_drawn=num_drawn))
    return planned


def caps_of(
    recipe: Recipe, sources: tuple[str, ...], sizes: Sequence[int], generations: Mapping[str, Generations] = {}
) -> dict[int, int]:
    """By capped source, the most samples it may give in the whole run, so that no row comes more often than it may."""
    # str: 0.7 epochs of 10 sequences are 7 samples, although the float 0.7 is a little less
    exact = {limit: Fraction(str(limit)).as_integer_ratio() for limit in set(recipe.max_epochs.values())}
    caps: dict[int, int] = {}
    for source, name in enumerate(sources):
        if (limit := recipe.max_epochs.get(name)) is not None:
            of_source, (epochs, parts) = generations.get(name, Generations()), exact[limit]
            caps[source] = of_source.origin + (epochs - of_source.epochs * parts) * sizes[source] // parts
    return caps


def _check_weights(recipe: Recipe, sources: tuple[str, ...]) -> None:
    for number, phase in enumerate(recipe.phases, start=1):
        weights = phase.weights
        unknown = sorted(set(weights) - set(sources))
        if unknown or any(weight < 0 for weight in weights.values()):
            raise SnapshotError(
                f"phase {number} of the mixture has {'an unknown source' if unknown else 'a negative weight'}: "
                f"{unknown or dict(weights)}. Expected weights of at least 0 for {', '.join(sources)}."
            )
        drawn = [weight for weight in weights.values() if weight > 0]
        if not drawn:
            raise SnapshotError(f"phase {number} of the mixture: every weight is 0. Give one source a weight.")
        if sum(drawn) // gcd(*drawn) >= MAX_WEIGHT_SUM:
            raise SnapshotError(
                f"phase {number} of the mixture: its weights add up to {sum(drawn) // gcd(*drawn)} in lowest terms. Expected a "
                f"sum below 2^62, up to which the loader counts exactly. Write the weights with fewer digits."
            )
