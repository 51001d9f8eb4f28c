"""A digest covers the modules that code imports, without machinery and prose; what each module holds is kept on disk."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from datapipe.config import catalogue
from datapipe.records import source_code
from datapipe.records.source_code import Code, code_of_class, code_of_modules
from datapipe.stage.function import FunctionStage

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module `own_code` of the user."""
    module = ModuleType("own_code")
    module.__file__ = str(tmp_path / "own_code.py")
    monkeypatch.setitem(sys.modules, "own_code", module)
    return tmp_path


def code(folder: Path, files: Mapping[str, str]) -> Code:
    """The code of a class in own_code.py."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return code_of_class(type("Own", (), {"__module__": "own_code"}))


IMPORTS: dict[str, set[str]] = {
    "import b\nimport p.q as q\n": {"b", "p", "p.q"},
    "from p import q, name\n": {"p", "p.q"},
    "from p.r import *\n": {"p", "p.r", "b"},
    "def f():\n    from p import r\n": {"p", "p.r", "b"},
    "class C:\n    def f(self):\n        import b\n": {"b"},
    "import typing\nif typing.TYPE_CHECKING:\n    import b\nelse:\n    import p\n": {"p"},
    "import importlib\ndef f():\n    return importlib.import_module('p.r')\n": {"p", "p.r", "b"},
    "import json, numpy, gone\nfrom folder import c\n": {"folder.c"},
    "from datapipe.errors import UserError\n": set(),
    "from datapipe import rng\n": {"datapipe.rng"},
}


@pytest.mark.parametrize("text", IMPORTS)
def test_code_is_the_modules_that_imports_lead_to(own: Path, text: str):
    files = {"b.py": "", "p/__init__.py": "name = 1\n", "p/q.py": "", "p/r.py": "import b\n", "folder/c.py": ""}
    assert code(own, {**files, "own_code.py": text}).modules == {"own_code", *IMPORTS[text]}


def test_relative_imports_lead_to_modules_of_their_package(own: Path):
    files = {"p/__init__.py": "", "p/q.py": "from .r import x\n", "p/r.py": "from . import s\n", "p/s.py": ""}
    files |= {"p/t/__init__.py": "from ..q import y\n", "own_code.py": "import p.t\n"}
    assert code(own, files).modules == {"own_code", "p", "p.q", "p.r", "p.s", "p.t"}


SAMPLE = '''
"""Module."""
from pydantic import Field
import b

class C:
    """Class."""
    a: int = Field(default=1, description="Some text.", ge=0)
    """Attribute."""

    def m(self, x: int) -> str:
        """Method."""
        if x > 0x10:  # comment
            raise ValueError(f"found {x}, expected less") from KeyError("a_code")
        return f"text {x}"
'''


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ('"""Module."""', "", False),
        ("Method.", "Other.", False),
        ("Attribute.", "Other.", False),
        ("Some text.", "Other text.", False),
        ("# comment", "# other", False),
        ("found {x}, expected less", "{x} is more", True),  # the parts of the text, and none of its words
        ("found {x}, expected less", "got {x}, want no more", False),
        ("a_code", "b_code", True),
        ("text {x}", "the text {x}", True),
        ("x: int", "x: float", True),
        ("ge=0", "ge=1", True),
        ("0x10", "16", False),
        ("0x10", "17", True),
        ("import b", "import c as b", True),
    ],
)
def test_digest_changes_with_what_code_does(own: Path, before: str, after: str, changes: bool):
    assert before in SAMPLE
    files = {"b.py": "", "c.py": ""}
    digests = {code(own, {**files, "own_code.py": text}).digest for text in (SAMPLE, SAMPLE.replace(before, after))}
    assert (len(digests) == 2) == changes


def test_edit_of_an_imported_module_changes_the_digest_and_of_another_does_not(own: Path):
    files = {"own_code.py": "import b\n", "b.py": "import c\n", "c.py": "x = 1\n", "d.py": "x = 1\n"}
    before = code(own, files).digest
    assert code(own, {"d.py": "x = 2\n"}).digest == before
    assert code(own, {"c.py": "x = 2\n"}).digest != before


def test_edit_of_words_leaves_stages_that_cut_none_alone():
    cutting = {name for name in catalogue.stage_names() if "datapipe.kernels.text.words" in _modules(name)}
    assert not cutting & {
        "filter.code_quality",
        "filter.field",
        "filter.length",
        "filter.license",
        "normalize.unicode",
        "redact.pii",
    }
    assert {"filter.gopher_quality", "filter.fineweb_quality"} <= cutting


def _modules(stage: str) -> frozenset[str]:
    return code_of_class(catalogue.stage_class(stage)).modules


IMPORTING_BY_COMPUTED_NAMES = {"datapipe.kernels", "datapipe.stage.function", "stages.extract._engines"}
"""The first lists kernels. The others import what the user names, which is in the code by itself: `Stage.user_classes`, and the
module of a function."""


@pytest.mark.slow
def test_no_other_module_of_a_stage_imports_by_a_computed_name():
    modules = code_of_class(FunctionStage).modules.union(*map(_modules, catalogue.stage_names()))
    modules = modules.union(*(code_of_class(kind).modules for kind in catalogue.readers().values()))
    computed = {name for name in modules if name.startswith(("datapipe", "stages")) and _imports_by_computed_name(name)}
    assert computed == IMPORTING_BY_COMPUTED_NAMES


def _imports_by_computed_name(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))]
    imports = [call for call in calls if ast.unparse(call.func).endswith(("import_module", "__import__"))]
    return any(not isinstance(call.args[0], ast.Constant) for call in imports)


@pytest.mark.slow
def test_cache_is_used_and_done_without_where_it_is_damaged_or_cannot_be_written(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    modules = frozenset({"datapipe.steps.pack"})

    def read() -> Code:
        for cached in (code_of_modules, source_code._installed, source_code._parsed):
            cached.cache_clear()
        return code_of_modules(modules)

    first = read()
    assert "datapipe.tokens.packing" in first.modules and "datapipe.kernels.tokens.pack:best_fit" in first.kernels
    with monkeypatch.context() as patch:
        patch.setattr(source_code, "_module_of", None)
        assert read() == first
    for path in (tmp_path / "datapipe/source_code").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert read() == first
    shutil.rmtree(tmp_path / "datapipe")
    (tmp_path / "datapipe").write_text("a file where the folder should be")
    assert read() == first


@pytest.mark.slow
def test_edit_of_an_installed_file_changes_the_digest_and_a_comment_does_not(tmp_path: Path):
    for package in ("datapipe", "stages"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))

    def digest() -> str:
        script = "from datapipe.records.source_code import code_of_modules as code_of\n"
        script += "print(code_of(frozenset({'datapipe.steps.pack'})).digest)"
        environment = {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    before = digest()
    pack = tmp_path / "datapipe/steps/pack.py"
    text = pack.read_text()
    pack.write_text(f"# a comment\n{text}")
    assert digest() == before
    pack.write_text(text.replace("def run(self, ", "def run(self, unused=1, *, ", 1))
    assert digest() != before
    pack.write_text(text)
    assert digest() == before
