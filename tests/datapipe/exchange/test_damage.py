"""Damaged files of committed tasks: every bit is under a checksum, and the error names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import keys_from, make_keys
from datapipe.engine.protocol import failure_of
from datapipe.errors import CorruptionError
from datapipe.exchange.files import ExchangeWriter
from datapipe.exchange.partitions import TableWriter, committed_bytes, read_table
from datapipe.exchange.ranges import read_range
from datapipe.plan.outputs import ExchangeFile, OutputFile, TableFile
from datapipe.plan.work import HASH_SPACE
from datapipe.shards import schemas
from datapipe.shards.checksum import file_checksum
from datapipe.stage.documents import BASE_FIELDS
from datapipe.stage.tables import FINAL_SCHEMAS
from datapipe.storage import Root
from datapipe.tasks.decisions import KeyedRows, drops_of
from stages.dedup.exact import TEXTS
from tests.support.packed_shards import RemoteRoot

pytestmark = pytest.mark.medium

_KEYS = make_keys(9, np.arange(3, dtype=np.uint64))
_HASHES = pa.array(np.full(3, 9, np.uint64))
_OTHERS = keys_from(np.full((3, 16), 7, np.uint8))

Read = Callable[[Root], object]


def _exchange(root: Root, schema: pa.Schema, arrays: list[pa.Array]) -> ExchangeFile:
    writer = ExchangeWriter(root, "rows.exchange", schema)
    writer.add(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return writer.finish()


def _table(root: Root, schema: pa.Schema, rows: list[dict[str, object]]) -> TableFile:
    writer = TableWriter(root, "rows.arrow")
    writer.add(pa.RecordBatch.from_pylist(rows, schema=schema))
    (output,) = writer.finish()
    return output


def _emitted(root: Root) -> tuple[OutputFile, Read]:
    output = _exchange(root, TEXTS, [_HASHES, _HASHES, _HASHES, _KEYS])
    return output, lambda root: read_range(root, [output], 0, HASH_SPACE)


def _no_rows(root: Root) -> tuple[OutputFile, Read]:
    output = ExchangeWriter(root, "rows.exchange", TEXTS).finish()
    return output, lambda root: read_range(root, [output], 0, HASH_SPACE)


def _tokens(root: Root) -> tuple[OutputFile, Read]:
    schema = schemas.tokens(pa.uint16())
    ids = pa.array([[1, 2, 3], [4], [5, 6]], schema.field("tokens").type)
    output = _exchange(root, schema, [_HASHES, _KEYS, ids])
    return output, lambda root: read_range(root, [output], 0, HASH_SPACE)


def _decisions(root: Root) -> tuple[OutputFile, Read]:
    output = _exchange(root, FINAL_SCHEMAS["drops"], [_HASHES, _KEYS, _OTHERS, pa.array([0.5, 1.0, 0.25])])

    def read(root: Root) -> object:
        drops = drops_of(KeyedRows.open(root, [output]), _KEYS)
        return drops.dropped.tolist(), drops.survivor.tolist(), drops.value.tolist()

    return output, read


def _read_table(root: Root, schema: pa.Schema, rows: list[dict[str, object]]) -> tuple[OutputFile, Read]:
    output = _table(root, schema, rows)
    return output, lambda root: list(read_table(root, output))


def _documents(root: Root) -> tuple[OutputFile, Read]:
    rows = [{"key": key, "id": "a:1", "text": "some text"} for key in _KEYS.to_pylist()]
    return _read_table(root, pa.schema(BASE_FIELDS), rows)


def _drops(root: Root) -> tuple[OutputFile, Read]:
    row = {"stage": "filter.length", "rule": "too_short", "value": 1.0, "threshold": 2.0, "survivor": None}
    return _read_table(root, schemas.DROPS, [{"key": _KEYS[0].as_py(), "id": "a:1", **row}])


def _quarantine(root: Root) -> tuple[OutputFile, Read]:
    row = {"path": "a.jsonl", "place": 7, "stage": "read", "error": "no JSON", "excerpt": b"{"}
    return _read_table(root, schemas.QUARANTINE, [{"key": _KEYS[0].as_py(), "id": "a:1", **row}])


def _used_ids(root: Root) -> tuple[OutputFile, Read]:
    root.write_atomic("used-ids.bin", bytes(range(40)))
    checksum, size = file_checksum(root, "used-ids.bin")
    output = OutputFile(path="used-ids.bin", rows=3, bytes=size, checksum=checksum)
    return output, lambda root: committed_bytes(root, output)


@pytest.mark.parametrize("remote", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "write",
    [_emitted, _no_rows, _tokens, _decisions, _documents, _drops, _quarantine, _used_ids],
    ids=lambda kind: kind.__name__,
)
def test_every_flipped_bit_of_a_committed_file_is_found_and_the_file_is_named(tmp_path: Path, write, remote: bool) -> None:
    root = RemoteRoot(str(tmp_path)) if remote else Root(str(tmp_path))
    output, read = write(Root(str(tmp_path)))
    content = (tmp_path / output.path).read_bytes()
    sound = read(root)
    step = 1 if isinstance(output, ExchangeFile) and not remote else 11  # one checksum covers the other files
    for bit in range(0, 8 * len(content), step):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / output.path).write_bytes(flipped)
        with pytest.raises(CorruptionError, match=output.path) as raised:
            read(root)
        assert failure_of(raised.value).kind == "damage"
    (tmp_path / output.path).write_bytes(content)
    assert read(root) == sound


@pytest.mark.parametrize("num_bytes", [0, 1, 39, 40, 200])
def test_exchange_file_of_another_length_is_named(tmp_path: Path, num_bytes: int) -> None:
    root = Root(str(tmp_path))
    output, read = _emitted(root)
    content = (tmp_path / output.path).read_bytes()
    (tmp_path / output.path).write_bytes((content * 2)[:num_bytes])
    with pytest.raises(CorruptionError, match=rf"rows.exchange: {num_bytes} bytes, but {len(content)} were committed"):
        read(root)


def test_exchange_file_of_the_version_before_is_refused_by_its_version(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    output, read = _emitted(root)
    content = (tmp_path / output.path).read_bytes()
    (tmp_path / output.path).write_bytes(content[:-8] + b"DPXCHG03")
    with pytest.raises(CorruptionError, match="an exchange file of another version: it ends in b'DPXCHG03'"):
        read(root)


def test_table_that_is_too_large_to_hold_is_verified_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.exchange.partitions._HELD_BYTES", 10)
    root = RemoteRoot(str(tmp_path))
    output, read = _documents(Root(str(tmp_path)))
    content = bytearray((tmp_path / output.path).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / output.path).write_bytes(content)
    with pytest.raises(CorruptionError, match="its checksum is not the committed one"):
        read(root)
