"""Compiler options of every kernel."""

FLAGS = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}
"""Numba's options for kernels and for the functions that kernels call."""

FORMAT = 1
"""Raise it when `compiled.py` generates different code for the same function: all kernels then compile anew."""
