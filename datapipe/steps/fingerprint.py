"""Fingerprints: what a task is, as 256 bits of code, options and inputs. Equal fingerprint, equal outputs.

The code of a kind of task is the module that runs it and all that it imports (`source_code.py`), so a change runs the kinds
again that import the changed module, and no others. Stages are no part of it: a task has their digests among its `parts`.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.metadata import version
from typing import Any
from unicodedata import unidata_version

from datapipe.records.source_code import Code, code_of_modules

MODULES = {
    "map": "map",
    "reduce": "reduce",
    "merge": "reduce",
    "gather": "reduce",
    "rank": "ranking",
    "narrow": "ranking",
    "sample": "train",
    "train": "train",
    "tokenize": "tokenize",
    "pack": "pack",
    "write": "write",
}
"""By kind of task, the module of `tasks/` with the function that runs it: `run_KIND`."""

KINDS = tuple(MODULES)
"""Every kind of task."""

KINDS_OF_TOKENS = ("sample", "train", "tokenize", "pack")
"""The kinds that only runs with a tokenizer have; "write" is the one that only others have."""

_LIBRARIES = ("pyarrow", "numpy", "numba", "xxhash")
_ENCODING_KINDS, _ENCODING_LIBRARIES = ("sample", "train", "tokenize"), ("fastokens", "tokenizers")


def fingerprint(kind: str, **parts: Any) -> str:
    """The full-width identity of a task: 64 hex digits over its kind, the code it runs and `parts` (JSON-able)."""
    content = {"kind": kind, "code": code_digest(kind), **parts}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@lru_cache(maxsize=16)
def code_digest(kind: str) -> str:
    """Digest of the engine's code that tasks of this kind run, and of the libraries whose version decides bytes.

    Among them Python's Unicode tables, which say what a letter is.
    """
    names = (*_LIBRARIES, *(_ENCODING_LIBRARIES if kind in _ENCODING_KINDS else ()))
    libraries = " ".join([f"unicode={unidata_version}", *(f"{name}={version(name)}" for name in names)])
    return hashlib.sha256(f"{libraries} {code_of(kind).digest}".encode()).hexdigest()


def code_of(kind: str) -> Code:
    """The engine's code that tasks of a kind run."""
    return code_of_modules(frozenset({f"datapipe.steps.{MODULES[kind]}"}))
