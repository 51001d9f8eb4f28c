"""Cutting and grouping input files: every file once, and a new file disturbs one group."""

from __future__ import annotations

import random

import pytest

from datapipe.errors import UserError
from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.plan.outputs import TableFile
from datapipe.plan.splits import MAX_GROUP_FILES, check_hashes, documents_by_part, file_hash, group_splits, text_bytes, weight
from datapipe.plan.work import Record
from datapipe.stage import InputFile, Reader, Split
from stages.read.jsonl import Jsonl
from stages.read.text import Text

TARGET = 1 << 20


def _file(path: str, num_bytes: int, compression: str | None = None) -> InputFile:
    return InputFile(url=f"/{path}", path=path, num_bytes=num_bytes, stamp="1", compression=compression)


def _corpus(num_files: int, seed: int = 1) -> list[tuple[InputFile, Reader]]:
    rng = random.Random(seed)
    return [(_file(f"{number:05d}.txt", rng.randrange(0, 60_000)), Text()) for number in range(num_files)]


def test_file_hash_is_pinned_and_tells_source_and_path_apart() -> None:
    assert file_hash("web", "a/b.jsonl") == 0xAC307B25718BF54D
    assert len({file_hash("a", "b"), file_hash("b", "a"), file_hash("ab", ""), file_hash("", "ab")}) == 4


def test_check_hashes_one_hash_twice_is_refused_and_equal_paths_of_two_sources_are_not() -> None:
    check_hashes({"a": ["x", "y"], "b": ["x", "y"]})
    with pytest.raises(UserError):
        check_hashes({"a": ["b\0c"], "a\0b": ["c"]})


def test_group_splits_every_file_is_in_one_group_in_path_order() -> None:
    files = _corpus(1000)
    groups = group_splits(files, TARGET)
    assert [split.file for group in groups for split in group] == [file for file, _ in files]
    sizes = [sum(text_bytes(split.file) for split in group) for group in groups]
    assert max(sizes) <= 4 * TARGET
    assert 0.5 * TARGET < sum(sizes) / len(sizes) < 2 * TARGET


def test_group_splits_large_files_are_cut_and_stand_alone() -> None:
    small, large = _file("a.jsonl", 10), _file("b.jsonl", 3 * TARGET + 1)
    groups = group_splits([(small, Jsonl()), (large, Jsonl()), (_file("c.jsonl", 10), Jsonl())], TARGET)
    alone = [group for group in groups if group[0].file == large]
    assert [len(group) for group in alone] == [1] * 4
    assert [group[0].start for group in alone[1:]] == [group[0].stop for group in alone[:-1]]
    assert alone[-1][0].stop == large.num_bytes


@pytest.mark.parametrize("target", [1 << 16, 1 << 20, 1 << 24])
def test_group_splits_come_in_the_order_of_the_input_however_it_is_cut(target: int) -> None:
    rng = random.Random(5)
    sizes = [rng.choice([100, 3000, 200_000, 2_000_000]) for _ in range(200)]
    files: list[tuple[InputFile, Reader]] = [(_file(f"{number:05d}.jsonl", size), Jsonl()) for number, size in enumerate(sizes)]
    splits = [split for group in group_splits(files, target) for split in group]
    order = [(split.file.path, split.start) for split in splits]
    assert order == sorted(order)
    assert {split.file.path for split in splits} == {file.path for file, _ in files}


def test_group_splits_large_archive_is_a_group_of_its_own() -> None:
    packed = _file("a.jsonl.gz", TARGET // 4, "gzip")
    between = [(_file("0.jsonl", 10), Jsonl()), (packed, Jsonl()), (_file("b.jsonl", 10), Jsonl())]
    assert group_splits(between, TARGET)[1] == (Split(file=packed),)
    assert text_bytes(packed) == TARGET


@pytest.mark.medium
def test_group_splits_empty_files_count_for_the_work_of_opening_them() -> None:
    files: list[tuple[InputFile, Reader]] = [(_file(f"{number:05d}.txt", 0), Text()) for number in range(10_000)]
    groups = group_splits(files, TARGET)
    assert len(groups) > 10
    assert max(map(len, groups)) <= min(MAX_GROUP_FILES, 4 * TARGET // 4096)


def test_group_splits_tiny_target_never_groups_past_the_cap_of_files() -> None:
    files: list[tuple[InputFile, Reader]] = [(_file(f"{number:05d}.txt", 0), Text()) for number in range(9000)]
    assert max(map(len, group_splits(files, 1 << 40))) == MAX_GROUP_FILES


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(4))
def test_group_splits_adding_or_removing_a_file_changes_few_groups(seed: int) -> None:
    files = _corpus(5000)
    rng = random.Random(seed)
    index = rng.randrange(len(files))
    before = set(group_splits(files, TARGET))
    removed = set(group_splits(files[:index] + files[index + 1 :], TARGET))
    added = set(
        group_splits([*files[:index], (_file(f"{index:05d}-new.txt", rng.randrange(60_000)), Text()), *files[index:]], TARGET)
    )
    assert len(removed - before) <= 2
    assert len(added - before) <= 2
    grown = [*files[:index], (_file(files[index][0].path, 50_000), Text()), *files[index + 1 :]]
    assert 1 <= len(set(group_splits(grown, TARGET)) - before) <= 2


def _record(number: int, sizes: list[int]) -> Record:
    counts = DocumentCounts(kept=len(sizes), kept_bytes=sum(sizes))
    file = TableFile(path=str(number), rows=len(sizes), bytes=1, checksum=str(number), row_bytes=1)
    outputs = {"documents": (file,) if sizes else ()}
    return Record(step="web/read", fingerprint=str(number), outputs=outputs, metrics=TaskMetrics(document_counts=counts))


def _cut(sizes: list[int], rng: random.Random) -> list[list[int]]:
    """The documents of some tasks, of which some keep nothing."""
    borders = sorted(rng.choices(range(len(sizes) + 1), k=rng.randrange(12)))
    return [sizes[start:stop] for start, stop in zip([0, *borders], [*borders, len(sizes)])]


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(20))
def test_every_document_begins_in_one_part_that_reads_its_task(seed):
    rng = random.Random(seed)
    sizes = [rng.choice([0, 0, 10, 500, 40_000]) for _ in range(rng.randrange(1, 80))]
    tasks, part_bytes = _cut(sizes, rng), rng.choice([64, 1000, 30_000, 1 << 20])
    parts = documents_by_part([_record(number, own) for number, own in enumerate(tasks)], part_bytes)
    begin, begins = 0, []
    for number, own in enumerate(tasks):
        for size in own:
            begins.append((begin, str(number)))
            begin += weight(size, 1)
    for begin, task in begins:
        (part,) = [part for part in parts if part.start <= begin < part.stop]
        assert task in [file.path for file in part.documents]
    for part in parts:  # `begin` is the weight before the first of its files
        before = sum(weight(sum(own), len(own)) for own in tasks[: int(part.documents[0].path)])
        assert part.begin == before <= part.start


def test_a_source_without_documents_has_no_part():
    assert documents_by_part([_record(0, []), _record(1, [])], 1000) == []
