"""Tables of characters, kept in the cache of the machine: a worker builds those of a run in 0.2 s, and reads them in 0.01 s.

@stored_table       $XDG_CACHE_HOME/datapipe/tables/<function>-<key>.bin
def class_table()   the key covers the code and data that the function reaches (`keys.py`), the versions of Python, whose
                    Unicode database decides, and of NumPy, and the arguments
"""

import pickle
import platform
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from datapipe.kernels.keys import code_reached
from datapipe.kernels.types import input_record, read_only
from datapipe.machine.cache import cache_home, cached

Arguments = ParamSpec("Arguments")
Table = TypeVar("Table", bound=np.ndarray | tuple[Any, ...])


def stored_table(build: Callable[Arguments, Table]) -> Callable[Arguments, Table]:
    """Declares a function that builds a table, an array or a tuple of arrays, of nothing but its arguments. The arrays are
    read-only, made once per process, and built once per machine."""

    @cache
    @wraps(build)
    def table(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Table:
        arguments = (*args, *sorted(kwargs.items()))
        key = code_reached(build, platform.python_version(), np.__version__, arguments).key
        path = cache_home() / "tables" / f"{build.__name__}-{key}.bin"
        return _read_only(cached(path, partial(_content, build, *args, **kwargs), _table_of))

    return cast("Callable[Arguments, Table]", table)


def _content(build: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    return pickle.dumps(build(*args, **kwargs), protocol=5)


def _table_of(content: bytes) -> Any:
    try:
        return pickle.loads(content)
    except Exception as error:  # such as of a class that another version keeps in another module
        raise ValueError("no table of this version") from error


def _read_only(table: Any) -> Any:
    if isinstance(table, np.ndarray):
        return read_only(table)
    return input_record(type(table), table) if hasattr(table, "_fields") else tuple(map(_read_only, table))
