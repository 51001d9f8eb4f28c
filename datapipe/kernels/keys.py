"""Digests of the code that a kernel is compiled from: the keys of the cache.

    function ──▶ its bytecode and constants ──▶ each global it reads ──┬── number, text, table: the value
                                                                       ├── NamedTuple: its name and fields
                                                                       └── @inline, @intrinsic: the same again, at any depth

The walk follows function objects, so the key depends on no path, time stamp, line number, comment or docstring.
`version_key` covers the version of Python. A global that the walk cannot follow is an error. An object that stands for
compiled code declares its parts in the attribute `__kernel_code__`.
"""

import dis
import hashlib
import inspect
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import version
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.errors import DatapipeError

_VERSIONED_MODULES = ("_heapq", "builtins", "itertools", "math", "numba", "numpy", "re", "sys", "unicodedata")
"""Modules whose contents `version_key` covers: their names suffice."""

_LIBRARIES = ("numpy", "numba", "llvmlite")

_CODEGEN_SETTINGS = (
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
    "NUMBA_ENABLE_AVX",
    "NUMBA_OPT",
    "NUMBA_LOOP_VECTORIZE",
    "NUMBA_SLP_VECTORIZE",
    "NUMBA_BOUNDSCHECK",
    "NUMBA_DEBUGINFO",
)
"""Environment variables that change the machine code numba emits."""

_TARGET = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
"""Where both are set, numba compiles for them, whatever processor it runs on: an image brings kernels to other machines."""


_FLAGS = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}

KERNEL_FLAGS = {**_FLAGS, "no_cfunc_wrapper": True}  # Numba's options for kernels
INLINE_FLAGS = {**_FLAGS, "no_cfunc_wrapper": True, "no_cpython_wrapper": True, "inline": "never"}
"""Numba's options for the functions that kernels call."""

FORMAT = 3
"""Raise it when `compiled.py` makes different code of the same function: all kernels then compile again."""


@lru_cache(maxsize=1)
def version_key() -> str:
    """A folder for all that decides compiled code beside the kernel: "python3.11.7-numpy2.4.6-…-<digest>". The digest
    covers the settings of code generation and the processor with its features, or `_TARGET`."""
    import llvmlite.binding as llvm  # pyright: ignore[reportMissingImports]

    target: list[Any] = [llvm.get_process_triple()]
    if not all(os.environ.get(name) for name in _TARGET):
        target += [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    target += [(name, os.environ.get(name, "")) for name in _CODEGEN_SETTINGS]
    target += [sys.implementation.cache_tag, sys.version]
    digest = hashlib.sha256(repr(target).encode()).hexdigest()[:16]
    libraries = "-".join(f"{name}{version(name)}" for name in _LIBRARIES)
    return f"python{platform.python_version()}-{libraries}-{digest}"


@dataclass(frozen=True, slots=True)
class CodeReached:
    """All code and data that a kernel is compiled from."""

    key: str  # the digest, 32 hex digits
    # size of the bytecode of the kernel and its inline functions: an estimate of the compile time
    bytecode_bytes: int


def code_reached(function: Callable[..., Any], *more: Any) -> CodeReached:
    """All code and data that a function reaches, and `more` of what decides the compiled code: its signature and flags."""
    walk = _Walk()
    walk.add(function)
    walk.add(more)
    return CodeReached(walk.hasher.hexdigest()[:32], walk.bytecode_bytes)


class _Walk:
    """Feeds values to a hasher; each function once."""

    def __init__(self) -> None:
        self.hasher = hashlib.sha256()
        self.bytecode_bytes = 0
        self._seen: dict[int, int] = {}
        self._where = "a kernel"

    def add(self, value: Any) -> None:
        """Adds a value and everything it reaches. Raises DatapipeError for a value that the walk cannot follow."""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
            self._write(type(value).__qualname__, repr(value))
        elif isinstance(value, np.ndarray):
            self._write("array", str(value.dtype), str(value.shape), np.ascontiguousarray(value).tobytes())
        elif isinstance(value, (tuple, list, frozenset)):
            self._add_items(value)
        elif isinstance(value, slice):
            self.add(("slice", value.start, value.stop, value.step))
        elif isinstance(value, Mapping):
            self._add_items(tuple(sorted(value.items())))
        elif isinstance(value, CodeType):
            self._add_code(value)
        elif isinstance(value, FunctionType) and value.__module__.partition(".")[0] not in _VERSIONED_MODULES:
            self._add_function(value)
        elif isinstance(value, ModuleType | FunctionType | BuiltinFunctionType | type | np.ufunc):
            self._add_named(value)
        else:
            self._add_declared(value)

    def _add_items(self, items: tuple[Any, ...] | list[Any] | frozenset[Any]) -> None:
        self._write(type(items).__qualname__, ",".join(getattr(items, "_fields", ())), str(len(items)))
        for item in sorted(items, key=repr) if isinstance(items, frozenset) else items:
            self.add(item)

    def _add_function(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            self._write("seen", str(self._seen[id(function)]))
            return
        self._seen[id(function)] = len(self._seen)
        outer, self._where = self._where, f"{function.__module__}.{function.__qualname__}"
        self._write("module", function.__module__)  # compiled code names the modules of what it is made of
        self.add(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents)
        for name in sorted(set(_global_names(function.__code__))):
            self._write("global", name)
            if name in function.__globals__:
                self.add(function.__globals__[name])
        self._where = outer

    def _add_code(self, code: CodeType) -> None:
        self.bytecode_bytes += len(code.co_code)
        self._write(
            "code", code.co_code, code.co_exceptiontable, " ".join([*code.co_names, *code.co_varnames, *code.co_freevars])
        )
        self._write(
            str(code.co_argcount), str(code.co_kwonlyargcount), str(code.co_flags & ~_HAS_DOCSTRING | _DEFERS_ANNOTATIONS)
        )
        for constant in _constants(code):
            self.add(constant)

    def _add_named(self, value: Any) -> None:
        """Adds a module, class or built-in by its name, since versions are part of the key; a NamedTuple by its fields."""
        fields = getattr(value, "_fields", None)
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "builtins"
        if fields is not None:
            self._write("namedtuple", value.__qualname__, ",".join(fields))
            self.add(value._field_defaults)
        elif module.partition(".")[0] in _VERSIONED_MODULES:
            self._write("name", module, getattr(value, "__qualname__", value.__name__))
        else:
            self._refuse(value)

    def _add_declared(self, value: Any) -> None:
        made_of = getattr(value, "__kernel_code__", None) or inspect.unwrap(value)  # that of a `cache`
        if made_of is value:
            self._refuse(value)
        self.add(made_of)

    def _refuse(self, value: Any) -> None:
        raise DatapipeError(
            f"{self._where} uses {value!r}, which the key of its compiled code cannot cover. Kernels may use numbers, text, "
            f"arrays, tuples, NamedTuples, @inline functions, @intrinsic, and names of {', '.join(_VERSIONED_MODULES)}."
        )

    def _write(self, *parts: str | bytes) -> None:
        for part in parts:
            content = part.encode() if isinstance(part, str) else part
            self.hasher.update(f"{len(content)}:".encode() + content)


def _constants(code: CodeType) -> tuple[Any, ...]:
    """The constants of a function without its docstring, which is the first constant."""
    if sys.version_info >= (3, 14):
        has_slot = bool(code.co_flags & _HAS_DOCSTRING)
    else:  # every function has the slot, None where there is no docstring
        has_slot = bool(code.co_flags & inspect.CO_NEWLOCALS) and not code.co_name.startswith("<")
    return code.co_consts[1:] if has_slot else code.co_consts


_HAS_DOCSTRING = 0x4000000  # inspect.CO_HAS_DOCSTRING of Python 3.14
_DEFERS_ANNOTATIONS = 0x1000000  # CO_FUTURE_ANNOTATIONS, which changes no code of a kernel
_LOAD_GLOBAL, _EXTENDED_ARG = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]


def _global_names(code: CodeType) -> Iterator[str]:
    """The globals that a function and the functions inside it read. Using `dis` takes ten times as long."""
    high = 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2]):
        if operation == _LOAD_GLOBAL:
            yield code.co_names[(high | argument) >> 1]  # the lowest bit marks a call
        high = (high | argument) << 8 if operation == _EXTENDED_ARG else 0
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
