"""Every source stays within its bound at every prefix, for any phases, by rows and by groups of rows, and `sample_of` inverts
`assign`; caps of epochs; steps to samples and back.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.order.mixing import Mixture, SegmentQuotas, SplitTree
from datapipe.loader.order.recipe import Recipe
from datapipe.loader.order.segments import plan_segments
from datapipe.loader.order.steps import BatchEra, Steps, merged
from datapipe.shards.manifest import Phase
from tests.support.loader_rows import resumed
from tests.support.snapshots import make_snapshot

Phases = Sequence[tuple[int | None, Mapping[str, int]]]


def make_recipe(phases: Phases, **options: Any) -> Recipe:
    made = tuple(Phase(until_tokens=until, weights=dict(weights)) for until, weights in phases)
    return Recipe(sequence_length=S, phases=made, **{"max_epochs": {}, **options})


def make_mixture(phases: Phases) -> Mixture:
    names = sorted({name for _, weights in phases for name in weights})
    return Mixture(make_recipe(phases), tuple(names), [10] * len(names))


weight_lists = st.lists(st.integers(1, 2**60 - 1) | st.integers(1, 50), min_size=1, max_size=30).filter(
    lambda weights: sum(weights) < 2**62
)
S = 10


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


@given(weight_lists, st.integers(0, 2**50))
def test_split_tree_assign_counts_and_nth_agree(weights: list[int], start: int) -> None:
    tree = SplitTree(weights)
    leaves, ordinals = drawn(weights, np.arange(start, start + 40))
    before, after = tree.counts(start).tolist(), tree.counts(start + 40).tolist()
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
    return [*((int(end) * S, one) for end, one in zip(ends[:-1], phases)), (None, phases[-1])]


@pytest.mark.medium
@settings(deadline=None, max_examples=30)
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
    def of(exhausted: str, num_samples: int) -> Mixture:
        options: dict[str, Any] = {"max_epochs": {"small": 2.0}, "total_tokens": num_samples * S, "exhausted": exhausted}
        return Mixture(make_recipe([(None, {"big": 3, "small": 1})], **options), ("big", "small"), [1000, 10])

    stopped = of("stop", 500)
    assert stopped.end is not None
    assert stopped.counts(stopped.end)[1] == 20
    with pytest.raises(SnapshotError, match=r"'small' would pass its max_epochs, 2\.0"):
        of("refuse", 500)
    assert of("refuse", 70).counts(70) == [52, 18]
    spread = of("redistribute", 500)
    assert spread.end is None
    assert spread.counts(500) == [480, 20]
    assert spread.counts(80) == [60, 20]


def capped(num: int, seed: int, prefix: str, num_samples: int | None = None) -> tuple[Mixture, np.ndarray]:
    """Sources with caps from 0 to 40 samples, and weights that have nothing to do with them, in two phases; and the caps."""
    generator = np.random.default_rng(seed)
    names = [f"{prefix}{number:03}" for number in range(num)]
    weights = [dict(zip(names, generator.integers(1, 1000, num).tolist())) for _ in range(2)]
    sizes, limits = generator.integers(1, 21, num), generator.choice([0.5, 1.0, 2.0], num)
    recipe = make_recipe(
        [(3 * num * S, weights[0]), (None, weights[1])],
        max_epochs=dict(zip(names, limits.tolist())),
        exhausted="redistribute",
        total_tokens=None if num_samples is None else num_samples * S,
    )
    return Mixture(recipe, tuple(names), sizes.tolist()), (sizes * limits).astype(np.int64)


@pytest.mark.parametrize("seed", range(6))
def test_mixture_of_a_few_capped_cells_is_that_of_sources(seed: int) -> None:
    (cells, _), (sources, _) = capped(8, seed, "s/"), capped(8, seed, "s")
    assert cells.end is not None
    assert sources.end is not None
    assert 0 <= cells.end - sources.end <= 8  # where one source after another ends, each leaves a part of a sample
    for sample in range(sources.end + 1):
        assert np.abs(np.array(cells.counts(sample)) - sources.counts(sample)).max() <= 2


@pytest.mark.parametrize("num_samples", [None, 600, 5000])
@pytest.mark.parametrize("seed", range(4))
def test_mixture_of_many_capped_cells_gives_all_that_the_caps_allow_and_no_more(seed: int, num_samples: int | None) -> None:
    mixture, caps = capped(300, seed, "s/", num_samples)
    end = mixture.end or num_samples
    assert end is not None
    assert mixture.end is not None or num_samples == 600
    before = np.zeros(300, np.int64)
    for sample in [*range(0, end, 7), end]:
        counts = np.array(mixture.counts(sample))
        assert counts.sum() == sample
        assert (before <= counts).all()
        assert (counts <= caps).all()
        before = counts
    assert mixture.end is None or caps.sum() - 16 <= mixture.end <= caps.sum()  # each segment may leave a part of a sample
    sources, ordinals = mixture.assign(np.arange(end))
    assert np.bincount(sources, minlength=300).tolist() == before.tolist()
    for source in range(300):
        assert ordinals[sources == source].tolist() == list(range(before[source]))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), min_size=1, max_size=8))
def test_mixture_redistributing_never_passes_a_cap_and_ends_when_all_are_exhausted(sources: list[tuple[int, int]]) -> None:
    weights, caps = {f"s{number}": weight for number, (weight, _) in enumerate(sources)}, [cap for _, cap in sources]
    recipe = make_recipe([(None, weights)], max_epochs=dict.fromkeys(weights, 1.0), exhausted="redistribute")
    mixture = Mixture(recipe, tuple(weights), caps)
    assert mixture.end is not None
    assert sum(caps) - len(sources) < mixture.end <= sum(caps)
    counts = [0] * len(sources)
    for sample, (source, ordinal) in enumerate(zip(*(column.tolist() for column in mixture.assign(np.arange(mixture.end))))):
        assert ordinal == counts[source] < caps[source]
        assert mixture.sample_of(source, ordinal) == sample
        counts[source] += 1


def test_mixture_cap_of_a_tiny_weight_is_reached_in_one_segment() -> None:
    """The rounding error of a tiny share is worth thousands of samples; the plan must not use a segment for each."""
    recipe = make_recipe([(None, {"bulk": 10**15, "hair": 3})], max_epochs={"hair": 1.0}, exhausted="redistribute")
    segments, _ = plan_segments(recipe, ("bulk", "hair"), 0, {1: 2})
    assert [dict(segment.weights) for segment in segments] == [{0: 10**15, 1: 3}, {0: 10**15}]


def test_mixture_cap_that_no_sample_number_reaches_is_no_border() -> None:
    recipe = make_recipe([(None, {"bulk": 1 << 40, "hair": 1})], max_epochs={"hair": 1.0}, exhausted="redistribute")
    mixture = Mixture(recipe, ("bulk", "hair"), [10, 10**8])  # after 10^8 * 2^40 samples
    assert mixture.end is None
    assert mixture.counts(3 << 40) == [(3 << 40) - 3, 3]
    sources, ordinals = mixture.assign(np.arange(4))
    assert (sources.tolist(), ordinals.tolist()) == ([0] * 4, [0, 1, 2, 3])


def make_groups(phases: Phases, group_rows: int, sizes: dict[str, int] | None = None, **options: Any) -> Mixture:
    """A mixture of the sources of all phases. `sizes`: rows of an epoch; `start` and `num_drawn` in `options`."""
    names = tuple(sorted({name for _, weights in phases for name in weights}))
    of_mixture = {name: options.pop(name) for name in ("start", "num_drawn") if name in options}
    recipe = make_recipe(phases, group_rows=group_rows, **options)
    return Mixture(recipe, names, [(sizes or {}).get(name, 10) for name in names], **of_mixture)


@st.composite
def group_cases(draw: st.DrawFn) -> tuple[Mixture, list[dict[str, int]], list[int], int, int, list[int]]:
    """A mixture, its phases, their first samples, its start, the rows of a group, and the samples drawn before."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 6)))]
    weights = st.fixed_dictionaries({name: st.sampled_from([0, 1, 1, 2, 7, 1000]) for name in names})
    phases = draw(st.lists(weights.filter(lambda one: any(one.values())), min_size=1, max_size=5))
    start, rows = draw(st.integers(0, 40)), draw(st.integers(2, 9))
    num_drawn = draw(st.lists(st.integers(0, 20), min_size=len(names), max_size=len(names)))
    ends = np.cumsum(draw(st.lists(st.integers(1, 60), min_size=len(phases), max_size=len(phases)))).tolist()
    listed = [(end * S, one) for end, one in zip(ends[:-1], phases)] + [(None, phases[-1])]
    mixture = make_groups(listed, rows, start=start, num_drawn=num_drawn)
    return mixture, phases, [0, *ends[:-1]], start, rows, num_drawn


@settings(deadline=None)
@given(group_cases())
@pytest.mark.slow
def test_every_row_is_found_in_both_directions_and_groups_have_one_source(case: Any) -> None:
    mixture, _, _, start, rows, num_drawn = case
    samples = np.arange(start, start + 40 * rows)
    sources, ordinals = mixture.assign(samples)
    assert (sources.reshape(-1, rows) == sources[::rows, None]).all()
    counts = list(num_drawn)
    for sample, source, ordinal in zip(samples.tolist(), sources.tolist(), ordinals.tolist()):
        assert mixture.counts(sample) == counts
        assert ordinal == counts[source]
        assert mixture.sample_of(source, ordinal) == sample
        counts[source] += 1
    assert all(mixture.sample_of(source, drawn - 1) is None for source, drawn in enumerate(num_drawn) if drawn)


@pytest.mark.slow
@settings(deadline=None)
@given(group_cases())
def test_quotas_hold_within_three_groups_over_all_phases(case: Any) -> None:
    mixture, phases, begins, start, rows, num_drawn = case
    shares = {name: float(drawn) for name, drawn in zip(mixture.sources, num_drawn)}
    for sample in range(start, start + 50 * rows):
        for name, drawn in zip(mixture.sources, mixture.counts(sample)):
            assert abs(drawn - shares[name]) <= 4 * rows  # three, and one where a phase ends within a group
        weights = phases[sum(begin <= sample for begin in begins) - 1]
        for name, weight in weights.items():
            shares[name] += weight / sum(weights.values())


@pytest.mark.parametrize(("exhausted", "end"), [("stop", 41), ("redistribute", None)])
def test_caps_count_rows(exhausted: Any, end: int | None) -> None:
    options: dict[str, Any] = {"max_epochs": {"a": 2.1}, "sizes": {"a": 10, "b": 50}}
    mixture = make_groups([(None, {"a": 1, "b": 1})], 4, exhausted=exhausted, **options)
    sources, ordinals = mixture.assign(np.arange(400))
    assert mixture.end is None if end is None else (sources[mixture.end or 0], ordinals[mixture.end or 0]) == (0, 21)
    if exhausted == "redistribute":
        assert Counter(sources.tolist())[0] == 20  # five groups of four, of 21 rows
    with pytest.raises(SnapshotError, match="source 'a' would pass its max_epochs"):
        make_groups([(None, {"a": 1, "b": 1})], 4, exhausted="refuse", **options)


def test_run_ends_where_every_capped_source_has_given_its_groups() -> None:
    options: dict[str, Any] = {"exhausted": "redistribute", "max_epochs": {"a": 1, "b": 1}, "sizes": {"a": 10, "b": 50}}
    mixture = make_groups([(None, {"a": 1, "b": 1})], 4, start=7, num_drawn=[3, 4], **options)
    assert mixture.end == 7 + 4 + 44
    assert mixture.counts(mixture.end) == [3 + 4, 4 + 44]


def test_state_of_other_groups_is_refused_without_migrate(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path, {"code": 31, "web": 83}, weights={"code": 1, "web": 3})
    plain, grouped = (Loader(output, global_batch_size=6, prefetch=0, group_rows=rows) for rows in (1, 6))
    assert json.loads(grouped.state_dict()["lineage"])["mixtures"][0]["group_rows"] == 6
    assert "group_rows" not in plain.state_dict()["lineage"]
    for loader, rows in ((grouped, 1), (plain, 3)):
        with pytest.raises(SnapshotError, match=r"group_rows .*migrate=True"):
            resumed(loader, output, group_rows=rows)


FIRST = BatchEra(step=0, sample=0, size=3)
ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)).map(lambda one: (one[0], one[0] + one[1])), max_size=5)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.booleans()), max_size=3),
    st.integers(0, 90) | st.none(),
    st.booleans(),
)
def test_samples_and_steps_are_those_of_a_simulation(
    changes: list[tuple[int, int, bool]], num_samples: int | None, drop_last: bool
) -> None:
    """Each change: after so many steps, batches of another size; the last step before may be smaller."""
    eras, batches, sample = [FIRST], list[tuple[int, int]](), 0
    for count, size, is_smaller in changes:
        batches += [(sample + at * eras[-1].size, sample + (at + 1) * eras[-1].size) for at in range(count)]
        if is_smaller and eras[-1].size > 1:
            batches[-1] = (batches[-1][0], batches[-1][1] - 1)
        sample = batches[-1][1]
        eras.append(BatchEra(step=len(batches), sample=sample, size=size))
    end = sample + 40 if num_samples is None else sample + num_samples
    size = eras[-1].size
    batches += [(start, min(start + size, end)) for start in range(sample, end, size)]
    if num_samples is None or drop_last:
        batches = [batch for batch in batches if batch[0] < sample or batch[1] - batch[0] == size]
    steps = Steps(eras, (), None if num_samples is None else end, drop_last=drop_last)
    assert [steps.samples(step) for step in range(len(batches))] == batches
    step_of = {sample: step for step, batch in enumerate(batches) for sample in range(*batch)}
    assert all(steps.step_of(sample) == step for sample, step in step_of.items())
    if num_samples is not None:
        assert steps.num_steps == len(batches)
        assert steps.num_dropped == end - len(step_of)
        assert [steps.step_of(sample) for sample in range(len(step_of), end + 2)] == [None] * (end + 2 - len(step_of))
    else:
        assert (steps.num_steps, steps.num_dropped) == (None, 0)


@given(ranges, st.integers(0, 40), st.integers(0, 12))
def test_skipped_steps_are_left_out_and_all_others_kept(skip: list[tuple[int, int]], step: int, count: int) -> None:
    steps = Steps([FIRST], skip, None, drop_last=True)
    left_out = {one for start, stop in skip for one in range(start, stop)}
    there = [one for one in range(step, 120) if one not in left_out]
    assert steps.next(step) == there[0]
    assert steps.advance(step, count) == there[count]
    assert steps.is_skipped(step) == (step in left_out)
    assert steps.before(step) == max((one for one in range(step) if one not in left_out), default=-1)
    finite = Steps([FIRST], skip, 3 * step, drop_last=True)
    assert finite.num_batches == len([one for one in range(step) if one not in left_out])
    assert steps.samples(there[0]) == (3 * there[0], 3 * there[0] + 3)


def test_ranges_are_merged_and_wrong_ones_refused() -> None:
    assert merged([(7, 9), (1, 3), (3, 4), (8, 12)]) == ((1, 4), (7, 12))
    for wrong in ((3, 3), (5, 2), (-1, 2), (1.5, 3), (1, 2, 3), (3, 1 << 60), 4):
        with pytest.raises(UserError):
            merged([wrong])  # type: ignore[list-item]
