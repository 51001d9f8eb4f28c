"""Every source stays within its bound at every prefix, for any phases, and `sample_of` inverts `assign`; caps of epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import SnapshotError
from datapipe.loader.order.mixing import Mixture, SegmentQuotas, SplitTree
from datapipe.loader.order.recipe import Recipe
from datapipe.loader.order.segments import plan_segments
from datapipe.shards.manifest import Phase

weight_lists = st.lists(st.integers(1, 2**60 - 1) | st.integers(1, 50), min_size=1, max_size=30).filter(
    lambda weights: sum(weights) < 2**62
)
S = 10


def make_recipe(phases: Sequence[tuple[int | None, Mapping[str, int]]], **caps: float) -> Recipe:
    made = tuple(Phase(until_tokens=until, weights=dict(weights)) for until, weights in phases)
    return Recipe(sequence_length=S, phases=made, max_epochs=caps)


def make_mixture(phases: Sequence[tuple[int | None, Mapping[str, int]]]) -> Mixture:
    names = sorted({name for _, weights in phases for name in weights})
    return Mixture(make_recipe(phases), tuple(names), [10] * len(names))


def drawn(weights: list[int], samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leaf and ordinal of samples of a segment without end, whose source i has `weights[i]`."""
    quotas = SegmentQuotas(start=0, stop=None, weights=dict(enumerate(weights)), num_drawn=[0] * len(weights))
    leaves, ordinals = np.empty(len(samples), np.int64), np.empty(len(samples), np.int64)
    assert quotas.assign(samples, leaves, ordinals) == 0
    return leaves, ordinals


def worst_error(weights: list[int], leaves: np.ndarray) -> float:
    """The largest distance of any leaf's count from its share, over all prefixes."""
    shares = np.array([weight / sum(weights) for weight in weights])
    # counts: (num_prefixes, num_leaves)
    counts = np.cumsum(leaves[:, None] == np.arange(len(weights)), axis=0)
    return float(np.abs(counts - np.arange(1, len(leaves) + 1)[:, None] * shares).max())


@settings(deadline=None, max_examples=60)
@given(weight_lists)
def test_split_tree_any_weights_stay_within_two_of_quota(weights: list[int]) -> None:
    leaves, _ = drawn(weights, np.arange(400))
    assert worst_error(weights, leaves) < 2


@pytest.mark.medium
@pytest.mark.parametrize("weights", [[600_000] + [400] * 1000, list(range(1, 1001))])
def test_split_tree_thousand_tiny_weights_none_starves(weights: list[int]) -> None:
    assert worst_error(weights, drawn(weights, np.arange(4000))[0]) < 2
    rounds = -(-3 * sum(weights) // min(weights))  # the smallest weight has had two samples' share
    assert min(SplitTree(weights).counts(rounds)) >= 1


@settings(deadline=None, max_examples=60)
@given(weight_lists, st.integers(0, 2**50))
def test_split_tree_assign_counts_and_nth_agree(weights: list[int], start: int) -> None:
    tree = SplitTree(weights)
    leaves, ordinals = drawn(weights, np.arange(start, start + 40))
    before, after = tree.counts(start), tree.counts(start + 40)
    for offset, (leaf, ordinal) in enumerate(zip(leaves.tolist(), ordinals.tolist())):
        assert ordinal == before[leaf]
        assert tree.nth(leaf, ordinal) == start + offset
        before[leaf] += 1
    assert before == after


def test_mixture_boundary_between_sequences_goes_to_the_nearest() -> None:
    mixture = make_mixture([(14, {"a": 1}), (26, {"b": 1}), (25, {"c": 1}), (None, {"d": 1})])
    sources, _ = mixture.assign(np.arange(5))
    assert sources.tolist() == [0, 1, 1, 3, 3]
    assert not mixture.is_drawn(2)


def test_mixture_last_phase_holds_after_its_end() -> None:
    sources, ordinals = make_mixture([(100, {"a": 1, "b": 1})]).assign(np.array([10**6, 10**6 + 1]))
    assert sorted(sources.tolist()) == [0, 1]
    assert ordinals.tolist() == [500_000, 500_000]


@pytest.mark.parametrize("weights", [{"a": 0}, {"a": -1}, {"a": 2**62, "b": 2**62 + 1}])
def test_mixture_impossible_weights_are_refused(weights: dict[str, int]) -> None:
    with pytest.raises(SnapshotError):
        make_mixture([(None, weights)])


def test_mixture_common_factor_does_not_count() -> None:
    sources, _ = make_mixture([(None, {"a": 2**80, "b": 2**80})]).assign(np.arange(4))
    assert sorted(sources.tolist()) == [0, 0, 1, 1]


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[int | None, dict[str, int]]]:
    """Phases of some samples each, in which sources come and go."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 9)))]
    weights = st.fixed_dictionaries({name: st.sampled_from([0, 0, 1, 1, 2, 3, 7, 100, 10**6]) for name in names})
    phases = draw(st.lists(weights.filter(lambda one: any(one.values())), min_size=1, max_size=10))
    ends = np.cumsum(draw(st.lists(st.sampled_from([1, 1, 2, 3, 5, 23]), min_size=len(phases), max_size=len(phases))))
    return [(int(end) * S, one) for end, one in zip(ends[:-1], phases)] + [(None, phases[-1])]


@pytest.mark.medium
@settings(deadline=None, max_examples=60)
@given(schedules())
def test_mixture_any_phases_stay_within_three_of_quota_and_are_inverted(phases) -> None:
    mixture = make_mixture(phases)
    sources, ordinals = mixture.assign(np.arange(300))
    names = sorted(phases[0][1])
    shares, counts = [Fraction(0)] * len(names), [0] * len(names)
    number = 0
    for sample, (source, ordinal) in enumerate(zip(sources.tolist(), ordinals.tolist())):
        while phases[number][0] is not None and sample * S >= phases[number][0]:
            number += 1
        weights = phases[number][1]
        assert weights[names[source]] > 0
        assert mixture.counts(sample) == counts
        assert ordinal == counts[source]
        assert mixture.sample_of(source, ordinal) == sample
        counts[source] += 1
        total = sum(weights.values())
        shares = [share + Fraction(weights[name], total) for share, name in zip(shares, names)]
        assert max(abs(share - count) for share, count in zip(shares, counts)) < 3
    for source, name in enumerate(names):
        has_ended = mixture.sample_of(source, counts[source]) is None
        assert has_ended == (phases[-1][1][name] == 0)


@pytest.mark.parametrize("num_small", [1, 300])
def test_mixture_at_the_end_of_each_phase_is_within_one_of_quota(num_small: int) -> None:
    small = {f"s{number}": 1 + number % 97 for number in range(num_small)}
    stairs = [((stair + 1) * 101 * S, {"a": 64 - stair, "b": 1 + stair, "c": 7, **small}) for stair in range(64)]
    mixture = make_mixture([*stairs, (None, {"a": 1})])
    shares = np.zeros(3 + num_small)
    for until, weights in stairs:
        listed = np.array([weights[name] for name in sorted(weights)])
        shares += 101 * listed / listed.sum()
        assert np.abs(np.array(mixture.counts(until // S)) - shares).max() < 1 + 1e-9


def test_mixture_capped_source_stops_is_refused_or_is_redistributed() -> None:
    sources, sizes = ("big", "small"), [1000, 10]
    weights = [(None, {"big": 3, "small": 1})]
    base = {"sequence_length": S, "phases": make_recipe(weights).phases, "max_epochs": {"small": 2.0}}
    stopped = Mixture(Recipe(**base, total_tokens=500 * S), sources, sizes)
    assert stopped.end is not None
    assert stopped.counts(stopped.end)[1] == 20
    with pytest.raises(SnapshotError, match=r"'small' would pass its max_epochs, 2\.0.*exhausted: redistribute"):
        Mixture(Recipe(**base, exhausted="refuse", total_tokens=500 * S), sources, sizes)
    assert Mixture(Recipe(**base, exhausted="refuse", total_tokens=70 * S), sources, sizes).counts(70) == [52, 18]
    spread = Mixture(Recipe(**base, exhausted="redistribute", total_tokens=500 * S), sources, sizes)
    assert spread.end is None
    assert spread.counts(500) == [480, 20]
    assert spread.counts(80) == [60, 20]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), min_size=1, max_size=8))
def test_mixture_redistributing_never_passes_a_cap_and_ends_when_all_are_exhausted(sources: list[tuple[int, int]]) -> None:
    weights = {f"s{number}": weight for number, (weight, _) in enumerate(sources)}
    phases = make_recipe([(None, weights)]).phases
    recipe = Recipe(sequence_length=S, phases=phases, max_epochs=dict.fromkeys(weights, 1.0), exhausted="redistribute")
    caps = [cap for _, cap in sources]
    mixture = Mixture(recipe, tuple(weights), caps)
    assert mixture.end is not None
    assert sum(caps) - len(sources) < mixture.end <= sum(caps)
    assigned = zip(*(column.tolist() for column in mixture.assign(np.arange(mixture.end))))
    counts = [0] * len(sources)
    for sample, (source, ordinal) in enumerate(assigned):
        assert ordinal == counts[source] < caps[source]
        assert mixture.sample_of(source, ordinal) == sample
        counts[source] += 1


def test_mixture_cap_of_a_tiny_weight_is_reached_in_one_segment() -> None:
    """The rounding error of a tiny share is worth thousands of samples; the plan must not use a segment for each."""
    recipe = Recipe(
        sequence_length=S,
        phases=(Phase(until_tokens=None, weights={"bulk": 10**15, "hair": 3}),),
        max_epochs={"hair": 1.0},
        exhausted="redistribute",
    )
    segments, _ = plan_segments(recipe, ("bulk", "hair"), 0, [0, 0], {1: 2})
    assert [dict(segment.weights) for segment in segments] == [{0: 10**15, 1: 3}, {0: 10**15}]


def test_mixture_cap_that_no_sample_number_reaches_is_no_border() -> None:
    recipe = Recipe(
        sequence_length=S,
        phases=(Phase(until_tokens=None, weights={"bulk": 1 << 40, "hair": 1}),),
        max_epochs={"hair": 1.0},
        exhausted="redistribute",
    )
    mixture = Mixture(recipe, ("bulk", "hair"), [10, 10**8])  # after 10^8 * 2^40 samples
    assert mixture.end is None
    assert mixture.counts(3 << 40) == [(3 << 40) - 3, 3]
    sources, ordinals = mixture.assign(np.arange(4))
    assert (sources.tolist(), ordinals.tolist()) == ([0] * 4, [0, 1, 2, 3])
