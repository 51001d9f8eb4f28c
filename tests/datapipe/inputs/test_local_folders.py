"""Links to folders below a pattern, on a local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.errors import UserError
from datapipe.inputs import local_folders
from datapipe.inputs.discovery import discover
from datapipe.inputs.entries import Notes
from stages.read.text import Text


def _tree(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def _listed(pattern: str, exclude: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    notes = Notes()
    found = discover("web", [pattern], lambda path: Text(), "stat", "here", exclude, notes=notes)
    return [file.path for file, _ in found], notes.linked_again


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*.txt", ["a.txt", "l/deep/y.txt", "l/x.txt"]),
        ("*/*.txt", ["l/x.txt"]),
        ("*/*/*.txt", ["l/deep/y.txt"]),
        ("*.txt", ["a.txt"]),
        ("l/*.txt", ["x.txt"]),
    ],
)
def test_folders_link_to_another_folder_is_followed(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    _tree(tmp_path, "data/a.txt", "elsewhere/x.txt", "deep/y.txt")
    (tmp_path / "data/l").symlink_to("../elsewhere")
    (tmp_path / "elsewhere/deep").symlink_to("../deep")
    assert _listed(f"{tmp_path}/data/{pattern}") == (expected, [])


def test_folders_linked_twice_gives_its_files_once_and_is_told(tmp_path: Path) -> None:
    """A folder's own path comes first, then the first link by its path."""
    _tree(tmp_path, "data/real/a.txt", "elsewhere/b.txt")
    for name, target in (("again", "real"), ("m", "../elsewhere"), ("l", "../elsewhere")):
        (tmp_path / "data" / name).symlink_to(target)
    paths, told = _listed(f"{tmp_path}/data/**/*.txt")
    assert paths == ["l/b.txt", "real/a.txt"]
    pairs = (("data/again", "data/real"), ("data/m", "elsewhere"))
    assert [again in line and once in line for line, (again, once) in zip(told, pairs, strict=True)] == [True, True]


def test_folders_link_by_a_name_that_the_pattern_asks_for_is_entered_again(tmp_path: Path) -> None:
    _tree(tmp_path, "data/all/a.txt", "data/all/sub/b.txt")
    (tmp_path / "data/train").symlink_to("all")
    assert _listed(f"{tmp_path}/data/**/train/**/*.txt") == (["train/a.txt", "train/sub/b.txt"], [])


def test_folders_loops_end_and_are_told(tmp_path: Path) -> None:
    _tree(tmp_path, "data/x/a.txt", "elsewhere/b.txt")
    (tmp_path / "data/x/up").symlink_to("..")
    (tmp_path / "data/out").symlink_to("../elsewhere")
    (tmp_path / "elsewhere/back").symlink_to("../data")
    paths, told = _listed(f"{tmp_path}/data/**/*.txt")
    assert paths == ["out/b.txt", "x/a.txt"]
    assert [line.split()[0] for line in told] == [f"{tmp_path}/data/x/up", f"{tmp_path}/data/out/back"]


def test_folders_hidden_link_is_entered_by_name_alone(tmp_path: Path) -> None:
    _tree(tmp_path, "data/a.txt", "elsewhere/b.txt")
    (tmp_path / "data/.cache").symlink_to("../elsewhere")
    assert _listed(f"{tmp_path}/data/**")[0] == ["a.txt"]
    assert _listed(f"{tmp_path}/data/**/.cache/*")[0] == [".cache/b.txt"]


def test_folders_links_that_cross_each_other_end_as_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_folders, "_MOST_VISITS", 100)
    for level in range(12):
        (tmp_path / f"data/{level}").mkdir(parents=True)
    for level in range(11):
        for name in ("a", "b"):
            (tmp_path / f"data/{level}/{name}").symlink_to(f"../{level + 1}")
    with pytest.raises(UserError, match="more than 100 paths"):
        _listed(f"{tmp_path}/data/**/*.txt")
