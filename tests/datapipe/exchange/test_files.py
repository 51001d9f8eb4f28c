"""Whatever is written to exchange files comes back once and in order, from any range, however it was cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import DatapipeError, UserError
from datapipe.exchange import files, ranges
from datapipe.exchange.files import sort_words
from datapipe.exchange.partitions import TableWriter, read_table
from datapipe.exchange.ranges import read_blocks, read_portion, read_range, read_slices
from datapipe.exchange.tables import TableWriters
from datapipe.plan.work import HASH_SPACE
from datapipe.storage import Root
from tests.support import exchange_rows
from tests.support.exchange_rows import SCHEMA, Row, in_order, order, rows_of, uneven_hashes


@pytest.mark.medium
@settings(max_examples=12)
@given(
    seed=st.integers(0, 1 << 32),
    num_files=st.integers(1, 4),
    run_bytes=st.sampled_from([3_000, 30_000, 1 << 20]),
    block_bytes=st.sampled_from([300, 1_500, 1 << 20]),
    limit_bytes=st.sampled_from([None, 700, 5_000]),
    prefix=st.sampled_from([None, 1, 2]),
    borders=st.lists(st.tuples(st.integers(0, 10_000), st.booleans(), st.integers(-1, 1)), max_size=4),
)
def test_rows_of_any_ranges_are_those_that_python_sorts(
    tmp_path_factory, seed, num_files, run_bytes, block_bytes, limit_bytes, prefix, borders
):
    root, hashes = Root(str(tmp_path_factory.mktemp("ranges"))), uneven_hashes(seed)
    parts = [rows_of(hashes[start::num_files], 1000 * start) for start in range(num_files)]
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in [
            (files, "RUN_BYTES", run_bytes), (files, "BLOCK_BYTES", block_bytes), (ranges, "SLICE_BYTES", 1_000),
        ]:  # fmt: skip
            patch.setattr(module, name, value)
        outputs = [exchange_rows.write(root, f"{number}", part) for number, part in enumerate(parts)]
        expected = in_order(parts)
        for output, part in zip(outputs, parts):
            own = in_order([part])
            assert (output.rows, output.first, output.last) == (len(own), own[0]["hash"], own[-1]["hash"])
            content = root.read_bytes(output.path)
            assert (output.bytes, output.checksum) == (len(content), f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}")
            assert in_order(read_blocks(root, output, (0,), (HASH_SPACE,))) == own
        for start, stop in pairwise(_bounds(expected, borders)):
            wanted = [row for row in expected if start <= order(row) < stop]
            found = list(read_slices(root, outputs, start, stop, limit_bytes, prefix))
            assert [row for rows in found for row in rows.to_pylist()] == wanted
            ends = [tuple(word[row] for word in sort_words(rows, prefix)) for rows in found for row in (0, -1)]
            assert prefix is None or all(last != first for last, first in zip(ends[1::2], ends[2::2]))
            if len(start) == len(stop) == 1:
                together = read_range(root, outputs, start[0], stop[0])
                assert (together.to_pylist() if together else []) == wanted
            held, end = read_portion(root, outputs, start, stop, limit_bytes, prefix)
            assert in_order(held) == [row for row in wanted if order(row) < end]
            assert limit_bytes is None or prefix or sum(part.nbytes for part in held) < 2 * (limit_bytes + block_bytes)


def _bounds(rows: list[Row], borders: list[tuple[int, bool, int]]) -> list[tuple[int, ...]]:
    """Ascending bounds from the first to the last that exist; those between lie at, before or behind rows."""
    found: list[tuple[int, ...]] = []
    for number, is_long, moved in borders:
        row = rows[number % len(rows)]
        words = (row["hash"], row["digest"]) if is_long else (row["hash"],)
        found.append((*words[:-1], max(0, words[-1] + moved)))
    return [(0,), *sorted(found), (HASH_SPACE,)]


@pytest.mark.parametrize(("run_bytes", "num_runs"), [(15_000, 4), (30_000, 2), (1 << 20, 1)])
def test_file_says_in_how_many_sorted_runs_its_rows_are(tmp_path, monkeypatch, run_bytes, num_runs):
    monkeypatch.setattr(files, "RUN_BYTES", run_bytes)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1_500)
    rows = rows_of(np.random.default_rng(1).integers(0, 1 << 64, 1333, dtype=np.uint64).tolist())
    root = Root(str(tmp_path))
    output = exchange_rows.write(root, "a", rows)
    assert output.runs == num_runs
    assert output.row_bytes == pytest.approx(rows.nbytes, rel=0.01)  # slices count their offsets and validity too
    again = [exchange_rows.write(root, f"{batch_rows}", rows, batch_rows) for batch_rows in (13, rows.num_rows)]
    assert run_bytes < 1 << 20 or {one.checksum for one in again} == {output.checksum}  # within a run, batches do not matter
    empty = exchange_rows.write(root, "empty", rows.slice(0, 0))
    assert (empty.rows, empty.runs, read_range(root, [empty], 0, HASH_SPACE)) == (0, 0, None)


def test_rows_of_a_range_hold_on_to_no_more_of_their_blocks(tmp_path):
    """A bucket has a few rows of each of thousands of files: what it holds is those rows."""
    root, hashes = Root(str(tmp_path)), list(range(0, HASH_SPACE, HASH_SPACE // 3000))
    outputs = [exchange_rows.write(root, f"{number}", rows_of(hashes, number)) for number in range(20)]
    before = pa.total_allocated_bytes()
    parts = [part for output in outputs for part in read_blocks(root, output, (0,), (HASH_SPACE // 30,))]
    assert len(parts) == 20
    assert pa.total_allocated_bytes() - before < 2 * sum(part.nbytes for part in parts)


def test_tables_of_a_task_have_a_file_each_where_they_have_rows(tmp_path):
    root, rows = Root(str(tmp_path)), rows_of([5, 3])
    other = pa.schema([("hash", pa.uint64())])
    writers = TableWriters(root, "attempt", {"rows": SCHEMA, "others": other, "none": SCHEMA})
    assert writers.add({"rows": rows, "none": rows.slice(0, 0)}, "a stage") == rows.nbytes
    for wrong in ({"else": rows}, {"others": rows}):
        with pytest.raises(DatapipeError, match="a stage"):
            writers.add(wrong, "a stage")
    ((name, (output,)),) = writers.finish("emitted.").items()
    assert (name, output.path) == ("emitted.rows", "attempt/rows.exchange")
    assert in_order(read_blocks(root, output, (0,), (HASH_SPACE,))) == in_order([rows])


def test_table_of_documents_has_the_columns_and_types_of_its_first_batch(tmp_path):
    root, writer = Root(str(tmp_path)), TableWriter(Root(str(tmp_path)), "rows.arrow")
    assert TableWriter(root, "empty.arrow").finish() == ()
    writer.add(pa.record_batch({"a": pa.array([1, 2]), "b": ["x", "y"]}))
    writer.add(pa.record_batch({"b": ["z"], "a": pa.array([3], pa.int8())}))
    for wrong in ({"a": [1]}, {"a": [1], "c": ["z"]}, {"a": ["many"], "b": ["z"]}):
        with pytest.raises(UserError):
            writer.add(pa.record_batch(wrong))
    (output,) = writer.finish()
    assert output.rows == 3
    assert [row for part in read_table(root, output) for row in part.to_pylist()] == [
        {"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"},
    ]  # fmt: skip
    assert [part.to_pydict() for part in read_table(root, output, ["b", "none"])] == [{"b": ["x", "y"]}, {"b": ["z"]}]
