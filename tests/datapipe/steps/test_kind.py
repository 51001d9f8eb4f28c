"""How work is cut into tasks: every file once, and a new file disturbs one group. Fingerprints of tasks: every field enters
that the outputs depend on, and no other.
"""

import random
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest

from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.records import versions
from datapipe.records.outputs import Content, ExchangeFile, Record, TableFile, TokenizerFile
from datapipe.stage import InputFile, Reader, Split
from datapipe.stage.reader import FieldNames
from datapipe.steps.budget import LimitTask, SizeTask
from datapipe.steps.cells import Axis
from datapipe.steps.cut import Cut, Pair
from datapipe.steps.decisions import Decisions
from datapipe.steps.fold import FoldTask
from datapipe.steps.grid import CellSizesTask, CellsTask, GridTask
from datapipe.steps.kind import Task, fingerprinted
from datapipe.steps.map import MapTask
from datapipe.steps.merge import MergeTask
from datapipe.steps.pack import PackTask
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.rank import NarrowTask, RankTask
from datapipe.steps.read_batches import InputSplit
from datapipe.steps.reduce import GatherTask, ReduceTask
from datapipe.steps.splits import MAX_GROUP_FILES, file_hash, group_splits
from datapipe.steps.stops import Span, StopsTask
from datapipe.steps.tokenize import TokenizeTask
from datapipe.steps.train import SampleTask, TrainTask
from datapipe.steps.write import documents_by_part, weight
from stages.dedup.exact import Exact
from stages.filter.length import Length
from stages.read.jsonl import Jsonl
from stages.read.text import Text

TARGET = 1 << 20


def _file(path: str, num_bytes: int, compression: str | None = None) -> InputFile:
    return InputFile(url=f"/{path}", path=path, num_bytes=num_bytes, stamp="1", compression=compression)


def _corpus(num_files: int, seed: int = 1) -> list[tuple[InputFile, Reader]]:
    rng = random.Random(seed)
    return [(_file(f"{number:05d}.txt", rng.randrange(0, 60_000)), Text()) for number in range(num_files)]


def test_file_hash_is_pinned_and_distinguishes_source_and_path() -> None:
    assert file_hash("web", "a/b.jsonl") == 0xAC307B25718BF54D
    assert len({file_hash("a", "b"), file_hash("b", "a"), file_hash("ab", ""), file_hash("", "ab")}) == 4


def test_group_splits_every_file_is_in_one_group_in_path_order() -> None:
    files = _corpus(1000)
    groups = group_splits(files, TARGET)
    assert [split.file for group in groups for split in group] == [file for file, _ in files]
    sizes = [sum(split.file.text_bytes for split in group) for group in groups]
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


def test_group_splits_large_archive_is_a_separate_group() -> None:
    packed = _file("a.jsonl.gz", TARGET // 4, "gzip")
    between = [(_file("0.jsonl", 10), Jsonl()), (packed, Jsonl()), (_file("b.jsonl", 10), Jsonl())]
    assert group_splits(between, TARGET)[1] == (Split(file=packed),)
    assert packed.text_bytes == TARGET


@pytest.mark.medium
def test_group_splits_empty_files_count_for_the_work_of_opening_them() -> None:
    files: list[tuple[InputFile, Reader]] = [(_file(f"{number:05d}.txt", 0), Text()) for number in range(10_000)]
    groups = group_splits(files, TARGET)
    assert len(groups) > 10
    assert max(map(len, groups)) <= min(MAX_GROUP_FILES, 4 * TARGET // 4096)


@pytest.mark.medium
def test_group_splits_tiny_target_never_groups_past_the_cap_of_files() -> None:
    files: list[tuple[InputFile, Reader]] = [(_file(f"{number:05d}.txt", 0), Text()) for number in range(9000)]
    assert max(map(len, group_splits(files, 1 << 40))) == MAX_GROUP_FILES


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
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


def _committed(number: int, sizes: list[int]) -> Record:
    counts = DocumentCounts(kept=len(sizes), kept_bytes=sum(sizes))
    file = TableFile(path=str(number), rows=len(sizes), bytes=1, checksum=str(number), row_bytes=1)
    outputs = {"documents": (file,) if sizes else ()}
    return Record("web/read", str(number), Content(outputs, TaskMetrics(document_counts=counts)))


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
    parts = documents_by_part([_committed(number, own) for number, own in enumerate(tasks)], part_bytes)
    begin, begins = 0, []
    for number, own in enumerate(tasks):
        for size in own:
            begins.append((begin, str(number)))
            begin += weight(size, 1)
    for begin, task in begins:
        (part,) = [part for part in parts if part["start"] <= begin < part["stop"]]
        assert task in [file.path for file in part["documents"]]
    for part in parts:  # `begin` is the weight before the first of its files
        before = sum(weight(sum(own), len(own)) for own in tasks[: int(part["documents"][0].path)])
        assert part["begin"] == before <= part["start"]


def test_a_source_without_documents_has_no_part():
    assert documents_by_part([_committed(0, []), _committed(1, [])], 1000) == []


def _split(path: str = "a.jsonl") -> InputSplit:
    file = InputFile(url=f"/data/{path}", path=path, num_bytes=10, stamp="7", compression=None)
    return InputSplit(split=Split(file=file), reader=Jsonl(), reader_digest="reader")


def _rows(checksum: str = "x", url: str = "") -> ExchangeFile:
    return ExchangeFile(path=checksum, rows=1, bytes=1, checksum=checksum, row_bytes=1, url=url)


def _table(checksum: str = "x") -> TableFile:
    return TableFile(path=checksum, rows=1, bytes=1, checksum=checksum, row_bytes=1)


def _tokenizer(checksum: str = "x") -> TokenizerFile:
    known: dict[str, Any] = {"vocab_size": 300, "eos_id": 0, "eos_token": "<e>", "fingerprint": "f", "fallback_reason": ""}
    known |= {"library": "fastokens", "library_version": "0.3.5", "battery": "b"}
    return TokenizerFile(path="tokenizer.json", rows=300, bytes=1, checksum=checksum, **known)


LENGTH = BoundStage(name="filter.length", stage=Length(), digest="length")
EXACT = BoundStage(name="dedup.exact", stage=Exact(), digest="exact", emit_digest="emit")
COMMON: dict[str, Any] = {"step": "web/read", "source": "web", "seed": 1, "resources": ()}
RANGE: dict[str, Any] = {"start": 0, "stop": 10}
PACK: dict[str, Any] = {
    "tokenizer_fingerprint": "f",
    "vocab_size": 300,
    "eos_id": 0,
    "pool_documents": 9,
    "max_padding": 0.02,
    "min_piece": 1,
}

TASKS: list[tuple[Task, dict[str, Any]]] = [
    (
        MapTask(**COMMON, inputs=(_split(),), stages=(LENGTH,), emit=EXACT),
        {
            "inputs": (_split("b.jsonl"),),
            "fields": FieldNames(text="content"),
            "limit": 5,
            "before": "other",
            "decisions": Decisions(name="dedup.exact", rule="duplicate", tables={"drops": (_rows(),)}),
            "stages": (replace(LENGTH, digest="longer"),),
            "emit": replace(EXACT, emit_digest="other"),
            "cut": LENGTH,
            "source_position": 1,
        },
    ),
    (
        ReduceTask(**COMMON, **RANGE, stage=EXACT, exchange="match", tables={"texts": (_rows(),)}, limit_bytes=1),
        {
            "stage": replace(EXACT, digest="other"),
            "exchange": "other",
            "tables": {"texts": (_rows("y"),)},
            "start": 1,
            "stop": 11,
            "at_once": True,
        },
    ),
    (
        MergeTask(**COMMON, **RANGE, tables={"texts": (_rows(),)}, limit_bytes=1),
        {"tables": {"texts": (_rows(url="/earlier/x"),)}, "start": 1, "stop": 11},
    ),
    (
        GatherTask(**COMMON, **RANGE, stage=EXACT, tables={"drops": (_rows(),)}, limit_bytes=1),
        {"tables": {"sizes": (_rows(),)}, "start": 1, "stop": 11},
    ),
    (
        RankTask(**COMMON, stage="best", scores=(_table(),), interval=(Cut(),)),
        {"stage": "other", "scores": (_table("y"),), "interval": (Cut(kept=Pair(score=1, tie=2)),)},
    ),
    (
        NarrowTask(**COMMON, stage="best", summaries=(_table(),), interval=(Cut(),), share=(Fraction(1, 3),)),
        {
            "stage": "other",
            "summaries": (_table("y"),),
            "interval": (Cut(dropped=Pair(score=1, tie=2)),),
            "share": (Fraction(1, 4),),
        },
    ),
    (
        GridTask(**COMMON, before="map", documents=(_table(),), axes=(Axis(column="topic"),)),
        {"before": "other", "axes": (Axis(column="topic", bounds=(1.0,)),)},
    ),
    (
        CellsTask(**COMMON, axes=(Axis(column="topic"),), is_last=True),
        {
            "axes": (Axis(column="topic", quantiles=2, cuts=(Cut(),)),),
            "inputs": {"parts": (_table(),)},
            "lists": (_table(),),
            "earlier": ("science",),
            "is_last": False,
        },
    ),
    (CellSizesTask(**COMMON, sizes=(_table(),), num_cells=3), {"sizes": (_table("y"),), "num_cells": 4}),
    (
        SampleTask(**COMMON, before="map", documents=(_table(),), fraction=0.5, validation=0.1, pattern="gpt2"),
        {"before": "other", "fraction": 0.25, "validation": 0.2, "pattern": "other"},
    ),
    (
        TrainTask(**COMMON, samples=(_table(),), vocab_size=300, pattern="gpt2", eos="<e>"),
        {
            "samples": (_table("y"),),
            "vocab_size": 301,
            "pattern": "other",
            "eos": "<f>",
            "bos": "<s>",
            "content": b"tokenizer",
            "control_tokens": ("<a>",),
        },
    ),
    (
        FoldTask(**COMMON, number=0, files={"used_ids": (_table(),)}, folded=1, first="map", stop=10),
        {"number": 1, "files": {"used_ids": (_table("y"),)}, "folded": 2, "first": "other", "stop": 11},
    ),
    (
        TokenizeTask(**COMMON, before="map", documents=(_table(),), tokenizer=_tokenizer(), validation=0.1),
        {
            "before": "other",
            "tokenizer": _tokenizer("y"),
            "validation": 0.2,
            "strata": ("score", (1.0,)),
            "license_column": "terms",
            "fim": {"rate": 0.5},
            "document_prefix": ("{url}", 0.5),
            "max_document_tokens": (9, "cut"),
            "axes": (Axis(column="topic"),),
            "cells": (_table(),),
        },
    ),
    (
        SizeTask(**COMMON, before="tokenize", rows=(_rows(),)),
        {"before": "other"},
    ),
    (
        StopsTask(**COMMON, spans=(Span(cell=0, bits=50, left=9),), is_last=True),
        {
            "sizes": (_table(),),
            "sums": (_table(),),
            "spans": (Span(cell=0, bits=50, left=8),),
            "budget_of": "each",
            "is_last": False,
        },
    ),
    (
        LimitTask(**COMMON, before="tokenize", sizes=(_table(),), kept=(_table(),), stops=(), num_docs=1, text_bytes=9),
        {"before": "other", "stops": (_table(),), "budget_of": "all", "license_column": "terms", "around": 1},
    ),
    (
        PackTask(
            **COMMON,
            **RANGE,
            **PACK,
            files=(_rows(),),
            bucket=0,
            split="train",
            stratum=None,
            sequence_length=64,
            method="concat",
            format="arrow",
            target_bytes=9,
        ),
        {
            "files": (_rows("y"),),
            "start": 1,
            "stop": 11,
            "bucket": 1,
            "split": "validation",
            "stratum": 0,
            "tokenizer_fingerprint": "g",
            "vocab_size": 301,
            "eos_id": 1,
            "sequence_length": 65,
            "method": "best_fit",
            "pool_documents": 10,
            "max_padding": 0.01,
            "min_piece": 2,
            "format": "parquet",
            "target_bytes": 10,
            "again": (5,),
            "ends": ((0, 6),),
        },
    ),
]
"""A task of each kind, and another value for every field that enters its fingerprint."""

LEFT_OUT: dict[str, Any] = {
    "step": "web/other",
    "fingerprint": "other",
    "resources": (("num_cpus", 2.0),),
    "documents": (_table("y"),),
    "limit_bytes": 2,
    "rows": (_rows("y"),),
    "sizes": (_table("y"),),
    "kept": (_table("y"),),
    "num_docs": 2,
    "text_bytes": 10,
}


@pytest.mark.parametrize(("task", "entering"), TASKS, ids=lambda value: value.kind if isinstance(value, Task) else "")
def test_fingerprint_changes_with_every_field_that_enters_and_no_other(task: Task, entering: dict[str, Any]):
    known = fingerprinted(task).fingerprint
    entering = {"source": "books", "seed": 2, **entering}
    for name, value in entering.items():
        assert fingerprinted(replace(task, **{name: value})).fingerprint != known, name
    for one in fields(task):
        if one.name in entering:
            continue
        value = LEFT_OUT[one.name] if one.name in LEFT_OUT else replace(EXACT, digest="other", emit_digest="other")
        assert fingerprinted(replace(task, **{one.name: value})).fingerprint == known, one.name


@pytest.mark.parametrize("changed", ["checksum", "library", "battery", "eos_token", "bos_token"])
def test_fingerprint_of_tokenizing_changes_with_what_decides_the_ids(changed: str):
    task = next(task for task, _ in TASKS if isinstance(task, TokenizeTask))
    other = replace(task, tokenizer=replace(task.tokenizer, **{changed: "other"}))
    assert fingerprinted(other).fingerprint != fingerprinted(task).fingerprint
    moved = replace(task, tokenizer=replace(task.tokenizer, path="other", fallback_reason="other", library_version="other"))
    assert fingerprinted(moved).fingerprint == fingerprinted(task).fingerprint


USED = {
    "map": "pyarrow=1 unicode=1",
    "reduce": "pyarrow=1 unicode=1",
    "merge": "",
    "gather": "",
    "rank": "",
    "narrow": "",
    "grid": "pyarrow=1",
    "cells": "",
    "cell_sizes": "",
    "sample": "pyarrow=1 unicode=1",
    "train": "fastokens=1 pyarrow=1 tokenizers=1 unicode=1",
    "tokenize": "fastokens=1 pyarrow=1 tokenizers=1",
    "size": "",
    "stops": "",
    "limit": "",
    "pack": "pyarrow=1",
    "fold": "pyarrow=1",
}
"""By kind, the libraries of the task in `TASKS`."""


@pytest.mark.parametrize("task", [task for task, _ in TASKS], ids=lambda task: task.kind)
def test_fingerprint_has_the_versions_that_decide_bytes_in_its_second_half(task: Task, monkeypatch: pytest.MonkeyPatch):
    if isinstance(task, ReduceTask):
        task = replace(task, stage=replace(task.stage, libraries=("pyarrow",)))
    monkeypatch.setattr(versions, "version_here", lambda library: "1")
    known = fingerprinted(replace(task))
    assert known.versions == USED[task.kind]
    for library in ("fastokens", "numba", "numpy", "pyarrow", "tokenizers", "unicode", "xxhash"):
        monkeypatch.setattr(versions, "version_here", lambda name, changed=library: "2" if name == changed else "1")
        other = fingerprinted(replace(task)).fingerprint
        assert (other != known.fingerprint) == (f"{library}=" in USED[task.kind]), library
        assert versions.content_of(other) == versions.content_of(known.fingerprint)


def test_fingerprint_of_parquet_has_the_exact_version_of_its_writer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "EQUAL", (versions.EqualVersions("pyarrow", "26.0.0", "26.0.1", "a test"),))
    task = next(task for task, _ in TASKS if isinstance(task, PackTask))
    names: dict[str, set[str]] = {"arrow": set(), "parquet": set()}
    for installed in ("26.0.0", "26.0.1"):
        monkeypatch.setattr(versions, "version_here", lambda library, installed=installed: installed)
        for form, found in names.items():
            found.add(fingerprinted(replace(task, format=form)).fingerprint)
    assert {form: len(found) for form, found in names.items()} == {"arrow": 1, "parquet": 2}


def test_fingerprint_does_not_depend_on_the_order_of_exchange_files():
    task = MergeTask(**COMMON, **RANGE, tables={"texts": (_rows("x"), _rows("y"))}, limit_bytes=1)
    assert (
        fingerprinted(task).fingerprint
        == fingerprinted(replace(task, tables={"texts": task.tables["texts"][::-1]})).fingerprint
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"rule": "other"},
        {"tables": {"drops": (_rows("y"),)}},
        {"size_column": "copies"},
        {"cluster_column": "cluster"},
        {"removed_share": 0.5},
    ],
    ids=str,
)
def test_fingerprint_of_a_map_task_covers_its_decisions(changed: dict[str, Any]):
    decisions = Decisions(name="dedup.exact", rule="duplicate", tables={"drops": (_rows(),)})
    task = MapTask(**COMMON, before="map", decisions=decisions)
    other = replace(task, decisions=replace(decisions, **changed))
    assert fingerprinted(task).fingerprint != fingerprinted(other).fingerprint
