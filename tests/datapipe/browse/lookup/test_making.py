"""The look-up file: when it is made, and what a killed making leaves."""

from __future__ import annotations

import os

import numpy as np
import pytest

from datapipe.browse.lookup import file, making
from datapipe.browse.lookup.file import LookUp
from datapipe.browse.output import BrowsedOutput
from tests.support.browsed import Browsed


@pytest.mark.medium
def test_the_file_is_small_and_stays_until_the_tables_change(copied: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    output = copied.api.output
    path = copied.folder / "out/work/browse/documents.lookup"
    header_bytes = 4096 + 500 * len(output.tables)
    assert path.stat().st_size <= 64 * output.num_documents + header_bytes
    told: list[int] = []
    again = making.look_up(BrowsedOutput.open(output.root.url), lambda done, total, seconds: told.append(done))
    assert told == []
    assert again.num_docs == output.num_documents
    other = BrowsedOutput(inspector=output.inspector, snapshot=None, report={}, tables=output.tables[::-1])
    assert LookUp.open(path, other) is None
    with monkeypatch.context() as patch:
        patch.setattr(file, "VERSION", file.VERSION - 1)
        assert LookUp.open(path, output) is None
    before = path.read_bytes()
    for place in (40, len(before) // 2, len(before) - 2):  # a column, an order, the header
        path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
        assert LookUp.open(path, output) is None
    path.write_bytes(before)
    made = making.look_up(other, lambda done, total, seconds: told.append(done))
    assert told[-1] == other.num_documents
    keys = made.keys(np.arange(made.num_docs))
    assert [made.rows_of_key(key) for key in keys] == [[row] for row in range(made.num_docs)]
    assert [keys[row] for row in made.section("by_key")] == sorted(keys)
    path.write_bytes(before)


@pytest.mark.medium
def test_a_killed_making_leaves_nothing_that_is_taken_for_whole(copied: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    output, folder = copied.api.output, copied.folder / "out/work/browse"
    path = folder / "documents.lookup"
    whole = path.read_bytes()
    path.unlink()

    def killed(source: object, target: object) -> None:
        raise KeyboardInterrupt

    (folder / "123.making").mkdir()
    (folder / "123.making/documents.lookup").write_bytes(whole[:1000])
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            making.look_up(output, lambda *told: None)
    assert sorted(os.listdir(folder)) == ["lock"]
    for damage in (whole[:-1], b"", whole[:40] + b"\xff" * 8 + whole[48:-9], b"\0" * 64):
        path.write_bytes(damage)
        opened = making.look_up(output, lambda *told: None)
        assert opened.num_docs == output.num_documents
        assert path.read_bytes() == whole
