"""Files of options on other machines: taken from OUTPUT by content, and never another content than the planned one."""

import os
import pickle
from pathlib import Path

import pytest
from pydantic import BaseModel

from datapipe.errors import UserError
from datapipe.records.option_files import (
    OptionFile,
    path_here,
    paths_in,
    planned_file,
    put_into_output,
    unavailable,
    with_paths,
)
from datapipe.storage import file_cache
from datapipe.storage.root import Root

CONTENT = b"a model" * 1000


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_cache, "cache_home", lambda: tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def model(tmp_path: Path) -> OptionFile:
    path = tmp_path / "edu.bin"
    path.write_bytes(CONTENT)
    return planned_file(path, "s3://me:Zq81Secret@bucket/edu.bin", "filter.classifier")


@pytest.fixture(params=["disk", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    if request.param == "disk":
        return Root(str(tmp_path / "out"))
    return Root(f"s3://outputs/{tmp_path.name}{request.getfixturevalue('query')}")


def test_machine_without_the_file_gets_it_from_the_output_with_its_name(model: OptionFile, root: Root) -> None:
    put_into_output([model], root)
    model.path.unlink()  # as on another machine
    here = path_here(model, root)
    assert (here.name, here.read_bytes()) == ("edu.bin", CONTENT)
    root.delete(model.path_in_output)
    assert path_here(model, root) == here
    assert unavailable(model, root) == ""


def test_machine_with_another_file_at_the_path_gets_the_planned_one(model: OptionFile, root: Root) -> None:
    put_into_output([model], root)
    model.path.write_bytes(CONTENT[::-1])
    assert path_here(model, root).read_bytes() == CONTENT


def test_file_that_was_only_touched_is_used_where_it_is(model: OptionFile, tmp_path: Path) -> None:
    os.utime(model.path, times=(0, 0))
    assert path_here(model, Root(str(tmp_path / "out"))) == model.path


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_file_that_changes_after_the_plan_is_the_users_error(model: OptionFile, root: Root, change: str) -> None:
    if change == "changed":
        model.path.write_bytes(CONTENT[::-1])
    else:
        model.path.unlink()
    for fails in (lambda: path_here(model, root), lambda: put_into_output([model], root)):
        with pytest.raises(UserError, match="Run the same command again") as raised:
            fails()
        assert "filter.classifier: s3://***@bucket/edu.bin" in str(raised.value)
    assert root.list_files("") == []
    assert "s3://***@bucket/edu.bin (7.0 kB), which filter.classifier reads" in unavailable(model, root)


def test_machine_without_room_names_file_and_folder(
    model: OptionFile, root: Root, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into_output([model], root)
    model.path.unlink()

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device", str(home))

    monkeypatch.setattr(file_cache, "copied", full)
    told = unavailable(model, root)
    assert "No space left on device" in told and str(home) in told and "XDG_CACHE_HOME" in told and "filter.classifier" in told


def test_copy_in_the_output_that_is_damaged_is_never_used(model: OptionFile, root: Root) -> None:
    put_into_output([model], root)
    root.write_atomic(model.path_in_output, CONTENT[::-1])
    model.path.unlink()
    assert "is damaged" in unavailable(model, root) and "Delete it" in unavailable(model, root)


def test_output_keeps_the_files_of_the_last_run_alone(model: OptionFile, root: Root, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("bad\n")
    words = planned_file(tmp_path / "words.txt", "words.txt", "filter.toxicity")
    put_into_output([model, words], root)
    root.write_atomic(f"work/files/{model.digest}/.edu.bin.{32 * '0'}.tmp", b"of a killed process")
    put_into_output([words], root)
    assert root.list_files("") == [(words.path_in_output, 4)]
    model.path.unlink()
    put_into_output([words], root)  # it is there


class _Set(BaseModel):
    path: Path | tuple[Path, ...]


class _Stage(BaseModel):
    model: Path | None
    lists: dict[str, Path]
    sets: tuple[Path | _Set, ...]
    number: int = 3


def test_paths_are_replaced_wherever_options_hold_them() -> None:
    a, b, c, d = (Path(name) for name in "abcd")
    stage = _Stage(model=a, lists={"en": b}, sets=(c, _Set(path=(a, d)), _Set(path=b)))
    assert list(paths_in(stage)) == [a, b, c, a, d, b]
    e, f = Path("x/e"), Path("x/f")
    expected = _Stage(model=e, lists={"en": f}, sets=(c, _Set(path=(e, d)), _Set(path=f)))
    assert with_paths(stage, {a: e, b: f}) == expected
    assert with_paths(stage, {}) == stage
    assert with_paths(stage, {}) is not stage


def test_file_that_travels_has_no_credentials(model: OptionFile) -> None:
    assert b"Zq81" not in pickle.dumps(model)
