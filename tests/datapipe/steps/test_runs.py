"""How many runs a bucket reads of, against lanes that are filled one file at a time; groups follow from content."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.exchange.ranges import HASH_SPACE
from datapipe.records.outputs import ExchangeFile
from datapipe.steps import runs


def _file(name: str, first: int = 0, last: int = HASH_SPACE - 1, num_runs: int = 1) -> ExchangeFile:
    return ExchangeFile(path=name, rows=1, bytes=1, row_bytes=1, checksum=f"xxh3:{name}", first=first, last=last, runs=num_runs)


@st.composite
def _files(draw: st.DrawFn) -> list[ExchangeFile]:
    """Files of a few places each, or of the ends of all hashes."""
    places = st.one_of(st.integers(0, 12), st.integers(HASH_SPACE - 3, HASH_SPACE - 1))
    ends = draw(st.lists(st.tuples(places, places, st.integers(1, 3)), max_size=12))
    return [_file(str(number), min(one, other), max(one, other), count) for number, (one, other, count) in enumerate(ends)]


def _lanes(files: list[ExchangeFile]) -> int:
    """Each run goes to the first lane whose last file ends before it begins."""
    lanes: list[int] = []
    for first, last, count in sorted((file.first, file.last, file.runs) for file in files):
        for _ in range(count):
            free = next((number for number, end in enumerate(lanes) if end < first), None)
            if free is None:
                lanes.append(last)
            else:
                lanes[free] = last
    return len(lanes)


@given(_files())
def test_fan_in_is_the_number_of_lanes(files: list[ExchangeFile]):
    assert runs.fan_in(files) == _lanes(files)


@given(_files(), st.integers(2, 5))
def test_merge_groups_have_few_runs_each_and_some_run_to_spare(files: list[ExchangeFile], most: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "MOST_RUNS", most)
        groups, left = runs.merge_groups(runs.with_group_keys(files), runs.MOST_RUNS)
    listed = [one.checksum for group in groups for one in group.files] + [one.file.checksum for one in left]
    assert sorted(listed) == sorted(one.checksum for one in files)
    assert all(len(group.files) == 1 or 1 < _lanes(list(group.files)) <= most for group in groups)
    assert bool(groups) == (_lanes(files) > 1)


@pytest.mark.slow
def test_merge_groups_have_the_root_of_all_runs_and_no_more_than_a_bucket_may_read():
    for num_files, root in ((1024, 32), (20_000, 256), (40_000, 256)):
        groups, left = runs.merge_groups(
            runs.with_group_keys([_file(str(number)) for number in range(num_files)]), runs.MOST_RUNS
        )
        assert sum(len(group.files) for group in groups) + len(left) == num_files
        assert max(len(group.files) for group in groups) <= root
        assert len(groups) <= 2.2 * num_files / root


def test_merge_groups_do_not_depend_on_order_and_few_change_with_a_file_more():
    files = [_file(str(number)) for number in range(3000)]
    turned = random.Random(3).sample(files, len(files))
    before = _groups(files)
    assert _groups(turned) == before
    after = _groups([*turned, _file("another")])
    assert len(before) > 40
    assert len(after) == len(before)
    assert len(after.items() - before.items()) == 1
    assert after.keys() == before.keys()


def _groups(files: list[ExchangeFile]) -> dict[int, frozenset[str]]:
    """The checksums of each group by its key."""
    groups, left = runs.merge_groups(runs.with_group_keys(files), runs.MOST_RUNS)
    assert not left
    return {group.group_key: frozenset(one.checksum for one in group.files) for group in groups}


def test_merge_groups_of_what_was_merged_are_whole_groups_of_the_level_before():
    """Whatever ranges each was merged in."""
    rng = random.Random(4)
    merged: list[runs.KeyedFile] = []
    for key in (rng.randrange(HASH_SPACE) for _ in range(600)):
        borders = [0, *sorted(rng.randrange(1, HASH_SPACE) for _ in range(5)), HASH_SPACE]
        ranges = zip(borders, borders[1:])
        merged += [runs.KeyedFile(group_key=key, file=_file(f"{key} {one}", one, other - 1)) for one, other in ranges]
    groups, left = runs.merge_groups(merged, runs.MOST_RUNS)
    assert not left
    assert all(runs.fan_in(group.files) * 6 == len(group.files) for group in groups)


@pytest.mark.medium
@pytest.mark.parametrize(("num_files", "num_runs"), [(300, 1), (900, 3), (12_000, 1)])
def test_group_sizes_are_about_those_of_groups_of_so_many_files(num_files: int, num_runs: int):
    files = [_file(str(number), num_runs=num_runs) for number in range(num_files)]
    groups, left = runs.merge_groups(runs.with_group_keys(files), 256)
    sizes, copies = runs.group_sizes(num_files, num_files * num_runs, 256)
    assert sizes.sum() * copies == pytest.approx(num_files, abs=copies)
    assert len(sizes) * copies == pytest.approx(len(groups) + len(left), rel=0.15)


def test_group_sizes_of_more_files_than_a_run_can_have_take_no_longer():
    sizes, copies = runs.group_sizes(10**12, 10**12, 256)
    assert len(sizes) < 100
    assert len(sizes) * copies == pytest.approx(10**12 / 180, rel=0.3)
