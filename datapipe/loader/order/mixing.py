"""Which source each sample comes from: exact quotas at every prefix, by arithmetic alone, in both directions.

    sample g  ->  segment  ->  down a tree of two-way splits  ->  (source, ordinal: how many of that source came before)

A run is a row of segments with constant weights (`segments.py`). Each finite segment gives every source a whole number of its
samples, chosen so that at each border every source is within one sample of its exact share of all samples so far. Within a
segment those numbers, or in the last and endless one the weights themselves, are the leaves of a Huffman tree. Of the first n
samples that reach a node whose children weigh a and b, the left child gets floor((n*a + floor((a+b)/2)) / (a+b)): within half
a sample of its share, and exactly a of the first a + b.

The bound. A child passes on its parent's error scaled by its share of the parent, and adds half a sample at most. Two levels
of a Huffman tree at least halve a weight: let v be a child of p, p a child of g, and u the sibling of p. When v was joined it
was among the two lightest, and u, or a part of which u was made later, was there and no lighter; so g weighs at least v + u,
at least twice v. On the way down the errors thus add up to less than (1 + 1 + 1/2 + 1/2 + 1/4 + ...) / 2 = 2. A segment
starts and ends within one sample of the exact shares, and between two borders the line from one to the other is no farther
from them. So **every source is within three samples of its exact share after every prefix of the run**, for any weights and
any number of phases, and within two in a run of one phase (measured: 1.0 over 1,000 tiny weights). A sample is a row of S
tokens, so the same holds in tokens, times S. No source starves and none runs ahead, where block-wise integer counts round
small weights away and random draws stray by the square root of n.

A source's ordinals run on from segment to segment, so a change of weights repeats nothing. All numbers are integers: nothing
here rounds but as said.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import floor, gcd

import numpy as np

from datapipe.errors import SnapshotError
from datapipe.kernels.loader import quota
from datapipe.loader.order.recipe import Recipe
from datapipe.loader.order.segments import Segment, plan_segments, settle
from datapipe.weights import MAX_WEIGHT_SUM


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A two-way split. A child is the number of another node, or ~leaf."""

    left_weight: int
    total: int
    left: int
    right: int

    def left_count(self, count: int) -> int:
        """How many of the first `count` samples at this node go left."""
        return (count * self.left_weight + self.total // 2) // self.total

    def nth_left(self, ordinal: int) -> int:
        """The number, at this node, of sample `ordinal` of the left child: the least n with left_count(n + 1) > ordinal."""
        return -(((ordinal + 1) * self.total - self.total // 2) // -self.left_weight) - 1

    def nth_right(self, ordinal: int) -> int:
        """The number, at this node, of sample `ordinal` of the right child."""
        return (ordinal * self.total + self.total // 2) // (self.total - self.left_weight)


class SplitTree:
    """The leaves 0..n-1 of positive integer `weights`, drawn in exact proportion. Node 0 is the root."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.num_leaves = len(weights)
        self.nodes = _huffman(weights)

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        columns = [[node.left_weight, node.total, node.left, node.right] for node in self.nodes]
        table = np.array(columns, np.int64).reshape(-1, 4)
        left_weights, totals, lefts, rights = np.ascontiguousarray(table.T)
        return left_weights, totals, lefts, rights

    @cached_property
    def _parents(self) -> dict[int, tuple[int, bool]]:
        """Of each child (node or ~leaf): its parent's number, and whether it is the left one."""
        found = {node.left: (number, True) for number, node in enumerate(self.nodes)}
        found.update({node.right: (number, False) for number, node in enumerate(self.nodes)})
        return found

    def assign(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Leaf and ordinal of each sample: (n,) int64 each."""
        leaves, ordinals = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        quota.descend(np.ascontiguousarray(numbers, np.int64), *self._arrays, leaves, ordinals)
        return leaves, ordinals

    def counts(self, count: int) -> list[int]:
        """How many of the first `count` samples each leaf gets."""
        if not self.nodes:
            return [count]
        found, pending = [0] * self.num_leaves, [(0, count)]
        while pending:
            number, here = pending.pop()
            if number < 0:
                found[~number] = here
                continue
            node = self.nodes[number]
            to_left = node.left_count(here)
            pending += [(node.left, to_left), (node.right, here - to_left)]
        return found

    def nth(self, leaf: int, ordinal: int) -> int:
        """The number of the sample that is `ordinal` of `leaf`: the inverse of `assign`."""
        child = ~leaf
        while child in self._parents:
            child, is_left = self._parents[child]
            ordinal = self.nodes[child].nth_left(ordinal) if is_left else self.nodes[child].nth_right(ordinal)
        return ordinal


def _huffman(weights: Sequence[int]) -> tuple[Node, ...]:
    """The nodes, root first. Equal weights join in the order of their leaves, then of their making."""
    common = gcd(*weights)
    heap = [(weight // common, order, ~order) for order, weight in enumerate(weights)]
    heapq.heapify(heap)
    num_nodes = len(weights) - 1
    nodes: list[Node] = []
    while len(heap) > 1:
        small, _, left = heapq.heappop(heap)
        large, _, right = heapq.heappop(heap)
        nodes.append(Node(left_weight=small, total=small + large, left=left, right=right))
        # Made last is the root, and shall be node 0.
        heapq.heappush(heap, (small + large, len(weights) + len(nodes), num_nodes - len(nodes)))
    return tuple(reversed(nodes))


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One segment, ready to draw from.

    Attributes:
        start: its first sample.
        weights: by source, above 0: counts that add up to its length, or the weights of an endless one.
        places: per source, how many samples it had before `start`.
    """

    start: int
    weights: Mapping[int, int]
    places: Sequence[int]

    @cached_property
    def tree(self) -> SplitTree:
        return SplitTree(list(self.weights.values()))

    @cached_property
    def leaf_of(self) -> dict[int, int]:
        return {source: leaf for leaf, source in enumerate(self.weights)}

    @cached_property
    def leaf_sources(self) -> np.ndarray:
        """(num_leaves,) int64: the source of each leaf."""
        return np.array(list(self.weights), np.int64)

    @cached_property
    def leaf_places(self) -> np.ndarray:
        """(num_leaves,) int64: `places` of the source of each leaf."""
        return np.array([self.places[source] for source in self.weights], np.int64)

    def counts_until(self, stop: int) -> list[int]:
        """Samples of each source before sample `stop`, which lies in this segment or just after it."""
        counts = list(self.places)
        for source, count in zip(self.weights, self.tree.counts(stop - self.start)):
            counts[source] += count
        return counts


class Mixture:
    """A recipe over `sources`, a tuple of names, from sample `start` on; sources are numbered by their place in it.

    Args:
        sizes: (num_sources,) rows in an epoch of each source, for the caps.
        start: the sample at which this mixture begins to hold.
        places: by source, how many samples it had before; 0 each by default.
    """

    def __init__(
        self, recipe: Recipe, sources: tuple[str, ...], sizes: Sequence[int], start: int = 0, places: Sequence[int] = ()
    ) -> None:
        self.sources = sources
        self.start = start
        _check_weights(recipe, sources)
        places = list(places) or [0] * len(sources)
        caps = _caps(recipe, sources, sizes)
        spread = recipe.exhausted == "redistribute"
        segments, dried_up = plan_segments(recipe, sources, start, places, caps if spread else {})
        self._segments = segments
        self._drawings = _draw(segments, settle(segments, places))
        self._starts = [drawing.start for drawing in self._drawings]
        self._starts_array = np.array(self._starts, np.int64)
        self.end = dried_up if spread else self._first_past(caps, recipe)

    def assign(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Source index and ordinal of each sample.

        Args:
            samples: (n,) int64, global sample numbers, none before `start`.

        Returns:
            (n,) int64 source indices, (n,) int64 ordinals: the source's samples before this one, over the whole run.
        """
        # number_of: (n,); an empty segment shares its start with the next, and side="right" passes it by
        number_of = np.searchsorted(self._starts_array, samples, side="right") - 1
        found, ordinals = np.empty(len(samples), np.int64), np.empty(len(samples), np.int64)
        for number in set(number_of.tolist()):
            drawing, here = self._drawings[number], number_of == number
            leaves, within = drawing.tree.assign(samples[here] - drawing.start)
            found[here] = drawing.leaf_sources[leaves]
            ordinals[here] = within + drawing.leaf_places[leaves]
        return found, ordinals

    def counts(self, sample: int) -> list[int]:
        """How many samples before `sample`, which is not before `start`, come from each source."""
        return self._drawings[bisect_right(self._starts, sample) - 1].counts_until(sample)

    def sample_of(self, source: int, ordinal: int) -> int | None:
        """The sample that is `ordinal` of a source, or None if it came before `start` or the source never gets that far."""
        if ordinal < self._drawings[0].places[source]:
            return None
        for number, drawing in enumerate(self._drawings):
            last = number + 1 == len(self._drawings)
            if source in drawing.weights and (last or ordinal < self._drawings[number + 1].places[source]):
                return drawing.start + drawing.tree.nth(drawing.leaf_of[source], ordinal - drawing.places[source])
        return None

    def is_drawn(self, source: int) -> bool:
        """Whether a source has weight in any segment that holds at least one sample."""
        return any(source in segment.weights and segment.stop != segment.start for segment in self._segments)

    def _first_past(self, caps: Mapping[int, int], recipe: Recipe) -> int | None:
        """The first sample past the cap of its source. Raises SnapshotError if the recipe refuses such a run."""
        found = {source: self.sample_of(source, max(cap, self._drawings[0].places[source])) for source, cap in caps.items()}
        past = [(sample, source) for source, sample in found.items() if sample is not None]
        if not past:
            return None
        first, source = min(past)
        if recipe.exhausted == "refuse" and (recipe.num_samples is None or first < recipe.num_samples):
            name, token = self.sources[source], first * recipe.sequence_length
            raise SnapshotError(
                f"source '{name}' would pass its max_epochs, {recipe.max_epochs[name]}, at token {token}, and the "
                f"mixture says `exhausted: refuse`. Lower its weight or `mixture.tokens`, raise its max_epochs, or set "
                f"`exhausted: redistribute`, so that the others take its place."
            )
        return first


def _draw(segments: Sequence[Segment], borders: Sequence[list[int]]) -> list[Drawing]:
    """Each segment with its counts, or its weights where it has no end."""
    drawings: list[Drawing] = []
    for number, segment in enumerate(segments):
        places = borders[number]
        weights = dict(segment.weights)
        if segment.stop is not None:
            after = borders[number + 1]
            weights = {source: after[source] - places[source] for source in weights if after[source] > places[source]}
        drawings.append(Drawing(start=segment.start, weights=weights, places=places))
    return drawings


def _caps(recipe: Recipe, sources: tuple[str, ...], sizes: Sequence[int]) -> dict[int, int]:
    """The most samples that each capped source may give in the whole run."""
    # str: 0.7 epochs of 10 sequences are 7, though the float 0.7 is a little less
    limits = {source: recipe.max_epochs.get(name) for source, name in enumerate(sources)}
    return {source: floor(Fraction(str(limit)) * sizes[source]) for source, limit in limits.items() if limit is not None}


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
                f"phase {number} of the mixture: its weights add up to {sum(drawn) // gcd(*drawn)} in lowest terms, and the "
                f"loader counts exactly up to 2^62. Write the weights with fewer digits."
            )
