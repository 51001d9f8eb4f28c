"""A digest covers the definitions that code can reach and nothing else; those of installed code are kept on disk."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from datapipe import machine_cache
from datapipe.errors import DatapipeError
from datapipe.source_code import installed
from datapipe.source_code.installed import reached_by_names
from datapipe.source_code.reach import Folder, Reached, Sources, reach

pytestmark = pytest.mark.medium

QUESTION = ("datapipe.tasks.pack:run_pack",)
ROOT = Path(__file__).resolve().parents[3]


def reached(folder: Path, files: Mapping[str, str], *roots: str, is_strict: bool = True) -> Reached:
    """The definitions that the roots in a small package reach."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sources = Sources([Folder(folder, is_strict=is_strict)])
    return reach(sources, [definition for root in roots for definition in sources.definition(root)])


def names(digest: Reached) -> set[str]:
    return set(digest.names)


def digest_changes(folder: Path, text: str, before: str, after: str, *roots: str) -> bool:
    """Whether an edit of a.py changes the digest of these roots."""
    assert before in text
    return len({reached(folder, {"a.py": each}, *roots).digest for each in (text, text.replace(before, after))}) == 2


REACHED: dict[str, tuple[dict[str, str], str, set[str]]] = {
    "names, imports and lazy imports": (
        {
            "a.py": "import b\nimport p.q as q\nfrom c import deep as d\nLIMIT = 3\nUNUSED = 4\n"
            "def f():\n    from e import lazy\n    return b.g(LIMIT) + q.h() + d() + lazy()\ndef other(): return 1\n",
            "b.py": "def g(x): return x\ndef unused(): return 2\n",
            "c.py": "def deep(): return _own()\ndef _own(): return 1\n",
            "e.py": "def lazy(): return 1\n",
            "p/__init__.py": "",
            "p/q.py": "def h(): return 1\n",
        },
        "a:f",
        {"a:f", "a:LIMIT", "b:g", "p.q:h", "c:deep", "c:_own", "e:lazy"},
    ),
    "re-exported names": (
        {
            "p/__init__.py": "from .x import f\nfrom .y import g\nfrom .x import *\n",
            "p/x.py": "def f(): return 1\n",
            "p/y.py": "def g(): return 2\n",
            "a.py": "import p\nfrom p import f\ndef both(): return f() + p.g()\n",
        },
        "a:both",
        {"a:both", "p.x:f", "p.y:g"},
    ),
    "parameters and names of comprehensions": (
        {
            "a.py": "def words(): return 1\ndef lines(): return 2\n"
            "def f(words):\n    lines = words\n    return [lines for lines in lines], [other for other in words], other()\n"
            "def other(): return 3\n"
        },
        "a:f",
        {"a:f", "a:other"},
    ),
    "names that are assigned": (
        {
            "a.py": "from b import digest, total\nclass Task:\n    digest: str = ''\n    total = 1\n    total += 1\n",
            "b.py": "def digest(): return 1\ndef total(): return 2\n",
        },
        "a:Task",
        {"a:Task", "b:total"},
    ),
    "a star import": (
        {"a.py": "from b import *\ndef f(): return g()\n", "b.py": "def g(): return 1\ndef k(): return 1\n"},
        "a:f",
        {"a:f", "b:g"},
    ),
    "a module as a value": (
        {"a.py": "from b import *\nimport c\ndef h(): return show(c)\n", "b.py": "", "c.py": "def x(): return 1\nY = 2\n"},
        "a:h",
        {"a:h", "c:x", "c:Y"},
    ),
    "effects of a module": (
        {
            "a.py": "from b import f\ndef g(): return f()\n",
            "b.py": "TABLE = {}\nTABLE[1] = 2\ndef f(): return 1\nregister(f)\n"
            "if __name__ == '__main__':\n    main()\ndef main(): ...\n",
        },
        "a:g",
        {"a:g", "b:f", "b:"},
    ),
    "a member that a library may call": (
        {"a.py": "import threading\nclass Own(threading.Thread):\n    def run(self): return work()\ndef work(): return 1\n"},
        "a:Own",
        {"a:Own", "a:Own.run", "a:work"},
    ),
    "a look-up by a literal name": (
        {"a.py": "class C:\n    def m(self): return 1\n    def n(self): return 2\ndef f(x: C): return getattr(x, 'm')()\n"},
        "a:f",
        {"a:f", "a:C", "a:C.m"},
    ),
}


@pytest.mark.parametrize("case", REACHED)
def test_reach_follows_what_code_uses_and_nothing_else(tmp_path: Path, case: str):
    files, root, expected = REACHED[case]
    assert names(reached(tmp_path, files, root)) == expected


BATCH = """
class Base:
    def size(self): return self.helper()
    def helper(self): return 1
    def unused(self): return 2

class Batch(Base):
    limit: int = 3
    def __len__(self): return 4
    @property
    def words(self): return find_words()
    @registered
    def always(self): return 5

def find_words(): return 1
def f(batch: Batch): return batch.size()
def g(batch: Batch): return batch.words
def k(): return Batch()
"""


def test_members_count_where_their_name_is_used(tmp_path: Path):
    base = {"a:Base", "a:Batch"}
    assert names(reached(tmp_path, {"a.py": BATCH}, "a:k")) == {"a:k", *base}
    assert names(reached(tmp_path, {"a.py": BATCH}, "a:f")) == {"a:f", "a:Base.size", "a:Base.helper", *base}
    assert names(reached(tmp_path, {"a.py": BATCH}, "a:g")) == {"a:g", "a:Batch.words", "a:find_words", *base}


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("limit: int = 3", "limit: int = 4", True),
        ("limit: int = 3", "limit: float = 3", True),
        ("return 4", "return 5", True),
        ("return 5", "return 6", True),
        ("helper(self): return 1", "helper(self): return 2", False),
        ("find_words(): return 1", "find_words(): return 2", False),
    ],
)
def test_class_counts_with_what_runs_unnamed(tmp_path: Path, before: str, after: str, changes: bool):
    assert digest_changes(tmp_path, BATCH, before, after, "a:k") == changes


@pytest.mark.parametrize(
    "call",
    [
        *("getattr(x, name)", "globals()[name]", "eval(name)", "vars(x)[name]"),
        *("importlib.import_module(name)", "sys.modules[name]"),
    ],
)
def test_undeclared_computed_look_up_is_an_error_with_its_line(tmp_path: Path, call: str):
    text = f"import importlib, sys\ndef f(x, name):\n    return {call}\n"
    with pytest.raises(DatapipeError, match=rf"{re.escape(str(tmp_path))}/a\.py:3: "):
        reached(tmp_path, {"a.py": text}, "a:f")


def test_declared_look_up_reaches_what_it_declares(tmp_path: Path):
    text = "REACHES = {}\ndef g(): return 1\nclass C:\n    def m(self): return 1\n    def n(self): return 2\n"
    text += "def f(x: C, name): return getattr(x, name)\n"
    assert names(reached(tmp_path, {"a.py": text.format("()")}, "a:f")) == {"a:f", "a:C"}
    declared = text.format("('.n', 'a:g')")
    assert names(reached(tmp_path, {"a.py": declared}, "a:f")) == {"a:f", "a:C", "a:C.n", "a:g"}
    with pytest.raises(DatapipeError, match="a:gone"):
        reached(tmp_path, {"a.py": text.format("('a:gone',)")}, "a:f")


def test_computed_look_up_of_a_user_covers_their_modules_whole(tmp_path: Path):
    files = {
        "a.py": "from b import C\ndef f(x: C, name): return getattr(x, name)\ndef g(): return 1\n",
        "b.py": "import c\nclass C:\n    def m(self): return 1\ndef h(): return 1\n",
        "c.py": "def k(): return 1\n",
        "d.py": "def not_imported(): return 1\n",
    }
    found = names(reached(tmp_path, files, "a:f", is_strict=False))
    assert found == {"a:f", "a:g", "b:C", "b:C.m", "b:h", "c:k"}


SAMPLE = '''
"""Module."""
from pydantic import Field
import functools

class C:
    """Class."""
    a: int = Field(default=1, description="Some text.", ge=0)
    """Attribute."""

    @functools.lru_cache
    def m(self, x: int, *rest, y=None, **more) -> str:
        """Method."""
        total: float = 1e-3 + 0x10 + len(b"\\x00a")  # comment
        match x:
            case {"k": [1, *others], **left} if others: return f"a{x!r:>{total}}b" "c" f"{left=}"
        return "\U0001f6dc\\ud83d" if (n := x) else [*rest, lambda z: -z, {1: 2, **more}, ...]

    async def n(self):
        async with self as it:
            yield (await it)[1:2, ::3]
        try: pass
        except* ValueError as e: raise KeyError from e
'''


def test_normal_form_is_the_same_on_every_version_of_python(tmp_path: Path):
    """Python 3.11, 3.12 and 3.13 returned these bytes."""
    found = reached(tmp_path, {"a.py": SAMPLE}, "a:C", "a:C.m", "a:C.n")
    assert found.digest == "f79906f96592b0ff662b89259748be5f58437f7007d4c1de3040f8f712043ba2"


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("Some text.", "Other text.", False),
        ("Method.", "Other.", False),
        ("Attribute.", "Other.", False),
        ("# comment", "# other", False),
        ("x: int,", "x: float,", True),
        ("total: float", "total: int", False),
        ("a: int", "a: float", True),
        ("ge=0", "ge=1", True),
        ("0x10", "16", False),
        ("0x10", "17", True),
        ('b" "c"', 'bc"', False),
        ("[1:2, ::3]", "[1:2, ::4]", True),
    ],
)
def test_normal_form_changes_with_what_code_does(tmp_path: Path, before: str, after: str, changes: bool):
    assert digest_changes(tmp_path, SAMPLE, before, after, "a:C", "a:C.m", "a:C.n") == changes


CHECKS = "import typing\nL = []\nif typing.TYPE_CHECKING: pass\nelse: L.append({})\n"
RULES = "from u import rule, RULES\n@rule\ndef clean(): return {}\n"
MEANINGS = {
    "imported name": ("f(1.5)", "from math import floor as f\n", "from math import ceil as f\n"),
    "imported module": ("m.sqrt(2)", "import math as m\n", "import cmath as m\n"),
    "swapped names": ("x, y", "from u import lo as x, hi as y\n", "from u import hi as x, lo as y\n"),
    "last star": ("lo", "from u import *\nfrom v import *\n", "from v import *\nfrom u import *\n"),
    "order": ("LIMIT", "LIMIT = 1\nLIMIT = 2\n", "LIMIT = 2\nLIMIT = 1\n"),
    "registry": ("RULES", RULES.format(1), RULES.format(2)),
    "import effect": ("L", "if __name__ != '__main__': L = [1]\n", "if __name__ != '__main__': L = [2]\n"),
    "else of checks": ("L", CHECKS.format(1), CHECKS.format(2)),
}


@pytest.mark.parametrize("meaning", MEANINGS)
def test_edit_of_what_a_name_means_changes_the_digest(tmp_path: Path, meaning: str) -> None:
    value, *texts = MEANINGS[meaning]
    shared = {"u.py": "lo = 1\nhi = 2\nRULES = []\ndef rule(f):\n    RULES.append(f)\n    return f\n", "v.py": "lo = 3\n"}
    first, second = (
        reached(tmp_path / str(number), {**shared, "a.py": f"{text}def root(): return {value}\n"}, "a:root", is_strict=False)
        for number, text in enumerate(texts)
    )
    assert first.digest != second.digest


QUESTION = ("datapipe.tasks.pack:run_pack",)
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _forget()
    yield tmp_path / "datapipe" / "source_code"
    _forget()


def _forget() -> None:
    reached_by_names.cache_clear()
    installed.source_digest.cache_clear()


@pytest.mark.medium
def test_answer_is_kept_and_read_without_an_analysis(kept: Path, monkeypatch: pytest.MonkeyPatch):
    first = reached_by_names(QUESTION)
    (path,) = kept.glob("*/*.bin")
    content = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(installed, "reach", None)
        _forget()
        assert reached_by_names(QUESTION) == first
    assert "datapipe.tasks.pack:run_pack" in first.names
    assert first.kernels < first.names
    path.write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
    _forget()
    assert reached_by_names(QUESTION) == first
    assert path.read_bytes() == content
    question = ("datapipe.tasks.map:run_map",)
    assert reached_by_names(question, ("words",)).names > reached_by_names(question).names
    assert len(list(kept.glob("*/*.bin"))) == 3


@pytest.mark.medium
def test_cache_that_cannot_be_written_is_done_without(kept: Path):
    kept.parent.parent.joinpath("datapipe").write_text("a file where the folder should be")
    assert reached_by_names(QUESTION).names


@pytest.mark.slow
def test_edit_of_any_file_asks_again_and_changes_what_it_must(tmp_path: Path):
    for package in ("datapipe", "stages"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))

    def digest() -> str:
        code = f"from datapipe.source_code.installed import reached_by_names as r; print(r({QUESTION!r}).digest)"
        environment = {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    before = digest()
    pack = tmp_path / "datapipe/tasks/pack.py"
    text = pack.read_text()
    pack.write_text(f"# a comment\n{text}")
    assert digest() == before
    pack.write_text(text.replace("def run_pack(", "def run_pack(unused=1, *, ", 1))
    assert digest() != before
    pack.write_text(text)
    assert digest() == before
    assert len(list((tmp_path / "cache/datapipe/source_code").glob("*"))) == 3


def test_unused_files_are_deleted_and_used_ones_marked(tmp_path: Path):
    path = tmp_path / "answer.bin"
    machine_cache.write_checked(path, b"data")
    stat = path.stat()
    machine_cache.remove_older(path, stat.st_mtime - 1)
    assert machine_cache.read_checked(path) == b"data"
    machine_cache.remove_older(path, stat.st_mtime + 1)
    assert machine_cache.read_checked(path) is None
    assert list(tmp_path.iterdir()) == []
