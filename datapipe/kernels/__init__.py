"""Compiled loops over raw buffers: the only place that knows numba.

    @kernel     a loop nest that stages and engine call, compiled once per machine for the types it is annotated with
    @inline     a function that kernels call, compiled into each of them

A kernel takes NumPy arrays, writes to its last arguments, returns nothing (or one number), allocates nothing large, and
releases the GIL. It is single-threaded: the engines are the only parallelism. `NUMBA_DISABLE_JIT=1` runs it as Python.

    types.py      what kernels are annotated with; signatures.py makes numba's types of it
    keys.py       what a kernel is compiled from, as a digest
    cache.py      compiled kernels on disk, one file for each
    compiled.py   loading and compiling by numba, which is imported with the first kernel that is called
    compiling.py  many kernels at once, by processes of their own
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from datapipe.kernels.cache import Entry
from datapipe.kernels.flags import FLAGS, FORMAT
from datapipe.kernels.keys import CodeReached, code_reached
from datapipe.kernels.types import signature_text

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

IS_COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
"""Whether kernels run compiled, and not as Python."""

_REGISTRY: dict[str, Kernel[..., Any]] = {}


class Kernel(Generic[Arguments, Returned]):
    """One loop nest, compiled (or loaded from the cache) at the first call. It is called as the function it is made of."""

    def __init__(self, function: Callable[Arguments, Returned]) -> None:
        self.function = function
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self.qualified_name = f"{function.__module__}:{function.__name__}"
        self.__doc__ = function.__doc__

    @cached_property
    def code(self) -> CodeReached:
        """What it is compiled from."""
        return code_reached(self.function, signature_text(self.function), FLAGS, FORMAT)

    @property
    def entry(self) -> Entry:
        """Where its compiled code is kept."""
        return Entry(self.name, self.code.key)

    @cached_property
    def signature(self) -> Any:
        """The types of arguments and result, as numba takes them."""
        from datapipe.kernels.signatures import signature_of

        return signature_of(self.function)

    @cached_property
    def compiled(self) -> Callable[Arguments, Returned]:
        if not IS_COMPILED:
            return np.errstate(over="ignore")(self.function)  # wrapped uint64 is meant; the state is per thread
        from datapipe.kernels.compiled import load_or_compile

        return load_or_compile(self.function, self.signature, self.entry)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        return self.compiled(*args, **kwargs)


class Inline:
    """A function that kernels call. Called from Python, it runs as Python."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__kernel_code__ = (function,)
        self.__doc__ = function.__doc__

    @cached_property
    def _dispatcher(self) -> Any:
        from datapipe.kernels.compiled import inline_dispatcher

        return inline_dispatcher(self.function)

    @property
    def _numba_type_(self) -> Any:
        return self._dispatcher._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def kernel(function: Callable[Arguments, Returned]) -> Kernel[Arguments, Returned]:
    """Declares a kernel, whose annotations are those of `datapipe.kernels.types`."""
    declared = Kernel(function)
    _REGISTRY[declared.name] = declared
    return declared


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declares a helper that only kernels call; it is compiled into each of them."""
    return Inline(function) if IS_COMPILED else function


def import_runtime() -> None:
    """Imports numba with all that it leaves to the first call of a kernel: 1 s. For whoever must start at once then."""
    if IS_COMPILED:
        from datapipe.kernels.compiled import refresh

        refresh()


def all_kernels() -> dict[str, Kernel[..., Any]]:
    """Every kernel by name ("words.find_words"), after importing every module of this folder."""
    for folder in pkgutil.iter_modules(__path__):
        if folder.ispkg:
            package = importlib.import_module(f"{__name__}.{folder.name}")
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def kernel_named(qualified_name: str) -> Kernel[..., Any] | None:
    """The kernel "datapipe.kernels.text.words:split_words"; None where that name stands for something else."""
    module, _, name = qualified_name.partition(":")
    declared = getattr(importlib.import_module(module), name, None)
    return declared if isinstance(declared, Kernel) else None
