"""Rows in groups of one source: quotas by the group, any row found in both directions, and runs that change."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from datapipe.loader.order.groups import GroupedMixture
from datapipe.loader.order.mixing import Mixture
from datapipe.loader.order.recipe import Recipe
from datapipe.shards.manifest import Phase
from tests.support.loader_rows import resumed
from tests.support.snapshots import make_snapshot

S = 16
SIZES = {"code": 31, "web": 83, "zeta": 9}
FIELDS = ("input_ids", "sources")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), SIZES, weights={"code": 1, "web": 3, "zeta": 1})


def make_mixture(
    phases: list[tuple[int | None, dict[str, int]]], group_rows: int, sizes: dict[str, int] | None = None, **options: Any
) -> GroupedMixture:
    """A mixture of the sources of the last phase. `sizes`: rows of an epoch; `start` and `num_drawn` in `options`."""
    names = tuple(sorted({name for _, weights in phases for name in weights}))
    of_mixture = {name: options.pop(name) for name in ("start", "num_drawn") if name in options}
    recipe = Recipe(
        sequence_length=S,
        phases=tuple(Phase(until_tokens=until, weights=weights) for until, weights in phases),
        max_epochs=options.pop("max_epochs", {}),
        group_rows=group_rows,
        **options,
    )
    return GroupedMixture(recipe, names, [(sizes or {}).get(name, 10) for name in names], **of_mixture)


@st.composite
def grouped(draw: st.DrawFn) -> tuple[GroupedMixture, list[dict[str, int]], list[int], int, int, list[int]]:
    """A mixture, its phases, their first samples, its start, the rows of a group, and the samples drawn before."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 6)))]
    weights = st.fixed_dictionaries({name: st.sampled_from([0, 1, 1, 2, 7, 1000]) for name in names})
    phases = draw(st.lists(weights.filter(lambda one: any(one.values())), min_size=1, max_size=5))
    start, rows = draw(st.integers(0, 40)), draw(st.integers(2, 9))
    num_drawn = draw(st.lists(st.integers(0, 20), min_size=len(names), max_size=len(names)))
    ends = np.cumsum(draw(st.lists(st.integers(1, 60), min_size=len(phases), max_size=len(phases)))).tolist()
    listed = [(end * S, one) for end, one in zip(ends[:-1], phases)] + [(None, phases[-1])]
    mixture = make_mixture(listed, rows, start=start, num_drawn=num_drawn)
    return mixture, phases, [0, *ends[:-1]], start, rows, num_drawn


@settings(deadline=None)
@given(grouped())
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


@settings(deadline=None)
@given(grouped())
def test_quotas_hold_within_three_groups_over_all_phases(case: Any) -> None:
    mixture, phases, begins, start, rows, num_drawn = case
    shares = {name: float(drawn) for name, drawn in zip(mixture.sources, num_drawn)}
    for sample in range(start, start + 50 * rows):
        for name, drawn in zip(mixture.sources, mixture.counts(sample)):
            assert abs(drawn - shares[name]) <= 4 * rows  # three, and one where a phase ends within a group
        weights = phases[sum(begin <= sample for begin in begins) - 1]
        for name, weight in weights.items():
            shares[name] += weight / sum(weights.values())


def test_groups_of_one_row_are_the_rows_of_a_mixture() -> None:
    phases: list[tuple[int | None, dict[str, int]]] = [(S * 33, {"a": 5, "b": 2}), (None, {"a": 1, "b": 1, "c": 4})]
    recipe = Recipe(
        sequence_length=S, phases=tuple(Phase(until_tokens=until, weights=weights) for until, weights in phases), max_epochs={}
    )
    rows, groups = Mixture(recipe, ("a", "b", "c"), [10] * 3), make_mixture(phases, 1)
    for mine, theirs in zip(groups.assign(np.arange(200)), rows.assign(np.arange(200))):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("exhausted", "end"), [("stop", 41), ("redistribute", None)])
def test_caps_count_rows(exhausted: Any, end: int | None) -> None:
    options: dict[str, Any] = {"max_epochs": {"a": 2.1}, "sizes": {"a": 10, "b": 50}}
    mixture = make_mixture([(None, {"a": 1, "b": 1})], 4, exhausted=exhausted, **options)
    sources, ordinals = mixture.assign(np.arange(400))
    assert mixture.end is None if end is None else (sources[mixture.end or 0], ordinals[mixture.end or 0]) == (0, 21)
    if exhausted == "redistribute":
        assert Counter(sources.tolist())[0] == 20  # five groups of four, of 21 rows
    with pytest.raises(SnapshotError, match="source 'a' would pass its max_epochs"):
        make_mixture([(None, {"a": 1, "b": 1})], 4, exhausted="refuse", **options)


def test_run_ends_where_every_capped_source_has_given_its_groups() -> None:
    options: dict[str, Any] = {"exhausted": "redistribute", "max_epochs": {"a": 1, "b": 1}, "sizes": {"a": 10, "b": 50}}
    mixture = make_mixture([(None, {"a": 1, "b": 1})], 4, start=7, num_drawn=[3, 4], **options)
    assert mixture.end == 7 + 4 + 44
    assert mixture.counts(mixture.end) == [3 + 4, 4 + 44]


def test_state_of_other_groups_is_refused_without_migrate(output: Path) -> None:
    plain, grouped = (Loader(output, global_batch_size=6, prefetch=0, group_rows=rows) for rows in (1, 6))
    assert json.loads(grouped.state_dict()["lineage"])["mixtures"][0]["group_rows"] == 6
    assert "group_rows" not in plain.state_dict()["lineage"]
    with pytest.raises(SnapshotError, match=r"group_rows 6 -> 1.*migrate=True"):
        resumed(grouped, output)
    with pytest.raises(SnapshotError, match="group_rows 1 -> 3"):
        resumed(plain, output, group_rows=3)
