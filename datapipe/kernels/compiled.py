"""From a declared kernel to machine code: loaded from the cache, or compiled and put there. Imports numba.

Functions that kernels call are compiled without the wrappers by which Python and C would call them: of 52 CPU seconds for the
kernels of the quickstart they took 10.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba.core import caching, compiler, registry, serialize

from datapipe.errors import DatapipeError
from datapipe.kernels.cache import Entry
from datapipe.kernels.flags import FLAGS

_KERNEL_FLAGS = {**FLAGS, "no_cfunc_wrapper": True}
_INLINE_FLAGS = {**FLAGS, "no_cfunc_wrapper": True, "no_cpython_wrapper": True, "inline": "never"}


class _KernelCache(caching._Cache):
    """Numba's view of one entry: a dispatcher asks it before it compiles, and tells it what it has compiled."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    @property
    def cache_path(self) -> Any:
        return str(self._entry.path.parent)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        data = self._entry.read()
        if data is None:
            return None
        target_context.refresh()
        return compiler.CompileResult._rebuild(target_context, *pickle.loads(data))

    def save_overload(self, sig: Any, data: Any) -> None:
        if data.library.has_dynamic_globals:
            raise DatapipeError(f"{self._entry.name}: numba cannot keep its code, because a table in it is too large.")
        try:
            self._entry.write(serialize.dumps(data._reduce()))
        except OSError as error:
            warnings.warn(
                f"compiled kernels cannot be kept in {self.cache_path}: {error.strerror}. Each process compiles them anew. "
                "Set XDG_CACHE_HOME to a folder that can be written.",
                RuntimeWarning,
                stacklevel=2,
            )

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


def load_or_compile(function: Callable[..., Any], signature: Any, entry: Entry) -> Callable[..., Any]:
    """The machine code of a kernel: from its entry, or compiled now unless another process is about to finish it."""
    if entry.exists():
        return compile_into(function, signature, entry)
    with entry.lock():
        return compile_into(function, signature, entry)


def compile_into(function: Callable[..., Any], signature: Any, entry: Entry) -> Callable[..., Any]:
    """The machine code of a kernel, from its entry where there is one, else kept there. The caller holds the entry's lock."""
    dispatcher: Any = numba.njit(**_KERNEL_FLAGS)(function)
    dispatcher._cache = _KernelCache(entry)
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def inline_dispatcher(function: Callable[..., Any]) -> Any:
    """What stands for a function that kernels call while one of them is compiled."""
    return numba.njit(**_INLINE_FLAGS)(function)


def refresh() -> None:
    """Imports what numba leaves to the first call of a kernel: 0.4 s, half of it SciPy."""
    target: Any = registry.cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()
