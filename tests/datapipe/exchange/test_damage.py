"""Damaged files of committed tasks: every bit is under a checksum, the error names the file, and stores are asked again."""

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
from datapipe.plan.outputs import ExchangeFile, OutputFile
from datapipe.plan.work import HASH_SPACE
from datapipe.shards import schemas
from datapipe.shards.checksum import READINGS, file_checksum
from datapipe.stage.documents import BASE_FIELDS
from datapipe.stage.tables import FINAL_SCHEMAS
from datapipe.storage import Root
from datapipe.tasks.decisions import KeyedRows, drops_of
from stages.dedup.exact import TEXTS
from tests.support.packed_shards import RemoteRoot
from tests.support.unreliable_store import UnreliableStore

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

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
    return output, lambda root: read_range(root, [output], 0, HASH_SPACE)


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
        drops = drops_of(KeyedRows.open(root, [output]), _KEYS)
        return drops.dropped.tolist(), drops.survivor.tolist(), drops.value.tolist()

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
def test_every_flipped_bit_and_other_length_of_a_committed_file_is_found_and_the_file_is_named(
    tmp_path: Path, write: Callable[[Root], Written], kind: type[Root]
) -> None:
    output, read = write(Root(str(tmp_path)))
    root, path = kind(str(tmp_path)), tmp_path / output.path
    content = path.read_bytes()
    sound = read(root)
    step = 1 if isinstance(output, ExchangeFile) and kind is Root else 11  # one checksum covers the other files
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
    monkeypatch.setattr("datapipe.exchange.partitions._HELD_BYTES", 10)
    output, read = documents(Root(str(tmp_path)))
    content = bytearray((tmp_path / output.path).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / output.path).write_bytes(content)
    with pytest.raises(CorruptionError):
        read(RemoteRoot(str(tmp_path)))


@pytest.mark.parametrize("write", [emitted, documents, used_ids], ids=lambda kind: kind.__name__)
def test_file_of_a_store_is_read_again_and_damaged_only_where_that_does_not_help(
    store: UnreliableStore, write: Callable[[Root], Written]
) -> None:
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
