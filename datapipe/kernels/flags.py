"""How every kernel is compiled."""

FLAGS = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}
"""Numba's options of every kernel and of the functions that kernels call."""

FORMAT = 1
"""Raised when `compiled.py` makes other code of the same function."""
