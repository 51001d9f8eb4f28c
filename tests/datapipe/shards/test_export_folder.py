"""An export of rows is unfinished until it is whole, and the same one goes on or says so; anything else is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from datapipe.errors import UserError
from datapipe.shards import writer as writers
from datapipe.shards.export import ExportRequest, export_snapshot
from datapipe.shards.export_folder import MARK, RECORD, is_whole
from datapipe.shards.manifest import SNAPSHOT, Snapshot
from datapipe.storage import Root
from tests.support.packed_shards import make_snapshot, packed_batch

FORMATS = ("megatron", "arrow", "parquet")


class Killed(BaseException):
    pass


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    monkeypatch.setattr(writers, "BATCH_BYTES", 128)
    made = make_snapshot(tmp_path / "out", packed_batch(40, 16, vocab_size=500), "arrow", 640, 500)
    Root(str(tmp_path / "out")).write_atomic(SNAPSHOT, made.to_json())
    return made


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _export(snapshot: Snapshot, folder: Path, **options) -> list:
    root, wanted = Root(str(folder.parent / "out")), ExportRequest(**{"format": "arrow", "target_bytes": 640, **options})
    return export_snapshot(root, snapshot, Root(str(folder)), wanted)


def _is_killed(monkeypatch: pytest.MonkeyPatch, num_calls: int, act: Callable[[], object]) -> bool:
    """Whether `act` is killed when it has changed files so many times, or ends before."""
    left = iter(range(num_calls))

    def counted(original):
        def call(self, *arguments, **options):
            if next(left, None) is None:
                raise Killed
            return original(self, *arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("write_atomic", "open_output", "delete"):
            patch.setattr(Root, name, counted(getattr(Root, name)))
        try:
            act()
        except Killed:
            return True
    return False


@pytest.mark.medium
@pytest.mark.parametrize("format", FORMATS)
def test_export_that_is_killed_anywhere_is_marked_and_the_same_command_completes_it(tmp_path, snapshot, monkeypatch, format):
    expected = _export(snapshot, tmp_path / "whole", format=format)
    folder, kills = tmp_path / "killed", 0
    while _is_killed(monkeypatch, kills, lambda: _export(snapshot, folder, format=format)):
        kills += 1
        there = _content(folder) if folder.exists() else {}
        assert MARK in there or not there
        assert not is_whole(Root(str(folder)))
        if kills % 3 == 0:  # from here, and from the beginning too
            assert _export(snapshot, folder, format=format) == expected
            assert _content(folder) == _content(tmp_path / "whole")
            shutil.rmtree(folder)
    assert kills > 5
    assert _content(folder) == _content(tmp_path / "whole")


@pytest.mark.parametrize("format", FORMATS)
def test_export_that_is_whole_is_told_and_not_written_again(tmp_path, snapshot, format):
    done = _export(snapshot, tmp_path / "new", format=format)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "new").rglob("*")}
    assert is_whole(Root(str(tmp_path / "new")))
    assert _export(snapshot, tmp_path / "new", format=format) == done
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "new").rglob("*")} == before


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "parquet"}, "format 'arrow' in place of 'parquet'"),
        ({"format": "megatron", "rows": True}, "format 'arrow' in place of 'megatron', rows false in place of true"),
        ({"target_bytes": None}, "target_bytes 640 in place of none"),
        ({"split": "train"}, "split none in place of 'train'"),
        ({"snapshot": "other"}, "snapshot '[0-9a-f]{12}' in place of '[0-9a-f]{12}'"),
    ],
)
def test_export_of_something_else_is_refused_with_the_difference(tmp_path, snapshot, monkeypatch, is_finished, change, message):
    folder, options = tmp_path / "new", dict(change)
    if is_finished:
        _export(snapshot, folder)
    else:
        assert _is_killed(monkeypatch, 4, lambda: _export(snapshot, folder))
    before, other = _content(folder), snapshot
    if options.pop("snapshot", None):
        other = snapshot.model_copy(update={"name": "other"}).sealed()
    what = "a whole" if is_finished else "an unfinished"
    with pytest.raises(UserError, match=rf"new: holds {what} export of something else: {message}\. Run that command again"):
        _export(other, folder, **options)
    assert _content(folder) == before


def test_export_that_lost_a_file_since_is_refused_with_its_name(tmp_path, snapshot):
    [part] = _export(snapshot, tmp_path / "new")
    lost = tmp_path / "new" / part.files[1]
    lost.write_bytes(lost.read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"holds this export, but {part.files[1]} has .* bytes, expected .*\. Delete"):
        _export(snapshot, tmp_path / "new")
    lost.unlink()
    with pytest.raises(UserError, match=rf"holds this export, but {part.files[1]} is gone\. Delete the folder"):
        _export(snapshot, tmp_path / "new")


def test_other_files_beside_an_unfinished_export_are_refused_and_stay(tmp_path, snapshot, monkeypatch):
    assert _is_killed(monkeypatch, 4, lambda: _export(snapshot, tmp_path / "new"))
    (tmp_path / "new/mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds mine\.txt beside an unfinished export\. Move it away"):
        _export(snapshot, tmp_path / "new")
    assert (tmp_path / "new/mine.txt").read_text() == "mine"


def test_export_that_was_killed_between_its_two_marks_is_whole(tmp_path, snapshot):
    done = _export(snapshot, tmp_path / "new")
    record = json.loads((tmp_path / "new" / RECORD).read_text())
    (tmp_path / "new" / MARK).write_text(json.dumps(record["request"]))
    assert _export(snapshot, tmp_path / "new") == done
    assert is_whole(Root(str(tmp_path / "new")))
