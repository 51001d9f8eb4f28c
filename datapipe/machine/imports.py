"""pyarrow without pandas, which it imports, where it is installed, at the first value that it converts, in 0.4 s: the value may
be a Series. In the processes of datapipe pandas is absent for pyarrow until something else imports it, such as a stage."""

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def defer_pandas() -> None:
    """Lets pyarrow convert values without pandas until pandas is imported."""
    if not {"pandas", "pyarrow"} & sys.modules.keys():
        sys.meta_path.insert(0, _AfterImport("pyarrow", _without_pandas))


def _without_pandas() -> None:
    if "pandas" in sys.modules:  # which imports pyarrow
        return
    import pyarrow as pa

    sys.meta_path.insert(0, absent := _AfterImport("pandas", None))
    pa.scalar(0)
    sys.meta_path[sys.meta_path.index(absent)] = _AfterImport("pandas", _with_pandas)


def _with_pandas() -> None:
    import pyarrow as pa

    with suppress(ImportError):  # a version of pandas that pyarrow does not take
        pa.array([0]).to_pandas()  # asks for pandas again


class _AfterImport(MetaPathFinder):
    """Calls `action` once a module is imported. Where it is None, the module cannot be imported."""

    def __init__(self, name: str, action: Callable[[], None] | None) -> None:
        self._name, self._action = name, action

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None, /) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        if self._action is None:
            raise ModuleNotFoundError(name=fullname)
        others = (each for each in sys.meta_path if each is not self)
        spec = next((found for each in others if (found := each.find_spec(fullname, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            loader, action, execute = spec.loader, self._action, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                action()

            loader.exec_module = exec_module
        return spec
