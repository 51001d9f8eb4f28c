"""A digest covers the definitions that the code can reach, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from datapipe import catalogue
from datapipe.errors import DatapipeError
from datapipe.plan.fingerprint import _RUNNERS as RUNNERS
from datapipe.source_code.installed import installed_sources
from datapipe.source_code.reach import Folder, Reached, Sources, reach
from datapipe.stage import Stage

pytestmark = pytest.mark.medium

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


# ------------------------------------------------------------------------------------------------ names

PACKAGE = {
    "p/__init__.py": "from .x import f\nfrom .y import g\nfrom .x import *\n",
    "p/x.py": "def f(): return 1\n",
    "p/y.py": "def g(): return 2\n",
}
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
    "a re-exported name": ({**PACKAGE, "a.py": "from p import f\ndef one(): return f()\n"}, "a:one", {"a:one", "p.x:f"}),
    "a re-exporting package": ({**PACKAGE, "a.py": "import p\ndef two(): return p.f()\n"}, "a:two", {"a:two", "p.x:f"}),
    "a parameter": (
        {
            "a.py": "def words(): return 1\ndef lines(): return 2\n"
            "def f(words):\n    lines = words\n    return [lines for lines in lines]\n"
        },
        "a:f",
        {"a:f"},
    ),
    "a name of a comprehension": (
        {"b.py": "def words(): return 1\ndef f(x):\n    return [words for words in x], words()\n"},
        "b:f",
        {"b:f", "b:words"},
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


# ------------------------------------------------------------------------------------------------ classes

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
        ("unused(self): return 2", "unused(self): return 3", False),
        ("find_words(): return 1", "find_words(): return 2", False),
    ],
)
def test_class_counts_with_what_runs_unnamed(tmp_path: Path, before: str, after: str, changes: bool):
    first = reached(tmp_path, {"a.py": BATCH}, "a:k").digest
    assert (reached(tmp_path, {"a.py": BATCH.replace(before, after)}, "a:k").digest != first) == changes


# ------------------------------------------------------------------------------------------------ computed look-ups


LOOK_UPS = ["getattr(x, name)", "globals()[name]", "eval(name)", "vars(x)[name]", "importlib.import_module(name)"]


@pytest.mark.parametrize("call", [*LOOK_UPS, "sys.modules[name]"])
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
    with pytest.raises(DatapipeError, match="a:gone is no definition"):
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


# ------------------------------------------------------------------------------------------------ the normal form

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
    roots = ("a:C", "a:C.m", "a:C.n")
    first = reached(tmp_path, {"a.py": SAMPLE}, *roots).digest
    assert before in SAMPLE
    assert (reached(tmp_path, {"a.py": SAMPLE.replace(before, after)}, *roots).digest != first) == changes


# ------------------------------------------------------------------------------------------------ the real tree

STAGES = {name: catalogue.stage_class(name) for name in catalogue.stage_names()} | {
    f"read.{name}": found for name, found in catalogue.readers().items()
}


def copy_of(folder: Path, edit: Callable[[str, str], str]) -> Sources:
    """The sources of datapipe and stages, each file replaced by `edit` of its path and text."""
    for package in ("datapipe", "stages"):
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(edit(name, path.read_text()))
    return Sources([Folder(folder, frozenset({"datapipe", "stages"}), is_strict=True)])


def all_digests(sources: Sources) -> dict[str, str]:
    """Digests by kind of task, and by stage with its default options."""
    digests = {kind: reach(sources, sources.definition(runner)).digest for kind, runner in RUNNERS.items()}
    for name, found in STAGES.items():
        classes = [f"{one.__module__}:{one.__qualname__}" for one in found.__mro__ if issubclass(one, Stage)]
        roots = [one for identity in classes for one in sources.definition(identity)]
        members = [member for one in roots for member in one.members]
        digests[name] = reach(sources, [*roots, *members], found.model_construct().segmentations()).digest
    return digests


def without_prose(text: str) -> str:
    """The file with longer docstrings and more comments, so that every line moves."""
    nodes = list(ast.walk(ast.parse(text)))
    strings = [node for node in nodes if isinstance(node, (ast.Constant, ast.JoinedStr))]
    inside = {line for node in strings for line in range(node.lineno, node.end_lineno or 0)}
    lines = [
        f"{line}  # a remark" if line.strip() and number not in inside else line
        for number, line in enumerate(text.splitlines(), start=1)
    ]
    docstrings = [
        node.body[0].value
        for node in nodes
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None
    ]  # type: ignore[attr-defined]
    for string in sorted(docstrings, key=lambda node: -node.lineno):
        lines[string.lineno - 1 : string.end_lineno] = [" " * string.col_offset + '"""Other words."""', "", "# more"]
    return "\n".join(["# a remark", *lines])


def with_edit(text: str, function: str) -> str:
    """The file with one more statement in a function."""
    (node,) = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef) and one.name == function)
    lines, first = text.splitlines(), node.body[-1]
    lines.insert(first.lineno - 1, " " * first.col_offset + "_edited = 1")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def digests() -> dict[str, str]:
    return all_digests(installed_sources())


@pytest.mark.slow
def test_prose_anywhere_changes_no_digest(tmp_path: Path, digests: dict[str, str]):
    described = re.compile(r'description=(["\'])')
    edited = copy_of(tmp_path, lambda _, text: described.sub(r"description=\1Other words. ", without_prose(text)))
    assert all_digests(edited) == digests


EDITS = [
    {
        ("datapipe/kernels/redact/tokens.py", "pem_stop"): {"redact.secrets"},
        ("datapipe/kernels/text/english_words.py", "cut_words"): {"filter.fineweb_quality"},
        ("datapipe/kernels/filters/repetition.py", "measure_ngrams"): {"filter.gopher_repetition"},
        ("datapipe/tokens/packing.py", "assemble"): {"pack"},
        ("datapipe/report/funnel.py", "funnel"): set(),
    },
    {
        ("datapipe/kernels/filters/repetition.py", "measure_units"): {"filter.gopher_repetition", "filter.fineweb_quality"},
        ("datapipe/tasks/contract/guard.py", "run"): {"map"},
        ("stages/filter/length.py", "process"): {"filter.length"},
    },
]
"""Functions, and the stages and kinds of task that use each; of the edits that are made at once, each is used by others."""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EDITS)))
def test_edits_change_what_uses_them_and_nothing_else(tmp_path: Path, digests: dict[str, str], number: int):
    functions = dict(list(EDITS[number]))  # of each file
    edited = all_digests(copy_of(tmp_path, lambda name, text: with_edit(text, functions[name]) if name in functions else text))
    assert {name for name in digests if digests[name] != edited[name]} == set().union(*EDITS[number].values())


# ------------------------------------------------------------------------------------------------ what a name means


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
