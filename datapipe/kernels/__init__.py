"""Compiled loops over raw buffers: the only place that knows numba.

    @kernel("void(int64[::1], uint8[::1], int64[::1])")     a loop nest that stages and engine call, compiled once per machine
    @inline                                                  a helper that kernels call, compiled into each of them

A kernel takes NumPy arrays, writes to its last arguments, returns nothing (or one number), allocates nothing large, and
releases the GIL. It is single-threaded: the engines are the only parallelism. `NUMBA_DISABLE_JIT=1` runs it as Python.

Compiled code is kept under `$XDG_CACHE_HOME/datapipe/kernels-<digest>`, where the digest covers every file of this folder:
numba's own cache does not notice an edit to a helper in another file.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import xxhash

_FLAGS = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}
_REGISTRY: dict[str, Kernel] = {}


@lru_cache(maxsize=1)
def digest() -> str:
    """Full-width digest of every source file of this folder."""
    hasher = xxhash.xxh3_128()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        hasher.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return hasher.hexdigest()


def cache_folder() -> Path:
    """Where compiled kernels are kept on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "datapipe" / f"kernels-{digest()}-numba{numba.__version__}"


_config: Any = importlib.import_module("numba.core.config")  # its names come from the environment, so no checker knows them
_config.CACHE_DIR = str(cache_folder())


class Kernel:
    """One loop nest with its signature, compiled (or loaded from the cache) at the first call."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self.function = function
        self.signature = signature
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self.__doc__ = function.__doc__

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        if _config.DISABLE_JIT:
            return np.errstate(over="ignore")(self.function)  # wrapped uint64 is meant; the state is per thread
        return numba.njit(self.signature, cache=True, **_FLAGS)(self.function)

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Declares a kernel. The signature is numba's, with every array contiguous (`[::1]`)."""

    def declare(function: Callable[..., Any]) -> Kernel:
        declared = Kernel(function, signature)
        _REGISTRY[declared.name] = declared
        return declared

    return declare


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declares a helper that only kernels call; it is compiled into each of them."""
    return numba.njit(inline="never", **_FLAGS)(function)


def import_runtime() -> None:
    """Imports what numba leaves to the first call of a kernel: 0.4 s, half of it SciPy. For whoever must start at once then."""
    if not _config.DISABLE_JIT:
        registry: Any = importlib.import_module("numba.core.registry")
        registry.cpu_target.typing_context.refresh()
        registry.cpu_target.target_context.refresh()


def all_kernels() -> dict[str, Kernel]:
    """Every kernel by name ("words.find_words"), after importing every module of this folder."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(_REGISTRY.items()))


def are_compiled() -> bool:
    """Whether `compile_all` has finished on this machine for this very code."""
    return bool(_config.DISABLE_JIT) or (cache_folder() / "complete").exists()


def compile_all(progress: Callable[[str, int, int], None]) -> None:
    """Compiles every kernel into the cache, so that workers only load. Called once, by the driver, before they start.

    Args:
        progress: called before each kernel with its name, its number from 1, and how many there are.
    """
    if are_compiled():
        return
    declared = all_kernels()
    for number, (name, one) in enumerate(declared.items(), start=1):
        progress(name, number, len(declared))
        _ = one.compiled
    cache_folder().mkdir(parents=True, exist_ok=True)
    (cache_folder() / "complete").touch()
