"""The user's modules on a node: importable, from a folder that nobody else can write."""

from __future__ import annotations

import base64
import importlib
import os
import sys
from pathlib import Path

import pytest

from datapipe.engine.cluster.modules import install_modules, module_sources
from datapipe.errors import UserError


def test_shipped_modules_come_from_a_folder_that_nobody_else_can_write(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shipped_alone", raising=False)
    shipped = {"shipped_alone.py": base64.b64encode(b"VALUE = 41\n").decode()}
    install_modules(shipped)
    import shipped_alone  # pyright: ignore[reportMissingImports]

    assert shipped_alone.VALUE == 41
    folder = Path(shipped_alone.__file__).parent
    assert str(folder) == sys.path[0]
    for private in (folder, folder.parent):
        assert private.stat().st_mode & 0o077 == 0
        assert private.stat().st_uid == os.getuid()


def test_modules_in_a_folder_without_init_are_shipped_as_far_as_they_are_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bare_folder" / "inner").mkdir(parents=True)
    for name, text in (("words", "LEAST = 3\n"), ("mine", "from bare_folder.inner.words import LEAST\n"), ("other", "")):
        (tmp_path / "bare_folder" / "inner" / f"{name}.py").write_text(text)
    importlib.import_module("bare_folder.inner.mine")
    shipped = module_sources("bare_folder")
    assert set(shipped) == {"bare_folder/inner/mine.py", "bare_folder/inner/words.py"}
    assert base64.b64decode(shipped["bare_folder/inner/words.py"]) == b"LEAST = 3\n"
    for name in [name for name in sys.modules if name.partition(".")[0] == "bare_folder"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("wrong", ["open to others", "of another user", "a link"])
def test_folder_of_shipped_modules_that_others_may_have_made_is_refused(tmp_path, monkeypatch, wrong):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "datapipe/modules"
    folder.parent.mkdir()
    if wrong == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir(mode=0o700)
    if wrong == "open to others":
        folder.chmod(0o777)
    if wrong == "of another user":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder to another user")
        os.chown(folder, 12345, -1)
    before = list(sys.path)
    with pytest.raises(UserError, match=rf"{folder}: found .* expected a folder that user {os.getuid()} alone can use"):
        install_modules({"planted.py": base64.b64encode(b"").decode()})
    assert sys.path == before
