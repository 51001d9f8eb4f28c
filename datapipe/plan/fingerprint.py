"""Fingerprints: what a task is, as 256 bits of code, options and inputs. Equal fingerprint, equal outputs.

The code of a kind of task is the module that runs it and all that this one imports (`source_code.py`), so a change re-runs the
kinds that run the changed code and no others.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.metadata import version
from typing import Any
from unicodedata import unidata_version

from datapipe.source_code import digest_of

_RUNNERS = {
    "map": "datapipe.tasks.map",
    "reduce": "datapipe.tasks.reduce",
    "merge": "datapipe.tasks.reduce",
    "gather": "datapipe.tasks.reduce",
    "sample": "datapipe.tasks.sample",
    "train": "datapipe.tasks.train",
    "tokenize": "datapipe.tasks.tokenize",
    "pack": "datapipe.tasks.pack",
}
_LIBRARIES = ("pyarrow", "numpy", "numba", "tokenizers", "xxhash")


def fingerprint(kind: str, **parts: Any) -> str:
    """The full-width identity of a task: 64 hex digits over its kind, the code it runs and `parts` (JSON-able)."""
    content = {"kind": kind, "code": code_digest(kind), **parts}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@lru_cache(maxsize=16)
def code_digest(kind: str) -> str:
    """Digest of the engine's modules that tasks of this kind run, and of the libraries whose version decides bytes.

    Among them Python's Unicode tables, which say what a letter is.
    """
    libraries = " ".join([f"unicode={unidata_version}", *(f"{name}={version(name)}" for name in _LIBRARIES)])
    return hashlib.sha256(f"{libraries} {digest_of(_RUNNERS[kind])}".encode()).hexdigest()


def short(full: str) -> str:
    """Twelve digits, for people to look at. Never used as an identity."""
    return full[:12]
