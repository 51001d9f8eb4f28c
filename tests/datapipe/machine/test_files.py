"""Locks of files, and files that appear whole."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from datapipe.machine.files import UNFINISHED, lock_file, locked, release, replacing, sync_all, write_atomic


def test_lock_is_of_one_holder_until_it_is_released(tmp_path: Path) -> None:
    for path in (tmp_path / "lock", tmp_path):  # a file that is created, and a folder
        descriptor = lock_file(path)
        with pytest.raises(BlockingIOError), locked(path):
            raise AssertionError
        release(descriptor)
        with locked(path, wait=True):
            pass


def test_lock_of_a_missing_file_is_refused_where_it_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        lock_file(tmp_path / "lock", is_created=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_synced", [True, False])
def test_replaced_file_is_the_old_one_until_the_block_ends(tmp_path: Path, is_synced: bool) -> None:
    path = tmp_path / "folder/file"
    write_atomic(path, b"old", is_synced=is_synced)
    with replacing(path, is_synced=is_synced) as temporary:
        temporary.write_bytes(b"new")
        assert UNFINISHED.fullmatch(str(temporary))
        assert path.read_bytes() == b"old"
    assert (os.listdir(path.parent), path.read_bytes()) == (["file"], b"new")


def test_replaced_file_is_the_old_one_after_an_error(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"old")
    with suppress(ZeroDivisionError), replacing(tmp_path / "file") as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    assert (os.listdir(tmp_path), (tmp_path / "file").read_bytes()) == (["file"], b"old")


def test_sync_all_flushes_every_path_and_raises_for_one_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / str(number) for number in range(20)]
    for path in paths:
        path.write_text("content")
    flushed = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino) or fsync(descriptor))
    sync_all([])
    sync_all([*paths, tmp_path])
    assert sorted(flushed) == sorted(path.stat().st_ino for path in [*paths, tmp_path])
    with pytest.raises(FileNotFoundError, match="missing"):
        sync_all([*paths, tmp_path / "missing"])
