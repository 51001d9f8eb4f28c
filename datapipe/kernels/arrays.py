"""Copying and comparing arrays inside kernels."""

from typing import Any

from datapipe.kernels import inline


@inline
def copy_into(out: Any, values: Any) -> None:
    """Copies (n,) values. `out[:] = values` compiles for 2 s longer, because numba adds its messages about shapes."""
    for i in range(len(out)):
        out[i] = values[i]


@inline
def starts_with(data: Any, offset: Any, stop: Any, phrase: Any, case: Any) -> Any:
    """Whether `phrase`, in small letters, is at `offset`; in any case where `case` is 0x20."""
    if offset + len(phrase) > stop:
        return False
    for index in range(len(phrase)):
        byte = data[offset + index]
        if byte != phrase[index] and (not 0x41 <= byte <= 0x5A or byte | case != phrase[index]):
            return False
    return True
