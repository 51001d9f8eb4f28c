"""Buckets of bounded size: every row once, whole hashes together, chunks of hot keys that begin with the first row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import KEY_TYPE, make_keys, numbers
from datapipe.exchange import chunks, files, ranges
from datapipe.exchange.chunks import read_chunks
from datapipe.exchange.files import ExchangeWriter, sort_words
from datapipe.exchange.ranges import read_blocks, read_portion, read_range, read_slices
from datapipe.plan.outputs import ExchangeFile
from datapipe.plan.work import HASH_SPACE
from datapipe.stage.tables import Exchange
from datapipe.storage import Root

SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("digest", pa.uint64(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)
LIMIT = 8_000


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(files, "RUN_BYTES", 30_000)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1_500)
    monkeypatch.setattr(chunks, "LEAST_BYTES", 0)


def _rows(hashes: Sequence[int], start: int = 0, digests: Sequence[int] | None = None) -> pa.RecordBatch:
    """Rows in a random order; the last column tells the key."""
    places = np.random.default_rng(start).permutation(np.arange(start, start + len(hashes), dtype=np.uint64))
    array = np.array(digests if digests is not None else np.zeros(len(hashes)), np.uint64)
    keys, texts = make_keys(7, places), pa.array([f"row {place}" for place in places])
    return pa.record_batch([pa.array(np.array(hashes, np.uint64)), pa.array(array), keys, texts], schema=SCHEMA)


def _write(root: Root, path: str, rows: pa.RecordBatch) -> ExchangeFile:
    writer = ExchangeWriter(root, path, SCHEMA)
    for at in range(0, rows.num_rows, 100):
        writer.add(rows.slice(at, 100))
    return writer.finish()


def _read(root: Root, tables: dict[str, tuple[ExchangeFile, ...]], **options) -> list[dict[str, pa.RecordBatch]]:
    exchange = Exchange(name="reduce", inputs=tuple(tables), outputs={}, **options)
    schemas = dict.fromkeys(tables, SCHEMA)
    return [dict(one) for one in read_chunks(root, tables, schemas, exchange, 0, HASH_SPACE, LIMIT)]


def _uneven(seed: int) -> list[int]:
    """Hashes of which some come once and some hundreds of times, the first and the last there are among them."""
    generator = np.random.default_rng(seed)
    distinct = [0, 2**64 - 1, *generator.integers(0, 1 << 64, 60, dtype=np.uint64).tolist()]
    counts = generator.geometric(0.5, len(distinct)) ** 3
    return [one for one, count in zip(distinct, counts) for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
def test_chunks_without_their_repeated_heads_are_all_rows_in_order(tmp_path, seed):
    root = Root(str(tmp_path))
    hashes = _uneven(seed)
    parts = [_rows(hashes[::2]), _rows(hashes[1::2], start=100_000)]
    outputs = tuple(_write(root, f"{number}", part) for number, part in enumerate(parts))
    found = [bucket["rows"] for bucket in _read(root, {"rows": outputs})]
    assert all(piece.nbytes < 2 * LIMIT for piece in found)
    once = {row["key"]: row for row in pa.Table.from_batches(found).to_pylist()}  # in the order of their first coming
    expected = read_range(root, outputs, 0, HASH_SPACE)
    assert expected is not None
    assert list(once.values()) == expected.to_pylist()


def test_chunks_of_a_hot_key_begin_with_its_first_row_and_the_last_before(tmp_path):
    root = Root(str(tmp_path))
    output = _write(root, "a", _rows([5] * 700 + [9] * 3))
    first = read_range(root, [output], 5, 6).slice(0, 1).to_pylist()[0]
    for neighbours in (False, True):
        found = [bucket["rows"].to_pylist() for bucket in _read(root, {"rows": (output,)}, neighbours=neighbours)]
        hot_key = found[:-1]
        assert len(hot_key) > 3
        assert [piece[0] for piece in hot_key] == [first] * len(hot_key)
        if neighbours:
            assert [piece[1] for piece in hot_key[1:]] == [piece[-1] for piece in hot_key[:-1]]
        assert [row["hash"] for row in found[-1]] == [9, 9, 9]


def test_chunks_of_groups_within_a_hash_have_heads_of_their_own(tmp_path):
    """Two texts of one hash: the second group's chunks begin with its own first row."""
    root = Root(str(tmp_path))
    output = _write(root, "a", _rows([5] * 900, digests=[1] * 400 + [2] * 500))
    found = [bucket["rows"] for bucket in _read(root, {"rows": (output,)}, group=("hash", "digest"))]
    firsts = {}
    for row in read_range(root, [output], 5, 6).to_pylist():
        firsts.setdefault(row["digest"], row["key"])
    for piece in found:
        rows = piece.to_pylist()
        for at, row in enumerate(rows):
            if at == 0 or row["digest"] != rows[at - 1]["digest"]:
                assert row["key"] == firsts[row["digest"]]


def test_chunks_of_a_hot_key_have_all_rows_of_the_smaller_table(tmp_path):
    root = Root(str(tmp_path))
    large, small = _write(root, "a", _rows([3] + [5] * 600 + [8])), _write(root, "b", _rows([5, 5, 8], start=5000))
    found = _read(root, {"small": (small,), "large": (large,)})
    hot_key = [bucket for bucket in found if 5 in numbers(bucket["large"].column("hash"))]
    assert len(hot_key) > 3
    assert {tuple(numbers(bucket["small"].column("hash")).tolist()) for bucket in hot_key} == {(5, 5)}
    others = [(numbers(one["large"].column("hash")).tolist(), numbers(one["small"].column("hash")).tolist()) for one in found]
    assert ([3], []) in others
    assert ([8], [8]) in others


def test_portions_hold_the_limit_and_keep_equal_prefixes_together(tmp_path):
    root = Root(str(tmp_path))
    output = _write(root, "a", _rows([1] * 300 + [2] * 300 + [3]))
    at, sizes = (0,), []
    while at < (HASH_SPACE,):
        parts, at = read_portion(root, [output], at, (HASH_SPACE,), LIMIT, 1)
        sizes.append(sorted({hash for part in parts for hash in numbers(part.column("hash")).tolist()}))
    assert [one for part in sizes for one in part] == [1, 2, 3]


def test_chunks_of_a_hot_key_that_the_task_may_hold_are_slices_of_it(tmp_path, monkeypatch):
    """All rows are held at once, and the stage still gets no more than a slice of a hash that is larger than `HOT_BYTES`."""
    monkeypatch.setattr(chunks, "HOT_BYTES", 4_000)
    monkeypatch.setattr(ranges, "SLICE_BYTES", 2_000)
    root = Root(str(tmp_path))
    hashes = [3] + [5] * 600 + [6] * 20 + [8]
    large, small = _write(root, "a", _rows(hashes)), _write(root, "b", _rows([5, 5, 8], start=5000))
    exchange, tables = Exchange(name="reduce", inputs=("large", "small"), outputs={}), {"large": (large,), "small": (small,)}
    found = [dict(one) for one in read_chunks(root, tables, dict.fromkeys(tables, SCHEMA), exchange, 0, HASH_SPACE, 1 << 20)]
    hot_key = [bucket for bucket in found if 5 in numbers(bucket["large"].column("hash"))]
    assert len(hot_key) > 5
    assert all(bucket["large"].nbytes < 3 * 2_000 and bucket["small"].num_rows == 2 for bucket in hot_key)
    first = hot_key[0]["large"].slice(0, 1)
    assert all(bucket["large"].slice(0, 1).equals(first) for bucket in hot_key)
    once = {row["key"]: row for bucket in found for row in bucket["large"].to_pylist()}
    assert list(once.values()) == _expected(root, [large])


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("limit_bytes", [None, 700, 5_000])
@pytest.mark.parametrize("prefix", [None, 1, 3])
def test_slices_are_all_rows_in_order_and_keep_equal_prefixes_together(tmp_path, monkeypatch, seed, limit_bytes, prefix):
    monkeypatch.setattr(ranges, "SLICE_BYTES", 1_000)
    root, rng = Root(str(tmp_path)), np.random.default_rng(seed)
    hashes = _uneven(seed)
    digests = rng.integers(0, 3, len(hashes)).tolist()
    parts = [_rows(hashes[start::3], 1000 * start, digests[start::3]) for start in range(3)]
    outputs = [_write(root, f"{number}", part) for number, part in enumerate(parts)]
    found = list(read_slices(root, outputs, (0,), (HASH_SPACE,), limit_bytes, prefix))
    assert [row for rows in found for row in rows.to_pylist()] == _expected(root, outputs)
    assert len(found) > 10
    if prefix is not None:
        ends = [tuple(word[row] for word in sort_words(rows, prefix)) for rows in found for row in (0, -1)]
        assert all(before != after for before, after in zip(ends[1::2], ends[2::2]))


def _expected(root: Root, outputs: Sequence[ExchangeFile]) -> list[dict[str, object]]:
    """All rows of files, sorted by Python."""
    rows = [row for output in outputs for block in read_blocks(root, output, (0,), (HASH_SPACE,)) for row in block.to_pylist()]
    return sorted(rows, key=lambda row: (row["hash"], row["digest"], row["key"]))


def _as_old(root: Root, output: ExchangeFile) -> ExchangeFile:
    return replace(output, url=root.child_url(output.path))


@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_old_rows_of_a_join_come_only_beside_new_rows_of_their_hash(tmp_path, seed, share):
    """Of a join, a bucket has all new rows, and the old rows with the hash of a new row in one of the named tables. Hot keys
    come in chunks as ever."""
    root, rng = Root(str(tmp_path)), np.random.default_rng(seed)
    hashes = _uneven(seed)
    chosen = set(rng.choice(np.array(hashes, np.uint64), max(1, int(share * len(hashes)))).tolist())
    new = _write(root, "new", _rows([value for value in hashes if value in chosen]))
    beside = _write(root, "beside", _rows(sorted(chosen)[::2], start=50_000))
    old = tuple(_as_old(root, _write(root, f"old-{part}", _rows(hashes[part::3], 100_000 * (part + 1)))) for part in range(3))
    tables = {"rows": (new, *old), "beside": (beside,)}
    for named in (("rows",), ("beside",), ("rows", "beside")):
        found = _read(root, tables, old_beside=named)
        once = {row["key"] for bucket in found for row in bucket["rows"].to_pylist()}
        wanted = {row["hash"] for name in named for row in _expected(root, [{"rows": new, "beside": beside}[name]])}
        expected = {row["key"] for row in _expected(root, [new])}
        expected |= {row["key"] for row in _expected(root, old) if row["hash"] in wanted}
        assert once == expected
        assert {row["key"] for bucket in found for row in bucket["beside"].to_pylist()} == {
            row["key"] for row in _expected(root, [beside])
        }
        assert all(bucket["rows"].nbytes < 3 * LIMIT for bucket in found)


def test_blocks_of_old_rows_without_a_wanted_hash_are_not_fetched(tmp_path, monkeypatch):
    root = Root(str(tmp_path))
    old = _as_old(root, _write(root, "old", _rows(list(range(0, 20_000, 10)))))
    new = _write(root, "new", _rows([40, 70], start=90_000))
    fetched = []
    read_block = files.read_block
    monkeypatch.setattr(ranges, "read_block", lambda *a: fetched.append(a[1].path) or read_block(*a))
    (bucket,) = _read(root, {"rows": (new, old)}, old_beside=("rows",))
    assert numbers(bucket["rows"].column("hash")).tolist() == [40, 40, 70, 70]
    assert fetched.count("old") == 1
    fetched.clear()
    assert sum(bucket["rows"].num_rows for bucket in _read(root, {"rows": (new, old)})) == 2002
    assert fetched.count("old") > 20


def test_no_old_row_comes_where_there_is_no_new_one(tmp_path):
    root = Root(str(tmp_path))
    old = _as_old(root, _write(root, "old", _rows(_uneven(1))))
    assert _read(root, {"rows": (old,)}, old_beside=("rows",)) == []
