"""Converts the annotations of kernels to numba's types. Imported with the first kernel that is called: importing numba is
slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from datapipe.kernels.types import annotations_of, fields_of, form_of, is_array, is_record

_NUMBERS: dict[Any, types.Type] = {
    int: types.int64,
    bool: types.boolean,
    float: types.float64,
    np.uint64: types.uint64,
    type(None): types.void,
}


def signature_of(function: Callable[..., Any]) -> Any:
    """The numba signature that the annotations of a function declare.

    Raises:
        TypeError: A parameter or the result has no annotation, or one that kernels do not take.
    """
    parameters, result = annotations_of(function)
    return numba_type(result)(*map(numba_type, parameters.values()))


def numba_type(annotation: Any) -> Any:
    """The numba type of an annotation of `types.py`.

    Raises:
        TypeError: The table of `types.py` does not list the annotation.
    """
    if annotation in _NUMBERS:
        return _NUMBERS[annotation]
    if is_array(annotation):
        form = form_of(annotation)
        kind = types.boolean if form.item is np.bool_ else getattr(types, form.item.__name__)
        return types.Array(kind, form.num_axes, "C", readonly=not form.writable, aligned=form.aligned)
    if is_record(annotation):
        return types.BaseTuple.from_types([numba_type(field) for field in fields_of(annotation)], annotation)
    raise TypeError(f"no kernel takes {annotation!r}; the annotations are listed in datapipe/kernels/types.py")
