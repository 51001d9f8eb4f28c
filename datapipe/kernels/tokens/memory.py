"""Arrays over memory known by its address: columns of mapped files.

    uint16_at(address, length)  ->  (length,) uint16, not copied
    prefetch(address)           ->  asks the processor to load the cache line at an address, which may be any

The caller checks that an address is aligned, and that the array lies in memory that outlives the kernel.
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

import numpy as np

from datapipe.kernels import intrinsic


class ArrayAt:
    """`view(address, length)`: a NumPy view in Python, and a pointer made from an integer in compiled kernels."""

    def __init__(self, dtype: type) -> None:
        self.dtype = np.dtype(dtype)
        self.__kernel_code__ = (str(self.dtype), _compiled_view)

    def __call__(self, address: Any, length: Any) -> Any:
        num_bytes = int(length) * self.dtype.itemsize
        return np.frombuffer(memoryview((ctypes.c_char * num_bytes).from_address(int(address))), self.dtype)

    @cached_property
    def _dispatcher(self) -> Any:
        from datapipe.kernels.compiled import inline_dispatcher

        return inline_dispatcher(_compiled_view(self.dtype))

    @property
    def _numba_type_(self) -> Any:
        return self._dispatcher._numba_type_


def _compiled_view(dtype: np.dtype) -> Any:
    """The function that numba compiles where a kernel calls `view`."""
    import numba
    from numba.core import types
    from numba.extending import intrinsic

    as_array: Any = vars(numba)["carray"]  # numba exports it, but its stubs do not
    pointer_type = types.CPointer(numba.from_dtype(dtype))

    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return pointer_type(types.int64), generate

    pointer_to: Any = intrinsic(typed)

    def view(address: Any, length: Any) -> Any:
        return as_array(pointer_to(address), length)

    return view


def _build_prefetch(_context: Any, address: Any) -> Any:
    from llvmlite import ir
    from numba.core import cgutils, types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # for reading, into every level of the cache, as data: https://llvm.org/docs/LangRef.html#llvm-prefetch-intrinsic
        builder.call(instruction, [builder.inttoptr(arguments[0], pointer), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic(_build_prefetch)
def prefetch(address: Any) -> None:
    """The processor's prefetch instruction in compiled kernels; nothing in Python."""


uint8_at = ArrayAt(np.uint8)
uint16_at = ArrayAt(np.uint16)
uint32_at = ArrayAt(np.uint32)
int32_at = ArrayAt(np.int32)
int64_at = ArrayAt(np.int64)
uint64_at = ArrayAt(np.uint64)
