"""Modules that a test file names at its top and that are imported by the first test that uses them.

    torch = late_import("torch")         nothing is imported
    torch.zeros(3)                       torch is imported

Collecting the tests imports every test file. Torch takes 4 s of CPU time to import, Ray 0.5 s, and most runs select no
test that needs them.
"""

import importlib
from typing import Any


class _LateModule:
    """Has the public names of a module, which is imported when the first of them is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # while it collects, pytest looks for __test__, __wrapped__ and the like in all it sees
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def late_import(name: str) -> Any:
    """Stands for the module `name`. Tests that use it are marked `needs` where it may not be installed."""
    return _LateModule(name)
