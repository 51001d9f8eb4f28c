"""Arrays over memory that is known by its address: columns of mapped files, wherever they lie.

    uint16_at(address, length)  ->  (length,) uint16, not copied

Kernels that take addresses read whatever they are told to. So whoever makes an address has checked it first: that it is
aligned, and that all of the array lies in memory that is kept until the kernel returns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic, overload


def _array_at(dtype: type) -> Callable[[Any, Any], Any]:
    """`view(address, length)`, for Python as it stands and for compiled kernels as an integer that becomes a pointer."""
    as_array: Any = vars(numba)["carray"]  # numba exports it, and no type checker knows
    pointer_type = types.CPointer(numba.from_dtype(np.dtype(dtype)))

    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return pointer_type(types.int64), generate

    pointer_to: Any = intrinsic(typed)

    def view(address: Any, length: Any) -> Any:
        num_bytes = int(length) * np.dtype(dtype).itemsize
        return np.frombuffer(memoryview((ctypes.c_char * num_bytes).from_address(int(address))), dtype)

    @overload(view)
    def compiled(address: Any, length: Any) -> Any:
        def carry(address: Any, length: Any) -> Any:
            return as_array(pointer_to(address), length)

        return carry

    return view


uint16_at = _array_at(np.uint16)
uint32_at = _array_at(np.uint32)
int32_at = _array_at(np.int32)
int64_at = _array_at(np.int64)
uint64_at = _array_at(np.uint64)
