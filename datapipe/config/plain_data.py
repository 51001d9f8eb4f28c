"""Values of Python as the plain data that YAML has: dict, list, str, int, float, bool, None.

    {"path": Path("a"), "keep": ("url",), "weight": np.float64(0.2)}   ->   {"path": "a", "keep": ["url"], "weight": 0.2}

A mixture that a program builds is checked as one in a file is, from there on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral, Rational, Real
from typing import Any

from datapipe.config.yaml import KeyPath, dotted
from datapipe.errors import UserError


def plain_data(value: Any, where: str, path: KeyPath = ()) -> Any:
    """The value as plain data, without anything of the original. Raises UserError for a value that no YAML has.

    Args:
        where: the argument, for error messages.
        path: of the value in it.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str):
            return str(text)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Rational):
        return float(value)
    if isinstance(value, list | tuple):
        return [plain_data(item, where, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, where, path): plain_data(item, where, (*path, _key(key, where, path))) for key, item in value.items()}
    raise UserError(
        f"{_place(where, path)}: found {type(value).__name__}, expected text, a number, True or False, None, a path, a list or "
        "a dict."
    )


def _key(key: Any, where: str, path: KeyPath) -> str:
    if isinstance(key, str):
        return str(key)
    raise UserError(f"{_place(where, path)}: found a key of type {type(key).__name__}, expected text.")


def _place(where: str, path: KeyPath) -> str:
    return ": ".join(part for part in (where, dotted(path)) if part)
