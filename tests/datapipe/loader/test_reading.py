"""Rows by address, in the order asked for, whatever shards they lie in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datapipe.loader import reading
from datapipe.loader.layout import plan_layout
from datapipe.loader.reading import RowReader
from datapipe.shards.manifest import read_snapshot
from datapipe.storage import Root
from tests.snapshots import make_snapshot

S = 16


def open_reader(folder: Path) -> RowReader:
    root = Root(str(folder))
    snapshot = read_snapshot(root)
    return RowReader(root, snapshot, plan_layout(snapshot, "train"))


def test_layout_shards_in_any_order_are_the_same(tmp_path: Path) -> None:
    snapshot = read_snapshot(Root(str(make_snapshot(tmp_path, {"b": 20, "a": 15, "none": 0}))))
    layout = plan_layout(snapshot, "train")
    turned = plan_layout(snapshot.model_copy(update={"shards": snapshot.shards[::-1]}), "train")
    assert layout.shards == turned.shards
    assert layout.sources == ("a", "b", "none")
    assert [layout.size(source) for source in range(3)] == [15, 20, 0]
    shards, rows = layout.find(np.array([0, 6, 7, 14, 15, 34]))
    assert [layout.shards[shard].path[-11:] for shard in shards] == [f"0000{n}.arrow" for n in (0, 0, 1, 2, 0, 2)]
    assert rows.tolist() == [0, 6, 0, 0, 0, 5]
    assert layout.source_of(np.array([0, 14, 15, 34])).tolist() == [0, 0, 1, 1]


def test_read_rows_come_in_the_order_asked_for(tmp_path: Path) -> None:
    reader = open_reader(make_snapshot(tmp_path, {"a": 40, "b": 25}))
    one_by_one = [reader.read(np.array([address])) for address in range(65)]
    addresses = np.random.default_rng(3).integers(0, 65, 100)  # some more than once
    rows = reader.read(addresses)
    assert ((rows.tokens[:, 0] - 1) // S).tolist() == addresses.tolist()
    for place, address in enumerate(addresses.tolist()):
        pieces = slice(rows.piece_offsets[place], rows.piece_offsets[place + 1])
        np.testing.assert_array_equal(rows.tokens[place], one_by_one[address].tokens[0])
        np.testing.assert_array_equal(rows.piece_lengths[pieces], one_by_one[address].piece_lengths)
        np.testing.assert_array_equal(rows.keys[pieces], one_by_one[address].keys)
        np.testing.assert_array_equal(rows.starts[pieces], one_by_one[address].starts)


def test_read_nothing_is_empty(tmp_path: Path) -> None:
    rows = open_reader(make_snapshot(tmp_path, {"a": 4})).read(np.zeros(0, np.int64))
    assert rows.tokens.shape == (0, S)
    assert rows.piece_offsets.tolist() == [0]


def test_read_more_shards_than_may_be_open_reads_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_OPEN_SHARDS", 2)
    reader = open_reader(make_snapshot(tmp_path, {"a": 40}, rows_per_shard=3))
    for _ in range(2):
        assert ((reader.read(np.arange(39, -1, -1)).tokens[:, 0] - 1) // S).tolist() == list(range(39, -1, -1))
    reader.close()
    assert reader.read(np.array([7])).tokens[0, 0] == 7 * S + 1
