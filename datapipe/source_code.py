"""Which modules a module runs, read from the sources: itself and all it imports, however far down.

So what a fingerprint must cover is never a list that someone forgot to extend.
"""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("datapipe", "stages")


@lru_cache(maxsize=256)
def digest_of(module: str) -> str:
    """Digest of the sources of `module_closure(module)`: 64 hex digits."""
    hasher = hashlib.sha256()
    for name in sorted(module_closure(module)):
        hasher.update(f"{name}\0".encode() + _source(name).read_bytes() + b"\0")
    return hasher.hexdigest()


def module_closure(module: str) -> set[str]:
    """A module of datapipe or stages and every other of them that it imports, directly or not, inside functions too."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found and _source(name).is_file():
            found.add(name)
            waiting += _imports(_source(name))
    return found


def imports_of(source: Path) -> set[str]:
    """The closures of all that a file outside of the two packages imports from them: a user's stage, say."""
    return {name for one in _imports(source) for name in module_closure(one)}


def neighbours_of(source: Path, module: str) -> list[Path]:
    """The files of a user's own that a module of theirs imports, however far down: those below the same import root.

    Args:
        source: the module's file.
        module: its full name, which tells how far up the import root is.
    """
    depth = len(module.split(".")) - (0 if source.name == "__init__.py" else 1)
    root = source.resolve().parents[depth]
    found: set[Path] = set()
    waiting = [(source.resolve(), module)]
    while waiting:
        file, name = waiting.pop()
        if file in found:
            continue
        found.add(file)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for imported in _all_imports(file, package):
            path = root.joinpath(*imported.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            if path.is_file():
                waiting.append((path, imported))
    return sorted(found)


def _source(module: str) -> Path:
    path = _ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@lru_cache(maxsize=512)
def _imports(source: Path) -> tuple[str, ...]:
    """Every module of the two packages that a file names in an import."""
    return tuple(name for name in _all_imports(source, "") if name.partition(".")[0] in _PACKAGES)


def _all_imports(source: Path, package: str) -> list[str]:
    """Every name that a file's imports could mean a module by; names that are no modules do no harm.

    Args:
        package: what relative imports are relative to.
    """
    names: list[str] = []
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name]
