"""Loads a kernel's machine code from the cache, or compiles and stores it. Imports numba.

Functions that kernels call are compiled without wrappers for calls from Python and C, which took 10
of the 52 CPU seconds of the quickstart's kernels.
"""

import pickle
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import llvmlite.binding as llvm  # pyright: ignore[reportMissingImports]
import numba
import numpy as np
from numba.core import caching, compiler, compiler_lock, errors, registry, serialize, types
from numba.core.runtime.nrt import rtsys
from numba.core.typing import templates

from datapipe.errors import DatapipeError
from datapipe.kernels.cache import Entry
from datapipe.kernels.keys import INLINE_FLAGS, KERNEL_FLAGS
from datapipe.kernels.types import annotations_of, fields_of, form_of, is_array, is_record
from datapipe.machine.activity import doing, starting
from datapipe.machine.cache import read_checked, write_checked


class _KernelCache(caching._Cache):
    """The cache of one kernel as numba sees it: numba loads from it before it compiles and saves to it afterwards."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    @property
    def cache_path(self) -> Any:
        return str(self._entry.path.parent)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        data = read_checked(self._entry.path)
        if data is None:
            return None
        rtsys.initialize(target_context)  # what else numba imports at a refresh, in 0.3 s, only compiling needs
        return compiler.CompileResult._rebuild(target_context, *pickle.loads(data))

    def save_overload(self, sig: Any, data: Any) -> None:
        if data.library.has_dynamic_globals:
            raise DatapipeError(
                f"{self._entry.name}: numba cannot store its code, because a global table is too large. Pass it as an argument."
            )
        try:
            write_checked(self._entry.path, serialize.dumps(_parts(data)))
        except OSError as error:
            warnings.warn(
                f"compiled kernels cannot be stored in {self.cache_path}: {error.strerror}. Each process compiles its own. "
                "Set XDG_CACHE_HOME to a writable folder.",
                RuntimeWarning,
                stacklevel=2,
            )

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


def _parts(result: Any) -> tuple[Any, ...]:
    """What `CompileResult._rebuild` takes to call a kernel. Left out is what only other functions that call it would need: its
    bitcode, of which the names of symbols stay, and the environments of inlined functions, whose modules would be
    imported (`numba.np.arraymath` imports scipy, 0.3 s)."""
    (name, kind, (machine_code, bitcode)), *others, _annotations, reload_init, _environments = result._reduce()
    defined = llvm.parse_bitcode(bitcode)
    symbols = [each.name for each in (*defined.functions, *defined.global_variables) if not each.is_declaration]
    listed = llvm.parse_assembly("\n".join(f'@"{symbol}" = global i8 0' for symbol in symbols))
    return (name, kind, (machine_code, listed.as_bitcode())), *others, "", reload_init, ()


def load_or_compile(function: Callable[..., Any], signature: Any, entry: Entry) -> Callable[..., Any]:
    """The machine code of a kernel. Waits where another process is compiling the same kernel."""
    with ExitStack() as stack:
        stack.enter_context(starting())
        if entry.path.exists():
            return compile_into(function, signature, entry)
        with doing(f"waiting for kernel {entry.name}, which another process compiles", is_waiting=True):
            stack.enter_context(entry.lock())
        with doing(f"compiling kernel {entry.name}"):
            return compile_into(function, signature, entry)


def compile_into(function: Callable[..., Any], signature: Any, entry: Entry) -> Callable[..., Any]:
    """The machine code of a kernel, from its entry or compiled and stored. The caller holds the lock."""
    dispatcher: Any = numba.njit(**KERNEL_FLAGS)(function)
    dispatcher._cache = _KernelCache(entry)
    try:
        dispatcher.compile(signature)
    except errors.NumbaError as error:  # the kernel's fault, and no document's
        raise DatapipeError(f"kernel {entry.name} cannot be compiled: {error}") from error
    dispatcher.disable_compile()
    return dispatcher


def inline_dispatcher(function: Callable[..., Any]) -> Any:
    """The numba function that kernels call in place of `function`."""
    return numba.njit(**INLINE_FLAGS)(function)


def intrinsic_type(build: Callable[..., Any]) -> Any:
    """The type of a function whose instructions `build` writes. Numbers written in a call reach `build` as literal types."""
    return types.Function(templates.make_intrinsic_template(build, build, build.__name__, prefer_literal=True))


def refresh() -> None:
    """Imports the parts of numba that the first compilation needs: 0.3 s. One thread at a time does."""
    target: Any = registry.cpu_target
    with compiler_lock.global_compiler_lock:
        target.typing_context.refresh()
        target.target_context.refresh()


_NUMBERS: dict[Any, types.Type] = {
    int: types.int64,
    bool: types.boolean,
    float: types.float64,
    np.uint64: types.uint64,
    type(None): types.void,
}


def signature_of(function: Callable[..., Any]) -> Any:
    """The numba signature that the annotations of a function declare. Raises TypeError for a missing or unknown annotation."""
    parameters, result = annotations_of(function)
    return numba_type(result)(*map(numba_type, parameters.values()))


def numba_type(annotation: Any) -> Any:
    """The numba type of an annotation of `types.py`. Raises TypeError for any other annotation."""
    if annotation in _NUMBERS:
        return _NUMBERS[annotation]
    if is_array(annotation):
        form = form_of(annotation)
        item: Any = form.item
        kind = numba.from_dtype(np.dtype(item))
        return types.Array(kind, form.num_axes, "C", readonly=not form.writable, aligned=form.aligned)
    if is_record(annotation):
        return types.BaseTuple.from_types([numba_type(field) for field in fields_of(annotation)], annotation)
    raise TypeError(f"no kernel takes {annotation!r}; the annotations are listed in datapipe/kernels/types.py")
