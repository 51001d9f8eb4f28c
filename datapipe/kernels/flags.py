"""Compiler options of every kernel. Fingerprints and the keys of compiled code cover them."""

_FLAGS = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}

KERNEL_FLAGS = {**_FLAGS, "no_cfunc_wrapper": True}
"""Numba's options for kernels."""

INLINE_FLAGS = {**_FLAGS, "no_cfunc_wrapper": True, "no_cpython_wrapper": True, "inline": "never"}
"""Numba's options for the functions that kernels call."""

FORMAT = 2
"""Raise it when `compiled.py` makes different code of the same function: all kernels then compile anew."""
