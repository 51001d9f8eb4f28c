"""Fingerprints: what a task is, as 256 bits of code, options and inputs. Equal fingerprint, equal outputs.

The code of a kind of task is the function that runs it and all that it reaches (`source_code/`), so a change re-runs
the kinds that run the changed code and no others. Stages are no part of it: a task has their digests among its `parts`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import version
from typing import Any
from unicodedata import unidata_version

from datapipe import catalogue
from datapipe.source_code.installed import reached_by_names
from datapipe.source_code.reach import Reached
from datapipe.stage.base import Stage

_RUNNERS = {
    "map": "datapipe.tasks.map:run_map",
    "reduce": "datapipe.tasks.reduce:run_reduce",
    "merge": "datapipe.tasks.reduce:run_merge",
    "gather": "datapipe.tasks.reduce:run_gather",
    "rank": "datapipe.tasks.ranking:run_rank",
    "narrow": "datapipe.tasks.ranking:run_narrow",
    "sample": "datapipe.tasks.train:run_sample",
    "train": "datapipe.tasks.train:run_train",
    "tokenize": "datapipe.tasks.tokenize:run_tokenize",
    "pack": "datapipe.tasks.pack:run_pack",
    "write": "datapipe.tasks.write:run_write",
}
KINDS = tuple(_RUNNERS)
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
    return hashlib.sha256(f"{libraries} {reached_by(kind).digest}".encode()).hexdigest()


def reached_by(kind: str) -> Reached:
    """The engine's code that tasks of a kind run."""
    return reached_by_names((_RUNNERS[kind],))


def reached_kernels(kinds: Iterable[str], stages: Iterable[Stage]) -> frozenset[str]:
    """The kernels that tasks of these kinds may call with these stages: "datapipe.kernels.text.words:find_words"."""
    reached = [*map(reached_by, kinds), *map(catalogue.reached_by, stages)]
    return frozenset(kernel for code in reached for kernel in code.kernels)


def short(full: str) -> str:
    """Twelve digits, for people to look at. Never used as an identity."""
    return full[:12]
