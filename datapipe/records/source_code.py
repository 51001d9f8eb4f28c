"""Digests of code: what a stage or a kind of task imports, module by module.

    stages.filter.length ─▶ the modules that it imports, in functions too ─▶ … ─▶ digest of their normal forms, and kernels

Every module of datapipe, of its stages and of the user that imports lead to counts whole, except
`MACHINERY`. Libraries count by their versions, in the tasks (`versions.py`). The normal form of a module
leaves out comments, layout, docstrings, descriptions of options, messages of errors, and imports
for type checkers. A module whose name is computed is not followed.

The cache of the machine holds parsed modules, by digests of them, this file and Python's version.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import pickle
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

from datapipe.dataclass import dataclass
from datapipe.machine.cache import cache_home, cached

MACHINERY = tuple(
    f"datapipe.{name}"
    for name in (
        "credentials", "dataclass", "errors", "machine", "quantities", "storage",
        *(f"kernels.{name}" for name in ("cache", "compiled", "compiling", "keys")),
    )
)  # fmt: skip
"""Modules and packages that no digest covers, since no output depends on them."""

_INSIDE_MACHINERY = tuple(f"{name}." for name in MACHINERY)
_NAMING = frozenset({"datapipe", "datapipe.stage"})  # whose `__init__.py` only finds names

_PACKAGES = ("datapipe", "stages")
_ROOT = Path(__file__).resolve().parents[2]
_PROSE = frozenset({"description", "title", "examples"})  # arguments of `Field` that decide nothing


@dataclass(frozen=True, slots=True)
class Code:
    """Code with all that it imports: a digest of 64 hex digits over its modules, and `module:function` of every kernel."""

    digest: str
    modules: frozenset[str]
    kernels: frozenset[str]


def code_of_class(kind: type) -> Code:
    """The code of a class, of its base classes, and of all that their modules import."""
    modules = frozenset(base.__module__ for base in kind.__mro__)
    if kind.__module__.partition(".")[0] in _PACKAGES:
        return code_of_modules(modules)
    return _code(modules, _reader_of(kind.__module__, Path(inspect.getfile(kind))))


@lru_cache(maxsize=256)
def code_of_modules(modules: frozenset[str]) -> Code:
    """The code of modules of this installation, and of all that they import."""
    return _code(modules, lambda name: None)


@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of all source files of this installation and of Python's version: 32 hex digits."""
    content = xxhash.xxh3_128(platform.python_version().encode())
    for path in sorted(path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py")):
        source = path.read_bytes()
        content.update(f"\0{path.relative_to(_ROOT)}\0{len(source)}\0".encode() + source)
    return content.hexdigest()


def _reader_of(module: str, file: Path) -> Callable[[str], _Module | None]:
    """Reads a user's module and those beside it. Of an installed module, only its own package is the user's."""
    depth = len(module.split(".")) - (0 if file.name == "__init__.py" else 1)
    root = file.resolve().parents[depth]
    libraries = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    own = module.partition(".")[0] if root in libraries else None
    return lambda name: _read_in(root, name) if own in (None, name.partition(".")[0]) else None


def _code(modules: Iterable[str], read_of_user: Callable[[str], _Module | None]) -> Code:
    reached: dict[str, _Module] = {}
    pending = seen = set(modules)
    while pending:
        found = {name: module for name in pending if (module := _read_of(name, read_of_user)) is not None}
        reached |= found
        pending = set[str]().union(*(module.imports for module in found.values())) - seen
        seen = seen | pending
    digest = hashlib.sha256()
    for name in sorted(reached):
        digest.update(f"{name}\0".encode() + reached[name].form)
    kernels = (f"{name}:{kernel}" for name, module in reached.items() for kernel in module.kernels)
    return Code(digest.hexdigest(), frozenset(reached), frozenset(kernels))


def _read_of(name: str, read_of_user: Callable[[str], _Module | None]) -> _Module | None:
    if is_machinery(name):
        return None
    return _installed(name) if name.partition(".")[0] in _PACKAGES else read_of_user(name)


def is_machinery(name: str) -> bool:
    return name in _NAMING or name in MACHINERY or name.startswith(_INSIDE_MACHINERY)


@lru_cache(maxsize=8192)
def _installed(name: str) -> _Module | None:
    return _read_in(_ROOT, name)


def _read_in(root: Path, name: str) -> _Module | None:
    path = root.joinpath(*name.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return _parsed(name if file.name == "__init__.py" else name.rpartition(".")[0], file.read_bytes())
    return None


@dataclass(frozen=True, slots=True)
class _Module:
    form: bytes  # digest of the normal form
    # modules that it imports, the packages around them, and imported names, which may be modules
    imports: frozenset[str]
    kernels: frozenset[str]  # functions that are compiled


@lru_cache(maxsize=2048)
def _parsed(package: str, source: bytes) -> _Module:
    """The module of a source, whose relative imports begin in `package`. Cached: parsing all of datapipe takes a second."""
    key = xxhash.xxh3_128(f"{platform.python_version()}\0{_this_file()}\0{package}\0".encode() + source)
    path = cache_home() / "source_code" / f"{key.hexdigest()}.bin"
    return cached(path, lambda: pickle.dumps(_module_of(_NormalForm().visit(ast.parse(source)), package)), pickle.loads)


@lru_cache(maxsize=1)
def _this_file() -> str:
    return xxhash.xxh3_128_hexdigest(Path(__file__).read_bytes())


def _module_of(tree: ast.Module, package: str) -> _Module:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return _Module(
        form=hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).digest(),
        imports=_imports(tree, package),
        kernels=frozenset(node.name for node in functions if "kernel" in map(_last_name, node.decorator_list)),
    )


def _last_name(node: ast.AST) -> str:
    """`c` of `a.b.c`, `c` of `c`, and "" of anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _NormalForm(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        if _last_name(node.test) == "TYPE_CHECKING":
            return [self.visit(statement) for statement in node.orelse]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if _last_name(node.func) == "Field":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in _PROSE]
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
                part.value = ""  # a message; a text without a space may be a code that is caught
        return self.generic_visit(node)


def _imports(tree: ast.AST, package: str) -> frozenset[str]:
    """The modules that code imports, by statements and by literal names, and the packages around them."""
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules.update(_imported(node, package))
        elif isinstance(node, ast.Call) and _last_name(node.func) in ("import_module", "__import__"):
            modules.update(name.value for name in node.args[:1] if isinstance(name, ast.Constant) and type(name.value) is str)
    return frozenset(modules | {name[:end] for name in modules for end in range(len(name)) if name[end] == "."})


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1] if node.level else []
    module = ".".join([*base, *([node.module] if node.module else [])])
    yield module
    yield from (f"{module}.{alias.name}" for alias in node.names)
