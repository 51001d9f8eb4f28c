"""Where the files are that all runs on a machine share."""

from __future__ import annotations

import os

import pytest

from datapipe.machine_cache import cache_home, read_checked, write_checked


def test_user_without_a_home_keeps_nothing_and_gets_no_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id without an entry, and without HOME
    path = cache_home() / "kernel.bin"
    assert read_checked(path) is None
    with pytest.raises(OSError):
        write_checked(path, b"compiled")
    assert list(tmp_path.iterdir()) == []
