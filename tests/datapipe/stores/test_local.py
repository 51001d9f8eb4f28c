"""Listing local folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from datapipe.storage import Root
from datapipe.stores.local import local_files


def _write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x" * len(path))


def test_local_files_of_many_folders_are_all_there_once(tmp_path: Path) -> None:
    paths = [f"step-{number % 3}/attempt-{number}/{name}" for number in range(700) for name in ("a", "deep/er/b")]
    _write(tmp_path, *paths, "top")

    found = sorted(local_files(tmp_path, "work/", recursive=True))

    assert found == sorted((f"work/{path}", len(path)) for path in [*paths, "top"])


@pytest.mark.parametrize(("folder", "expected"), [("", [("a", 1)]), ("not there", []), ("a", [])])
def test_local_files_directly_in_a_folder(tmp_path: Path, folder: str, expected: list[tuple[str, int]]) -> None:
    _write(tmp_path, "a", "below/b")
    assert local_files(tmp_path / folder, "", recursive=False) == expected


def test_list_files_leaves_out_what_is_no_file_and_sorts_by_path(tmp_path: Path) -> None:
    _write(tmp_path, "b/2", "b/10", "a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "gone")

    assert Root(str(tmp_path)).list_files("") == [("a", 1), ("b/10", 4), ("b/2", 3)]
