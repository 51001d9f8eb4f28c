"""The exchange: every row comes back once, in order, whatever the range and however many runs were written."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import KEY_TYPE, make_keys
from datapipe.errors import CorruptionError
from datapipe.exchange import files as exchange
from datapipe.exchange.files import ExchangeWriter
from datapipe.exchange.ranges import read_blocks, read_range
from datapipe.plan.expand import hash_ranges
from datapipe.plan.outputs import ExchangeFile
from datapipe.plan.work import HASH_SPACE
from datapipe.storage import Root

SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("payload", pa.int64(), nullable=False),
    ]
)


def _rows(rng: np.random.Generator, start: int, count: int) -> pa.RecordBatch:
    hashes = rng.integers(0, 1 << 64, count, dtype=np.uint64)
    hashes[: count // 10] = np.uint64(HASH_SPACE - 1)  # the last hash there is
    keys = make_keys(7, np.arange(start, start + count, dtype=np.uint64))
    return pa.record_batch([pa.array(hashes), keys, pa.array(np.arange(start, start + count))], schema=SCHEMA)


def _write(root: Root, path: str, batches: list[pa.RecordBatch]) -> ExchangeFile:
    writer = ExchangeWriter(root, path, SCHEMA)
    for batch in batches:
        writer.add(batch)
    return writer.finish()


@pytest.mark.parametrize("num_ranges", [1, 2, 7])
def test_exchange_ranges_that_cover_all_give_every_row_once_in_order(tmp_path, monkeypatch, num_ranges):
    monkeypatch.setattr(exchange, "RUN_BYTES", 20_000)  # several sorted runs in a file
    monkeypatch.setattr(exchange, "BLOCK_BYTES", 2_000)
    rng, root = np.random.default_rng(0), Root(str(tmp_path))
    batches = [_rows(rng, start, 700) for start in range(0, 7000, 700)]
    files = [_write(root, "a.exchange", batches[:6]), _write(root, "b.exchange", batches[6:]), _write(root, "c.exchange", [])]
    assert [output.rows for output in files] == [4200, 2800, 0]

    found = [read_range(root, files, start, stop) for start, stop in hash_ranges(num_ranges * 10, 10)]
    together = pa.Table.from_batches([part for part in found if part is not None])

    expected = pa.Table.from_batches(batches).sort_by([("hash", "ascending"), ("payload", "ascending")])
    assert together.equals(expected)


def test_exchange_file_does_not_depend_on_how_rows_were_batched(tmp_path):
    rng, root = np.random.default_rng(1), Root(str(tmp_path))
    rows = _rows(rng, 0, 1000)
    one = _write(root, "one", [rows])
    many = _write(root, "many", [rows.slice(start, 13) for start in range(0, 1000, 13)])
    assert one.checksum == many.checksum


def test_exchange_rows_of_a_range_hold_on_to_no_more_of_their_blocks(tmp_path):
    """A bucket has a few rows of each of thousands of files: what it holds is those rows."""
    rng, root = np.random.default_rng(3), Root(str(tmp_path))
    files = [_write(root, f"{number}", [_rows(rng, 0, 3000)]) for number in range(20)]
    before = pa.total_allocated_bytes()
    parts = [part for output in files for part in read_blocks(root, output, (0,), (HASH_SPACE // 30,))]
    held = pa.total_allocated_bytes() - before
    assert len(parts) == 20
    assert held < 2 * sum(part.nbytes for part in parts)


def test_exchange_truncated_file_is_named(tmp_path):
    root = Root(str(tmp_path))
    output = _write(root, "rows", [_rows(np.random.default_rng(2), 0, 100)])
    (tmp_path / "rows").write_bytes((tmp_path / "rows").read_bytes()[:-10])
    with pytest.raises(CorruptionError, match=r"rows: .* bytes, but .* were committed"):
        read_range(root, [output], 0, HASH_SPACE)


def test_exchange_file_with_foreign_tail_is_refused(tmp_path):
    root = Root(str(tmp_path))
    output = _write(root, "rows", [_rows(np.random.default_rng(2), 0, 100)])
    content = (tmp_path / "rows").read_bytes()
    (tmp_path / "rows").write_bytes(content[:-8] + b"SOMEELSE")
    with pytest.raises(CorruptionError, match="not an exchange file"):
        read_range(root, [output], 0, HASH_SPACE)
