"""Compiled loops over raw buffers. Numba is used in this package and nowhere else.

    @kernel     a loop nest that stages and the engine call, compiled once per machine for its annotated types
    @inline     a function that kernels call, compiled into each of them
    @intrinsic  a function that kernels call, written in LLVM's instructions

A kernel takes NumPy arrays, writes to its last arguments, returns nothing or one number, allocates nothing large, and
releases the GIL. Kernels are single-threaded: the engines are the only parallelism. `NUMBA_DISABLE_JIT=1` runs kernels as
Python. A parameter of several types, `out: Int32sOut | Int64sOut`, makes a kernel for each of them.

Parameters that every kernel names alike, and that no other docstring describes:

    offsets, data         a column of texts: (num_docs + 1,) int64, and (num_bytes,) uint8 of any bytes
    out_offsets, out      a column of texts that the kernel writes, whose offsets begin at 0
    doc_offsets           (num_docs + 1,) int64: the words or lines of document i are `doc_offsets[i]:doc_offsets[i + 1]`
    classes, marks        tables of all code points: `unicode_classes.class_table`, `marks.mark_table`
    starts, stops         (num_spans,) int64, half-open ranges of bytes in `data`
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from datapipe.errors import UserError
from datapipe.kernels.cache import Entry
from datapipe.kernels.keys import FORMAT, INLINE_FLAGS, KERNEL_FLAGS, CodeReached, code_reached
from datapipe.kernels.types import function_by_type, signature_text
from datapipe.machine.memory import without_collection

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

IS_COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
"""Whether kernels run compiled. False where `NUMBA_DISABLE_JIT` is set: kernels then run as Python."""

_RUNTIME = "datapipe.kernels.compiled"
_REGISTRY: dict[str, Kernel[..., Any]] = {}


class Kernel(Generic[Arguments, Returned]):
    """A loop nest, compiled or loaded from the cache at its first call. It is called like the function it wraps."""

    def __init__(self, function: Callable[Arguments, Returned]) -> None:
        self.function = function
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self.qualified_name = f"{function.__module__}:{function.__name__}"
        self.__doc__ = function.__doc__

    @cached_property
    def code(self) -> CodeReached:
        return code_reached(self.function, signature_text(self.function), KERNEL_FLAGS, INLINE_FLAGS, FORMAT)

    @property
    def entry(self) -> Entry:
        return Entry(self.name, self.code.key)

    @property
    def is_loaded(self) -> bool:
        return "compiled" in vars(self)

    @cached_property
    def signature(self) -> Any:
        """Types of the arguments and of the result, as numba takes them."""
        from datapipe.kernels.compiled import signature_of

        return signature_of(self.function)

    @cached_property
    def compiled(self) -> Callable[Arguments, Returned]:
        if not IS_COMPILED:
            return np.errstate(over="ignore")(self.function)  # wrapped uint64 is meant; the state is per thread
        from datapipe.kernels.compiled import load_or_compile

        return load_or_compile(self.function, self.signature, self.entry)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        return self.compiled(*args, **kwargs)


class KernelByType(Generic[Arguments, Returned]):
    """One loop nest for several types of arrays: the type of the last argument, an output, decides which kernel is called."""

    def __init__(self, function: Callable[Arguments, Returned], kernels: dict[np.dtype, Kernel[Arguments, Returned]]) -> None:
        self.function, self.kernels = function, kernels
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        out: Any = args[-1]
        return self.kernels[out.dtype].compiled(*args, **kwargs)


class Inline:
    """A function that kernels call; Python may call it too. `build` writes the function in LLVM's
    instructions, as numba's `intrinsic` takes it; where it is None, numba compiles `function`."""

    def __init__(self, function: Callable[..., Any], build: Callable[..., Any] | None = None) -> None:
        self.function, self.build = function, build
        self.__kernel_code__ = (function,) if build is None else (function, build)
        self.__doc__ = function.__doc__

    @cached_property
    def _compiled(self) -> Any:
        from datapipe.kernels.compiled import inline_dispatcher, intrinsic_type

        return inline_dispatcher(self.function) if self.build is None else intrinsic_type(self.build)

    @property
    def _numba_type_(self) -> Any:
        return self._compiled if self.build is not None else self._compiled._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def kernel(function: Callable[Arguments, Returned]) -> Kernel[Arguments, Returned] | KernelByType[Arguments, Returned]:
    """Declares a kernel. Its annotations are those of `datapipe.kernels.types`."""
    by_type = {kind: Kernel(each) for kind, each in function_by_type(function).items()}
    _REGISTRY.update((declared.name, declared) for declared in by_type.values())
    return by_type[None] if None in by_type else KernelByType(function, by_type)


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declares a function that only kernels call; numba compiles it into each of them."""
    return Inline(function) if IS_COMPILED else function


def intrinsic(build: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares a function that only kernels call, with the instructions that `build` makes for the types of its arguments."""
    return lambda function: Inline(function, build) if IS_COMPILED else function


def import_runtime() -> None:
    """Imports numba, as the first call of a kernel would (0.5 s). Raises UserError without numba."""
    if IS_COMPILED and _RUNTIME not in sys.modules:
        try:
            with without_collection():
                importlib.import_module(_RUNTIME)
        except ModuleNotFoundError as error:
            if error.name not in ("numba", "llvmlite"):  # which come together
                raise
            raise UserError(
                "numba is not installed. Runs, and loaders that read files, need it: `pip install datapipe`. A loader of a "
                "service, grpc://HOST:PORT/NAME, does not."
            ) from error


def all_kernels() -> dict[str, Kernel[..., Any]]:
    """Every kernel by name ("words.find_words"). Imports every module of this package."""
    for folder in pkgutil.iter_modules(__path__):
        if folder.ispkg:
            package = importlib.import_module(f"{__name__}.{folder.name}")
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def kernels_named(qualified_name: str) -> list[Kernel[..., Any]]:
    """The kernels of "datapipe.kernels.text.words:split_words", by type of array; or none."""
    importlib.import_module(qualified_name.partition(":")[0])
    return [
        declared
        for declared in _REGISTRY.values()
        if qualified_name in (declared.qualified_name, f"{declared.function.__module__}:{declared.function.__code__.co_name}")
    ]
