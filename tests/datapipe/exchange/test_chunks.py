"""Buckets of bounded size: every row once, whole hashes together, hot keys in chunks that begin with the group's first row."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.columns import numbers
from datapipe.exchange import chunks, files, ranges
from datapipe.exchange.chunks import read_bucket, read_chunks
from datapipe.exchange.ranges import HASH_SPACE
from datapipe.records.outputs import ExchangeFile
from datapipe.stage.tables import Exchange
from datapipe.storage.root import Root
from tests.support.exchange_rows import SCHEMA, Row, in_order, order, rows_of, uneven_hashes, write

LIMIT = 8_000

Bucket = Mapping[str, pa.RecordBatch]


@pytest.fixture(autouse=True, scope="module")
def _small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "RUN_BYTES", 30_000)
        patch.setattr(files, "BLOCK_BYTES", 1_500)
        patch.setattr(chunks, "LEAST_BYTES", 0)
        yield


def _read(root: Root, tables: Mapping[str, Sequence[ExchangeFile]], limit: int = LIMIT, **options) -> list[Bucket]:
    exchange = Exchange(name="reduce", inputs=tuple(tables), outputs={}, **options)
    held = {name: tuple(outputs) for name, outputs in tables.items()}
    return [dict(one) for one in read_chunks(root, held, dict.fromkeys(tables, SCHEMA), exchange, 0, HASH_SPACE, limit)]


def _check(found: Sequence[Bucket], expected: Mapping[str, list[Row]], group: Sequence[str], neighbours: bool) -> int:
    """Compares buckets with the rows that they should hold, hash by hash. Returns the number of chunks of hot keys."""
    pieces: dict[int, list[dict[str, list[Row]]]] = {}
    for bucket in found:
        rows = {name: part.to_pylist() for name, part in bucket.items()}
        assert all(own == sorted(own, key=order) for own in rows.values())
        for value in sorted({row["hash"] for own in rows.values() for row in own}):
            pieces.setdefault(value, []).append(
                {name: [row for row in own if row["hash"] == value] for name, own in rows.items()}
            )
    assert list(pieces) == sorted({row["hash"] for rows in expected.values() for row in rows})
    num_chunks = 0
    for value, parts in pieces.items():
        wanted = {name: [row for row in rows if row["hash"] == value] for name, rows in expected.items()}
        if len(parts) == 1:
            assert parts == [wanted]
            continue
        num_chunks += len(parts)
        (cut,) = [name for name in wanted if any(part[name] != wanted[name] for part in parts)]
        assert len(wanted[cut]) == max(map(len, wanted.values()))
        rows, done = wanted[cut], 0
        of_group = [tuple(row[name] for name in group) for row in rows]
        for part in parts:
            first = of_group.index(of_group[done])
            heads = [rows[first]] * (first < done) + [rows[done - 1]] * (neighbours and first < done - 1)
            own = part[cut][len(heads) :]
            assert own
            assert part[cut] == [*heads, *rows[done : done + len(own)]]
            done += len(own)
        assert done == len(rows)
    return num_chunks


GROUPS = st.sampled_from([("hash",), ("hash", "digest")])
TABLES = st.sampled_from([("rows",), ("beside",), ("beside",), ("rows", "beside")])


@pytest.mark.slow
@settings(max_examples=10)
@given(
    seed=st.integers(0, 1 << 32),
    neighbours=st.booleans(),
    group=GROUPS,
    small=st.integers(0, 60),
    slice_bytes=st.sampled_from([0, 0, 60, 2_000]),
)
def test_buckets_hold_all_rows_once_in_order_and_hot_keys_in_chunks(
    tmp_path_factory, seed, neighbours, group, small, slice_bytes
):
    """Where the task may hold all rows (`slice_bytes`), a hash of more than `HOT_BYTES` still comes in chunks."""
    root, hashes = Root(str(tmp_path_factory.mktemp("chunks"))), uneven_hashes(seed, 20)
    parts = [rows_of(hashes[::2]), rows_of(hashes[1::2], 100_000)]
    beside = rows_of([*hashes[: 8 * small : 8], *([12345] * (small > 50))], 200_000)
    tables = {
        "rows": [write(root, f"{number}", part) for number, part in enumerate(parts)],
        "beside": [write(root, "b", beside)],
    }
    expected = {"rows": in_order(parts), "beside": in_order([beside])}
    with pytest.MonkeyPatch.context() as patch:
        if slice_bytes:
            patch.setattr(chunks, "HOT_BYTES", 4_000)
            patch.setattr(ranges, "SLICE_BYTES", slice_bytes)
        found = _read(root, tables, 1 << 22 if slice_bytes else LIMIT, neighbours=neighbours, group=group)
    num_chunks = _check(found, expected, group, neighbours)
    most = max(hashes.count(value) for value in set(hashes))
    assert num_chunks > 1 or most < 200  # a row takes about 60 bytes
    assert all(bucket["rows"].nbytes < 2 * LIMIT for bucket in found)
    held = {name: tuple(outputs) for name, outputs in tables.items()}
    whole = read_bucket(root, {**held, "none": ()}, {**dict.fromkeys(held, SCHEMA), "none": SCHEMA}, 0, HASH_SPACE)
    assert {name: rows.to_pylist() for name, rows in whole.items()} == {**expected, "none": []}
    assert whole["none"].schema == SCHEMA


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 1 << 32), st.booleans(), GROUPS, st.sampled_from([0.0, 0.02, 0.5, 1.0, 1.0]), TABLES)
def test_old_rows_of_a_join_come_only_beside_new_rows_of_their_hash(tmp_path_factory, seed, neighbours, group, share, named):
    """A bucket has all new rows, and the old rows with the hash of a new row in one of the named tables."""
    root, rng = Root(str(tmp_path_factory.mktemp("join"))), np.random.default_rng(seed)
    hashes = uneven_hashes(seed, 20)
    chosen = set(rng.choice(np.array(hashes, np.uint64), int(share * len(hashes))).tolist())
    new, beside = rows_of([value for value in hashes if value in chosen]), rows_of(sorted(chosen)[::2], 50_000)
    old = [rows_of(hashes[part::3], 100_000 * (part + 1)) for part in range(3)]
    files_of_old = [write(root, f"old-{number}", part, as_old=True) for number, part in enumerate(old)]
    tables = {"rows": [write(root, "new", new), *files_of_old], "beside": [write(root, "beside", beside)]}
    found = _read(root, tables, old_beside=named, neighbours=neighbours, group=group)
    wanted = {row["hash"] for name in named for row in {"rows": new, "beside": beside}[name].to_pylist()}
    there = pa.Table.from_batches(old).to_pylist()
    beside_new = pa.RecordBatch.from_pylist([row for row in there if row["hash"] in wanted], schema=SCHEMA)
    _check(found, {"rows": in_order([new, beside_new]), "beside": in_order([beside])}, group, neighbours)
    assert all(bucket["rows"].nbytes < 3 * LIMIT for bucket in found)


def test_blocks_of_old_rows_without_a_wanted_hash_are_not_fetched(tmp_path, monkeypatch):
    root = Root(str(tmp_path))
    old = write(root, "old", rows_of(list(range(0, 20_000, 10))), as_old=True)
    new = write(root, "new", rows_of([40, 70], 90_000))
    fetched: list[str] = []
    decoded = files._decoded
    monkeypatch.setattr(files, "_decoded", lambda *given: fetched.append(given[1].path) or decoded(*given))
    (bucket,) = _read(root, {"rows": [new, old]}, old_beside=("rows",))
    assert numbers(bucket["rows"].column("hash")).tolist() == [40, 40, 70, 70]
    assert fetched.count("old") == 1
    assert sum(bucket["rows"].num_rows for bucket in _read(root, {"rows": [new, old]})) == 2002
    assert fetched.count("old") > 20
