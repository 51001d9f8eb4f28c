"""Imports of libraries that a process does not need.

pyarrow imports pandas, where it is installed, at the first value that it converts, in 0.4 s: the value may be a Series. In the
processes of datapipe pandas is absent for pyarrow until something else imports pandas, such as the stage of a user.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def defer_pandas() -> None:
    """Lets pyarrow convert values without pandas until pandas is imported."""
    _after_import("pyarrow", _without_pandas)


def _without_pandas() -> None:
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    sys.meta_path.insert(0, absent := _NoPandas())
    pa.scalar(0)
    sys.meta_path.remove(absent)
    _after_import("pandas", _with_pandas)


def _with_pandas() -> None:
    import pyarrow as pa

    with suppress(ImportError):  # a version of pandas that pyarrow does not take
        pa.array([0]).to_pandas()  # asks for pandas again


def _after_import(name: str, action: Callable[[], None]) -> None:
    """Calls `action` once a module is imported; now, if it is."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


class _AfterImport(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name, self._action = name, action

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        others = (each for each in sys.meta_path if each is not self)
        spec = next((found for each in others if (found := each.find_spec(fullname, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                self._action()

            loader.exec_module = exec_module
        return spec
