"""What a fingerprint covers is what the sources import."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.plan import fingerprint
from datapipe.source_code import module_closure, neighbours_of


@pytest.mark.parametrize("kind", ["map", "reduce", "merge", "gather", "sample", "train", "tokenize", "pack"])
def test_closure_of_every_kind_of_task_holds_its_runner_and_what_writes_its_files(kind):
    closure = module_closure(fingerprint._RUNNERS[kind])
    assert fingerprint._RUNNERS[kind] in closure
    assert {"datapipe.columns", "datapipe.shards.checksum", "datapipe.storage"} <= closure
    assert not any(name.startswith("datapipe.config") or name == "datapipe.cli.main" for name in closure)


def test_closure_follows_imports_inside_functions():
    assert "datapipe.kernels.text.words" in module_closure("datapipe.stage.documents")


def test_neighbours_are_the_users_own_modules_however_far_down(tmp_path: Path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "clean.py").write_text("from .words import STOP\nimport json\nimport helper\n")
    (package / "words.py").write_text("def f():\n    from mine import deep\n")
    (package / "deep.py").write_text("")
    (package / "unused.py").write_text("")
    (tmp_path / "helper.py").write_text("")
    found = neighbours_of(package / "clean.py", "mine.clean")
    assert {path.relative_to(tmp_path).as_posix() for path in found} == {
        "helper.py", "mine/__init__.py", "mine/clean.py", "mine/deep.py", "mine/words.py",
    }  # fmt: skip
