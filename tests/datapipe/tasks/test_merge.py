"""Merging: exactly the rows of the files, in one sorted run a range; ranks of earlier runs are cleared once."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.config import load_mixture
from datapipe.exchange import files as exchange
from datapipe.exchange import tables
from datapipe.exchange.files import ExchangeWriter, read_index, sorted_rows
from datapipe.exchange.ranges import read_range
from datapipe.plan.expand import Expander
from datapipe.plan.outputs import ExchangeFile
from datapipe.plan.runs import fan_in
from datapipe.plan.work import HASH_SPACE, BoundStage
from datapipe.stage.tables import RANK
from datapipe.storage import Root
from datapipe.tasks.run_task import run_task
from stages.dedup.exact import Exact
from tests.support import dedup_runs, runs

pytestmark = pytest.mark.medium

_STAGE = BoundStage(name="dedup.exact", stage=Exact(), digest="digest")
_NEW = np.uint64(1 << 63)
_TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}\nexecution: {bucket_bytes: 16KiB}"


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs in a file, and several blocks in a run."""
    monkeypatch.setattr(exchange, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(tables, "RUN_BYTES", 5_000)


@pytest.fixture
def expander(tmp_path: Path) -> Expander:
    return Expander(load_mixture(runs.write_mixture(tmp_path, "  web: {path: none}", "stages: [dedup.exact]", _TAIL)))


def _rows(seed: int, count: int) -> pa.RecordBatch:
    """Rows as `dedup.exact` emits them: some hashes in common between all files, and one of many rows."""
    rng = np.random.default_rng(seed)
    (schema,) = _STAGE.stage.emits().values()
    hashes = rng.integers(0, 1 << 64, count, dtype=np.uint64)
    hashes[: count // 3] = np.random.default_rng(0).integers(0, 1 << 64, count // 3, dtype=np.uint64)
    hashes[-count // 5 :] = 7 << 60
    ranks = rng.integers(0, 1 << 63, count, dtype=np.uint64) | _NEW
    values = {"hash": pa.array(hashes), RANK: pa.array(ranks), "key": make_keys(seed, np.arange(count, dtype=np.uint64))}
    numbers = pa.array(rng.integers(0, 1 << 64, count, dtype=np.uint64))
    return pa.RecordBatch.from_arrays([values.get(name, numbers) for name in schema.names], schema=schema)


def _write(root: Root, path: str, rows: pa.RecordBatch, url: str = "") -> ExchangeFile:
    writer = ExchangeWriter(root, path, rows.schema, 8_000)
    for start in range(0, rows.num_rows, 50):
        writer.add(rows.slice(start, 50))
    return dataclasses.replace(writer.finish(), url=url)


def _merged(root: Root, expander: Expander, files: list[ExchangeFile]) -> list[ExchangeFile]:
    (table,) = _STAGE.stage.emits()
    tasks = expander.merge_tasks("merge", _STAGE, table, files)
    assert len(tasks) > 2
    records = [run_task(task, root, "1") for task in tasks]
    return [output for record in records for output in record.of(table, ExchangeFile)]


def test_merge_keeps_every_row_in_one_sorted_run_a_range(tmp_path: Path, expander: Expander):
    root, parts = Root(str(tmp_path)), [_rows(seed, 500) for seed in (1, 2, 3)]
    files = [_write(root, f"{number}.exchange", rows) for number, rows in enumerate(parts)]
    assert fan_in(files) > 3
    found = _merged(root, expander, files)
    assert fan_in(found) == 1
    assert sum(one.row_bytes for one in found) == sum(one.row_bytes for one in files)
    for one in found:
        with root.open_input(one.path) as stream:
            blocks, _ = read_index(stream, one)
        assert len(blocks) > 3
        assert all(before.last <= block.first for before, block in itertools.pairwise(blocks))
    expected = sorted_rows(pa.Table.from_batches(parts))
    assert read_range(root, found, 0, HASH_SPACE) == expected
    again = _merged(root, expander, files[::-1])
    assert [one.checksum for one in again] == [one.checksum for one in found]


def test_merge_of_earlier_and_new_rows_clears_the_ranks_of_the_earlier_ones_alone(tmp_path: Path, expander: Expander):
    root, old, new = Root(str(tmp_path)), _rows(1, 500), _rows(2, 500)
    files = [_write(root, "old.exchange", old, root.child_url("old.exchange")), _write(root, "new.exchange", new)]
    at = old.schema.get_field_index(RANK)
    cleared = pa.array(old.column(at).to_numpy() & ~_NEW)
    known = old.set_column(at, old.schema.field(at), cleared)
    found = _merged(root, expander, files)
    assert not any(one.is_reference for one in found)
    expected = sorted_rows(pa.Table.from_batches([known, new]))
    assert read_range(root, found, 0, HASH_SPACE) == expected
    assert read_range(root, _merged(root, expander, found), 0, HASH_SPACE) == expected


def test_merge_of_earlier_rows_is_another_task_than_that_of_new_ones(tmp_path: Path, expander: Expander):
    root, rows = Root(str(tmp_path)), _rows(1, 500)
    files = [_write(root, "rows.exchange", rows, url) for url in ("", root.child_url("rows.exchange"))]
    prints = [[task.fingerprint for task in expander.merge_tasks("merge", _STAGE, "texts", [one])] for one in files]
    assert not set(prints[0]) & set(prints[1])


@pytest.mark.slow
def test_merge_holds_no_more_than_its_limit_however_many_rows_its_range_has(tmp_path: Path, expander: Expander):
    root = Root(str(tmp_path))
    files = [_write(root, f"{number}.exchange", _rows(number, 2_500)) for number in range(4)]
    (table,) = _STAGE.stage.emits()
    (task,) = expander.merge_tasks("merge", _STAGE, table, files)[:1]
    task = dataclasses.replace(task, start=0, stop=HASH_SPACE, files=tuple(files))
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        record = run_task(task, root, "1")
    finally:
        pa.set_memory_pool(before)
    (merged,) = record.of(table, ExchangeFile)
    assert merged.rows == 10_000
    assert fan_in([merged]) == 1
    assert merged.row_bytes > 18 * task.limit_bytes
    assert pool.max_memory() < 8 * task.limit_bytes


def test_run_that_merges_files_makes_the_same_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All four stages, on more workers, are in `test_dedup_anywhere.py`."""
    corpus = dedup_runs.write_corpus(tmp_path / "corpus", num_pages=40)
    found: list[runs.Finished] = []
    for most_runs in (256, 2):
        monkeypatch.setattr("datapipe.plan.runs.MOST_RUNS", most_runs)
        mixture = dedup_runs.write_mixture(tmp_path / str(most_runs), corpus, "stages: [dedup.exact]")
        found.append(runs.run_mixture(mixture, overrides=["execution.bucket_bytes=1KiB"], make_engine=runs.InProcess))
    plain, merged = found
    assert [len(one.plan.of_kind("merge")) > 0 for one in found] == [False, True]
    assert merged.checksums == plain.checksums
    assert plain.report["total"]["documents"]["dropped"]
    assert merged.report["total"]["documents"] == plain.report["total"]["documents"]
