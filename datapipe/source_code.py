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
    """The closures of all that a file outside of datapipe imports from it: of a user's stage, say."""
    return {name for one in _imports(source) for name in module_closure(one)}


def _source(module: str) -> Path:
    path = _ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@lru_cache(maxsize=512)
def _imports(source: Path) -> tuple[str, ...]:
    """Every module of the two packages that a file names in an import; names that are no modules do no harm."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(name for name in names if name.partition(".")[0] in _PACKAGES)
