"""Arrays copied within kernels."""

from __future__ import annotations

from typing import Any

from datapipe.kernels import inline


@inline
def copy_into(out: Any, values: Any) -> None:
    """Copies (n,) values. `out[:] = values` would compile for 2 s more: numba adds its messages about shapes."""
    for i in range(len(out)):
        out[i] = values[i]
