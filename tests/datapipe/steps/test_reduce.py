"""Reducing, merging and gathering rows of exchange files, against plain Python: whatever the ranges, files and limits."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.exchange import chunks
from datapipe.exchange import files as exchange
from datapipe.exchange.files import read_index
from datapipe.exchange.ranges import HASH_SPACE, read_rows
from datapipe.records.outputs import ExchangeFile
from datapipe.stage.tables import FINAL_SCHEMAS, RANK
from datapipe.steps.kind import Task, fingerprinted
from datapipe.steps.merge import MergeTask, by_range
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.reduce import GatherTask, ReduceTask
from datapipe.steps.run_task import run_task
from datapipe.steps.runs import fan_in
from datapipe.storage.root import Root
from stages.dedup.exact import TEXTS, Exact
from tests.support.exchange_rows import write

pytestmark = pytest.mark.medium

_STAGE = BoundStage(name="dedup.exact", stage=Exact(size_column="copies"), digest="digest")
_NEW = np.uint64(1 << 63)
_BUCKET_BYTES = 16 << 10

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs in a file, several blocks in a run, and chunks of hot keys."""
    monkeypatch.setattr(exchange, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(exchange, "RUN_BYTES", 5_000)
    monkeypatch.setattr(chunks, "LEAST_BYTES", 0)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(str(tmp_path))


def _texts(seed: int, count: int = 400) -> pa.RecordBatch:
    """Rows as `dedup.exact` emits them: some hashes in common between all files, one of many rows, and texts within a hash."""
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 1 << 64, count, dtype=np.uint64)
    hashes[: count // 3] = np.random.default_rng(0).integers(0, 1 << 64, count // 3, dtype=np.uint64)
    hashes[-count // 4 :] = 7 << 60
    ranks = rng.integers(0, 1 << 63, count, dtype=np.uint64) | _NEW
    arrays = [hashes, rng.integers(0, 2, count, dtype=np.uint64), ranks]
    keys = make_keys(seed, np.arange(count, dtype=np.uint64))
    return pa.RecordBatch.from_arrays([*map(pa.array, arrays), keys], schema=TEXTS)


def _ranges(*borders: int) -> Iterator[tuple[int, int]]:
    return pairwise([0, *borders, HASH_SPACE])


def _rows(root: Root, outputs: Iterable[ExchangeFile]) -> list[Row]:
    read = read_rows(root, list(outputs), (0,), (HASH_SPACE,))
    return [] if read is None else read.to_pylist()


def _run(root: Root, tasks: Sequence[Task], name: str) -> list[ExchangeFile]:
    """The files of one table that some tasks write."""
    records = [run_task(task, root, f"{number}") for number, task in enumerate(tasks)]
    return [output for record in records for output in record.of(name, ExchangeFile)]


@pytest.mark.parametrize("limit_bytes", [4_000, 1 << 20])
def test_reduce_of_equal_texts_drops_all_but_the_first_of_each(root: Root, limit_bytes: int) -> None:
    parts = [_texts(seed) for seed in (1, 2, 3)]
    files = tuple(write(root, f"{number}.exchange", rows, 50) for number, rows in enumerate(parts))
    tasks = [
        ReduceTask(
            step="dedup.exact/match", fingerprint=f"{start}", seed=1, stage=_STAGE, exchange="match", tables={"texts": files},
            start=start, stop=stop, limit_bytes=limit_bytes,
        )
        for start, stop in _ranges(1 << 60, 7 << 60, 12 << 60)
    ]  # fmt: skip
    expected, sizes = {}, {}
    rows = sorted((row for part in parts for row in part.to_pylist()), key=lambda row: [row[name] for name in TEXTS.names])
    for _, group in groupby(rows, key=lambda row: (row["hash"], row["digest"])):
        survivor, *others = (row["key"] for row in group)
        expected |= dict.fromkeys(others, survivor)
        sizes |= {survivor: len(others)} if others else {}
    drops = _rows(root, _run(root, tasks, "drops"))
    assert {row["key"]: row["survivor"] for row in drops} == expected
    assert len(drops) == len(expected) > 300
    assert {row["value"] for row in drops} == {1.0}
    found: dict[bytes, int] = {}
    for row in _rows(root, _run(root, tasks, "sizes")):
        found[row["key"]] = found.get(row["key"], 0) + row["size"]
    assert found == sizes


@pytest.mark.parametrize("limit_bytes", [700, 1 << 20])
@pytest.mark.slow
def test_gather_gives_each_document_its_first_drop_all_cuts_and_the_sum_of_its_sizes(root: Root, limit_bytes: int) -> None:
    rng = np.random.default_rng(4)
    found: dict[str, tuple[list[Row], tuple[ExchangeFile, ...]]] = {}
    for name, schema in FINAL_SCHEMAS.items():
        count = 300
        of_files = rng.integers(0, 7, count).astype(np.uint64) << np.uint64(61)
        columns = {
            "hash": pa.array(of_files),
            "key": make_keys(of_files, rng.integers(0, 8, count).astype(np.uint64)),
            "survivor": make_keys(1, rng.integers(0, 50, count).astype(np.uint64)),
            "value": pa.array(np.full(count, 0.5)),
            "start": pa.array(rng.integers(0, 9, count)),
            "stop": pa.array(rng.integers(9, 12, count)),
            "rule": pa.array(["span"] * count),
            "size": pa.array(rng.integers(1, 5, count)),
        }
        rows = pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)
        files = [write(root, f"{name}-{part}", rows.slice(100 * part, 100), 20) for part in range(3)]
        found[name] = rows.to_pylist(), tuple(files)
    files_by_table = {name: files for name, (_, files) in found.items()}
    tasks = [
        GatherTask(
            step="dedup.exact/decisions", fingerprint=f"{start}", seed=1, stage=_STAGE, tables=files_by_table, start=start,
            stop=stop, limit_bytes=limit_bytes,
        )
        for start, stop in _ranges(1 << 62, 1 << 63)
    ]  # fmt: skip
    for name, (rows, _) in found.items():
        words = ["key", *(each for each in FINAL_SCHEMAS[name].names if each in ("survivor", "start", "stop"))]
        wanted = sorted(rows, key=lambda row: [row[word] for word in words])
        if name != "cuts":
            groups = [list(group) for _, group in groupby(wanted, key=lambda row: row["key"])]
            sums = [{"size": sum(row["size"] for row in group)} if name == "sizes" else {} for group in groups]
            wanted = [{**group[0], **own} for group, own in zip(groups, sums)]
        assert _rows(root, _run(root, tasks, name)) == wanted


# ------------------------------------------------------------------------------------------------ merging


def _merges(files: Sequence[ExchangeFile]) -> list[MergeTask]:
    ranges = by_range({"texts": tuple(files)}, _BUCKET_BYTES)
    common = {"step": "merge", "seed": 0, "limit_bytes": _BUCKET_BYTES * 5 // 4}
    return [fingerprinted(MergeTask(**common, **own)) for own in ranges]


def _merged(root: Root, files: list[ExchangeFile]) -> list[ExchangeFile]:
    tasks = _merges(files)
    assert len(tasks) > 2
    return _run(root, tasks, "texts")


def test_merge_keeps_every_row_in_one_sorted_run_a_range_and_clears_the_ranks_of_earlier_rows_alone(root):
    parts = [_texts(seed, 500) for seed in (1, 2, 3)]
    files = [write(root, f"{number}", rows, 50, as_old=number == 0) for number, rows in enumerate(parts)]
    assert fan_in(files) > 3
    found = _merged(root, files)
    assert fan_in(found) == 1
    assert not any(one.is_reference for one in found)
    assert sum(one.row_bytes for one in found) == sum(one.row_bytes for one in files)
    for one in found:
        with root.open_input(one.path) as stream:
            blocks, _ = read_index(stream, one)
        assert len(blocks) > 3
        assert all(before.last <= block.first for before, block in pairwise(blocks))
    expected = [
        {**row, RANK: row[RANK] & ~int(_NEW)} if number == 0 else row
        for number, part in enumerate(parts)
        for row in part.to_pylist()
    ]
    expected.sort(key=lambda row: [row[name] for name in TEXTS.names])
    assert _rows(root, found) == expected
    assert _rows(root, _merged(root, found)) == expected  # ranks are not cleared again
    again = _merged(root, files[::-1])
    assert [one.checksum for one in again] == [one.checksum for one in found]


def test_merge_of_earlier_rows_is_another_task_than_that_of_new_ones(root: Root) -> None:
    files = [write(root, "rows", _texts(1), as_old=as_old) for as_old in (False, True)]
    prints = [{task.fingerprint for task in _merges([one])} for one in files]
    assert prints[0].isdisjoint(prints[1])
