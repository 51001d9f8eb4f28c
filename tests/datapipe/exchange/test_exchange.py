"""Rows of exchange files come back once and in order, from any range; every damaged bit of a committed file is found."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.columns import keys_from, make_keys
from datapipe.engine.protocol import failure_of
from datapipe.errors import CorruptionError
from datapipe.exchange import files, ranges
from datapipe.exchange.files import ExchangeWriter, TableWriters, sort_words
from datapipe.exchange.ranges import HASH_SPACE, read_blocks, read_portion, read_rows, read_slices
from datapipe.exchange.tables import TableWriter, committed_bytes, read_table
from datapipe.records.checksum import READINGS, file_checksum
from datapipe.records.outputs import ExchangeFile, OutputFile
from datapipe.shards import schemas
from datapipe.stage.documents import BASE_FIELDS
from datapipe.stage.tables import FINAL_SCHEMAS
from datapipe.steps.decisions import KeyedRows, drops_of
from datapipe.storage.root import Root
from stages.dedup.exact import TEXTS
from tests.support import exchange_rows
from tests.support.exchange_rows import SCHEMA, Row, in_order, order, rows_of, uneven_hashes
from tests.support.packed_shards import RemoteRoot

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@settings(max_examples=8)
@given(
    seed=st.integers(0, 1 << 32),
    num_files=st.integers(1, 4),
    run_bytes=st.sampled_from([3_000, 30_000, 1 << 20]),
    block_bytes=st.sampled_from([300, 1_500, 1 << 20]),
    limit_bytes=st.sampled_from([None, 700, 5_000]),
    prefix=st.sampled_from([None, 1, 2]),
    borders=st.lists(st.tuples(st.integers(0, 10_000), st.booleans(), st.integers(-1, 1)), max_size=4),
)
@pytest.mark.slow
def test_rows_of_any_ranges_are_those_that_python_sorts(
    tmp_path_factory, seed, num_files, run_bytes, block_bytes, limit_bytes, prefix, borders
):
    root, hashes = Root(str(tmp_path_factory.mktemp("ranges"))), uneven_hashes(seed, 20)
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
                together = read_rows(root, outputs, start, stop)
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
def test_file_reports_in_how_many_sorted_runs_its_rows_are(tmp_path, monkeypatch, run_bytes, num_runs):
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
    assert (empty.rows, empty.runs, read_rows(root, [empty], (0,), (HASH_SPACE,))) == (0, 0, None)


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
    assert writers.add({"rows": rows, "none": rows.slice(0, 0)}) == rows.nbytes
    ((name, (output,)),) = writers.finish("emitted.").items()
    assert (name, output.path) == ("emitted.rows", "attempt/rows.exchange")
    assert in_order(read_blocks(root, output, (0,), (HASH_SPACE,))) == in_order([rows])


def test_table_of_documents_is_read_in_its_order_and_by_columns(tmp_path):
    root, writer = Root(str(tmp_path)), TableWriter(Root(str(tmp_path)), "rows.arrow")
    assert TableWriter(root, "empty.arrow").finish() == ()
    writer.add(pa.record_batch({"a": pa.array([1, 2]), "b": ["x", "y"]}))
    writer.add(pa.record_batch({"a": [3], "b": ["z"]}))
    (output,) = writer.finish()
    assert output.rows == 3
    assert [row for part in read_table(root, output) for row in part.to_pylist()] == [
        {"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"},
    ]  # fmt: skip
    assert [part.to_pydict() for part in read_table(root, output, ["b", "none"])] == [{"b": ["x", "y"]}, {"b": ["z"]}]


# ------------------------------------------------------------------------------------------------ damage

_KEYS = make_keys(9, np.arange(3, dtype=np.uint64))
_HASHES = pa.array(np.full(3, 9, np.uint64))
_OTHERS = keys_from(np.full((3, 16), 7, np.uint8))

Written = tuple[OutputFile, Callable[[Root], object]]
"""A file, and what reads it again."""


def _exchange(root: Root, schema: pa.Schema, *arrays: pa.Array) -> ExchangeFile:
    writer = ExchangeWriter(root, "rows", schema)
    if arrays:
        writer.add(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
    return writer.finish()


def _range(output: ExchangeFile) -> Written:
    return output, lambda root: read_rows(root, [output], (0,), (HASH_SPACE,))


def _table(root: Root, schema: pa.Schema, row: dict[str, object]) -> Written:
    writer = TableWriter(root, "rows")
    writer.add(pa.RecordBatch.from_pylist([{"key": _KEYS[0].as_py(), "id": "a:1", **row}], schema=schema))
    (output,) = writer.finish()
    return output, lambda root: list(read_table(root, output))


def emitted(root: Root) -> Written:
    return _range(_exchange(root, TEXTS, _HASHES, _HASHES, _HASHES, _KEYS))


def no_rows(root: Root) -> Written:
    return _range(_exchange(root, TEXTS))


def tokens(root: Root) -> Written:
    schema = schemas.tokens(pa.uint16())
    return _range(_exchange(root, schema, _HASHES, _KEYS, pa.array([[1, 2, 3], [4], [5, 6]], schema.field("tokens").type)))


def decisions(root: Root) -> Written:
    output = _exchange(root, FINAL_SCHEMAS["drops"], _HASHES, _KEYS, _OTHERS, pa.array([0.5, 1.0, 0.25]))

    def read(root: Root) -> object:
        return [found.tolist() for found in drops_of(KeyedRows.open(root, [output]), _KEYS)]

    return output, read


def documents(root: Root) -> Written:
    return _table(root, pa.schema(BASE_FIELDS), {"text": "some text"})


def quarantine(root: Root) -> Written:
    row = {"path": "a.jsonl", "place": 7, "stage": "read", "error": "no JSON", "excerpt": b"{"}
    return _table(root, schemas.QUARANTINE, row)


def used_ids(root: Root) -> Written:
    root.write_atomic("rows", bytes(range(40)))
    checksum, size = file_checksum(root, "rows")
    output = OutputFile(path="rows", rows=3, bytes=size, checksum=checksum)
    return output, lambda root: committed_bytes(root, output)


KINDS = pytest.mark.parametrize(
    "write", [emitted, no_rows, tokens, decisions, documents, quarantine, used_ids], ids=lambda kind: kind.__name__
)


@KINDS
@pytest.mark.parametrize("kind", [pytest.param(Root, marks=pytest.mark.slow), RemoteRoot])
def test_every_flipped_bit_and_other_length_of_a_committed_file_is_found_and_the_file_is_named(tmp_path, write, kind):
    output, read = write(Root(str(tmp_path)))
    root, path = kind(str(tmp_path)), tmp_path / output.path
    content = path.read_bytes()
    sound = read(root)
    step = 1 if isinstance(output, ExchangeFile) and kind is Root else 37  # one checksum covers the other files
    damaged = [(content * 2)[:size] for size in (0, 1, len(content) - 10, len(content) - 1, len(content) + 1, 2 * len(content))]
    if isinstance(output, ExchangeFile):
        damaged += [content[:-8] + b"DPXCHG03", content[:-8] + b"SOMEELSE"]
    for bit in range(0, 8 * len(content), step):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(CorruptionError, match=output.path) as raised:
            read(root)
        assert failure_of(raised.value).kind == "damage"
    path.write_bytes(content)
    assert read(root) == sound


def test_table_that_is_too_large_to_hold_is_verified_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.exchange.tables.HELD_BYTES", 10)
    output, read = documents(Root(str(tmp_path)))
    content = bytearray((tmp_path / output.path).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / output.path).write_bytes(content)
    with pytest.raises(CorruptionError):
        read(RemoteRoot(str(tmp_path)))


@pytest.mark.parametrize("write", [emitted, documents, used_ids], ids=lambda kind: kind.__name__)
def test_file_of_a_store_is_read_again_and_damaged_only_where_that_does_not_help(store, write):
    root = Root(f"s3://outputs/{write.__name__}{store.query}")
    _, read = write(root)
    sound = read(root)
    for after in (0, 150, 10_000):
        failing = store.fail("flip", path="rows", after=after, times=READINGS - 1)
        assert read(root) == sound
        assert failing.hits == READINGS - 1
    store.fail("flip", path="rows", times=None)
    with pytest.raises(CorruptionError, match="rows: ") as raised:
        read(root)
    assert f"read {READINGS} times" in failure_of(raised.value).message
