"""Every source within two samples of its share after every prefix, in any phase, both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import SnapshotError
from datapipe.loader.mixing import Mixture, SplitTree
from datapipe.shards.manifest import Phase, Snapshot, SourceEntry, TokenizerEntry

weight_lists = st.lists(st.integers(1, 2**60 - 1) | st.integers(1, 50), min_size=1, max_size=30).filter(
    lambda weights: sum(weights) < 2**62
)


def make_mixture(phases: Sequence[tuple[int | None, Mapping[str, int]]], sequence_length: int = 10) -> Mixture:
    names = sorted({name for _, weights in phases for name in weights})
    snapshot = Snapshot(
        name="mixture",
        seed=1,
        sequence_length=sequence_length,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint="none", vocab_size=10, eos_id=0),
        sources={name: SourceEntry(weight=1) for name in names},
        phases=tuple(Phase(until_tokens=until, weights=dict(weights)) for until, weights in phases),
        shards=(),
    )
    return Mixture(snapshot, tuple(names))


def worst_error(weights: list[int], leaves: np.ndarray) -> float:
    """The largest distance of any leaf's count from its share, over all prefixes."""
    shares = np.array([weight / sum(weights) for weight in weights])
    # counts: (num_prefixes, num_leaves)
    counts = np.cumsum(leaves[:, None] == np.arange(len(weights)), axis=0)
    return float(np.abs(counts - np.arange(1, len(leaves) + 1)[:, None] * shares).max())


def test_split_tree_three_to_one_alternates_evenly() -> None:
    leaves, ordinals = SplitTree([3, 1]).assign(np.arange(8))
    assert leaves.tolist() == [0, 1, 0, 0, 0, 1, 0, 0]
    assert ordinals.tolist() == [0, 0, 1, 2, 3, 1, 4, 5]


@settings(deadline=None, max_examples=60)
@given(weight_lists)
def test_split_tree_any_weights_stay_within_two_of_quota(weights: list[int]) -> None:
    leaves, _ = SplitTree(weights).assign(np.arange(400))
    assert worst_error(weights, leaves) < 2


@pytest.mark.parametrize("weights", [[1] * 1000, [600_000] + [400] * 1000, list(range(1, 1001))])
def test_split_tree_thousand_tiny_weights_none_starves(weights: list[int]) -> None:
    leaves, _ = SplitTree(weights).assign(np.arange(4000))
    assert worst_error(weights, leaves) < 2
    rounds = -(-3 * sum(weights) // min(weights))  # after two shares' worth even the smallest has come up
    assert min(SplitTree(weights).counts(rounds)) >= 1


@settings(deadline=None, max_examples=60)
@given(weight_lists, st.integers(0, 2**50))
def test_split_tree_assign_counts_and_nth_agree(weights: list[int], start: int) -> None:
    tree = SplitTree(weights)
    leaves, ordinals = tree.assign(np.arange(start, start + 40))
    before, after = tree.counts(start), tree.counts(start + 40)
    for offset, (leaf, ordinal) in enumerate(zip(leaves.tolist(), ordinals.tolist())):
        assert ordinal == before[leaf]
        assert tree.nth(leaf, ordinal) == start + offset
        before[leaf] += 1
    assert before == after


def test_mixture_phases_continue_the_ordinals_of_each_source() -> None:
    mixture = make_mixture([(400, {"a": 1, "b": 1}), (800, {"a": 0, "b": 3, "c": 1}), (None, {"a": 1, "b": 0, "c": 1})])
    sources, ordinals = mixture.assign(np.arange(120))
    for source in range(3):
        assert ordinals[sources == source].tolist() == list(range(int((sources == source).sum())))
    assert np.bincount(sources[:40], minlength=3).tolist() == [20, 20, 0]
    assert np.bincount(sources[40:80], minlength=3).tolist() == [0, 30, 10]
    assert np.bincount(sources[80:], minlength=3).tolist() == [20, 0, 20]
    for sample in range(120):
        assert mixture.sample_of(int(sources[sample]), int(ordinals[sample])) == sample
        assert mixture.counts(sample) == np.bincount(sources[:sample], minlength=3).tolist()


def test_mixture_sample_of_source_that_ends_is_none() -> None:
    mixture = make_mixture([(400, {"a": 1, "b": 1}), (None, {"b": 1})])
    assert mixture.sample_of(0, 19) is not None
    assert mixture.sample_of(0, 20) is None


def test_mixture_boundary_between_sequences_goes_to_the_nearest() -> None:
    mixture = make_mixture([(14, {"a": 1}), (26, {"b": 1}), (25, {"c": 1}), (None, {"d": 1})])
    sources, _ = mixture.assign(np.arange(5))
    assert sources.tolist() == [0, 1, 1, 3, 3]
    assert not mixture.is_drawn(2)


def test_mixture_last_phase_holds_after_its_end() -> None:
    sources, ordinals = make_mixture([(100, {"a": 1, "b": 1})]).assign(np.array([10**6, 10**6 + 1]))
    assert sorted(sources.tolist()) == [0, 1]
    assert ordinals.tolist() == [500_000, 500_000]


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"a": 0}, "every weight is 0"),
        ({"a": -1}, "negative"),
        ({"a": 2**62, "b": 2**62 + 1}, "2\\^62"),
    ],
)
def test_mixture_impossible_weights_are_refused(weights: dict[str, int], reason: str) -> None:
    with pytest.raises(SnapshotError, match=reason):
        make_mixture([(None, weights)])


def test_mixture_common_factor_does_not_count() -> None:
    sources, _ = make_mixture([(None, {"a": 2**80, "b": 2**80})]).assign(np.arange(4))
    assert sorted(sources.tolist()) == [0, 0, 1, 1]
