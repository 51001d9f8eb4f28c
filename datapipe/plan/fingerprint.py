"""Fingerprints: what a task is, as 256 bits of code, options and inputs. Equal fingerprint, equal outputs.

The code of a kind of task is the module that runs it and every module of datapipe that this one imports, however far down,
read from the sources. So no list can be forgotten, and a change re-runs the kinds that run the changed code and no others.
"""

from __future__ import annotations

import ast
import hashlib
import json
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_RUNNERS = {
    "map": "datapipe.executor.map",
    "reduce": "datapipe.executor.global_stage",
    "cluster": "datapipe.executor.global_stage",
    "sample": "datapipe.executor.tokenize",
    "train": "datapipe.executor.tokenize",
    "tokenize": "datapipe.executor.tokenize",
    "pack": "datapipe.executor.pack",
}
_LIBRARIES = ("pyarrow", "numpy", "numba", "tokenizers", "xxhash")


def fingerprint(kind: str, **parts: Any) -> str:
    """The full-width identity of a task: 64 hex digits over its kind, the code it runs and `parts` (JSON-able)."""
    content = {"kind": kind, "code": code_digest(kind), **parts}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@lru_cache(maxsize=16)
def code_digest(kind: str) -> str:
    """Digest of the engine's modules that tasks of this kind run, and of the libraries whose version decides bytes."""
    hasher = hashlib.sha256(" ".join(f"{name}={version(name)}" for name in _LIBRARIES).encode())
    for module in sorted(modules_of(kind)):
        hasher.update(f"{module}\0".encode() + _source_of(module).read_bytes())
    return hasher.hexdigest()


def modules_of(kind: str) -> set[str]:
    """The modules of datapipe that tasks of this kind run: the runner and all it imports, transitively."""
    found: set[str] = set()
    waiting = [_RUNNERS[kind]]
    while waiting:
        module = waiting.pop()
        if module not in found and _source_of(module).exists():
            found.add(module)
            waiting += _imports(_source_of(module))
    return found


def _source_of(module: str) -> Path:
    path = _ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imports(source: Path) -> list[str]:
    """Every module of datapipe that a file names in an import, inside functions too."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith("datapipe.")]


def short(full: str) -> str:
    """Twelve digits, for people to look at. Never used as an identity."""
    return full[:12]
