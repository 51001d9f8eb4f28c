"""What is missing is named when a run is planned, with the extra to install."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from datapipe import catalogue
from datapipe.config import StageUse
from datapipe.errors import UserError
from datapipe.libraries import require


def install(folder: Path, name: str, code: str) -> None:
    """A distribution with one package of the same name, as pip writes it."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)
    info = folder / f"{name}-9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n{name}-9.0.dist-info/METADATA,,\n")


def refusal(library: str) -> str:
    with pytest.raises(UserError) as caught:
        require(library, "extract.html")
    return str(caught.value)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "trafilatura", "raise ImportError('lxml.html.clean is a project of its own')")
    monkeypatch.delitem(sys.modules, "trafilatura", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


def test_library_that_is_installed_has_its_version() -> None:
    assert require("pyarrow", "read.jsonl") == metadata.version("pyarrow")


def test_missing_library_names_the_extra_to_install_or_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal("not-there").endswith("Run: pip install not-there")
    requires = ['trafilatura==2.3.1; extra == "test"', "trafilatura; extra == 'web'"]
    monkeypatch.setattr(sys, "path", [])  # where nothing is installed
    monkeypatch.setattr(metadata, "requires", lambda name: requires)
    assert refusal("trafilatura").endswith("Run: pip install 'datapipe[web]'")


@pytest.mark.usefixtures("broken")
def test_library_that_cannot_be_imported_names_the_reason_and_the_extra() -> None:
    text = refusal("trafilatura")
    assert "lxml.html.clean is a project of its own" in text
    assert text.endswith("Run: pip install 'datapipe[web]'")


@pytest.mark.usefixtures("broken")
def test_stage_with_a_broken_library_is_refused_when_its_code_is_fingerprinted() -> None:
    stage = catalogue.build_stage(StageUse(name="extract.html", alias="extract.html", options={"engine": "trafilatura"}))
    with pytest.raises(UserError, match=r"extract\.html needs trafilatura.*datapipe\[web\]"):
        catalogue.code_digest(stage)
