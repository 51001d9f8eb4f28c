"""The definitions of datapipe and stages that run inside a block, as the interpreter reports them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from datapipe.source_code.installed import installed_sources
from datapipe.source_code.reach import MACHINERY, Reached

_ROOT = Path(__file__).resolve().parents[2]
_COMPILES = frozenset({"Inline._dispatcher", "Inline._numba_type_", "Intrinsic._numba_type_"})
"""What runs of `datapipe.kernels` where a kernel is compiled, as at a first call on a machine."""

_PACKAGES = tuple(f"{_ROOT / package}/" for package in ("datapipe", "stages"))


@contextmanager
def executed() -> Iterator[set[str]]:
    """Yields a set that this thread fills with "module:function", "module:Class.method" and called kernels.

    Code that runs while a module is imported is left out: it makes constants, which count where they are used. Numba also
    reports compiled kernels, without their modules; these count by the `Kernel` that is called.
    """
    ran: set[str] = set()
    importing = 0

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        nonlocal importing
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code.co_name == "<module>":
            importing += 1 if event == "call" else -1
        elif event == "call" and not importing and _is_analysed(frame):
            name = code.co_qualname.partition(".<")[0]
            if not name.startswith("<") and name not in _COMPILES:
                ran.add(f"{frame.f_globals['__name__']}:{name}")
            if name == "Kernel.__call__":
                function = frame.f_locals["self"].function
                ran.add(f"{function.__module__}:{function.__name__}")

    sys.setprofile(on_event)
    try:
        yield ran
    finally:
        sys.setprofile(None)


def _is_analysed(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return bool(module) and frame.f_code.co_filename.startswith(_PACKAGES) and module not in MACHINERY


def not_covered(ran: set[str], *reached: Reached) -> list[str]:
    """The executed definitions that none of the digests covers."""
    covered = frozenset[str]().union(*(digest.names for digest in reached))
    return sorted(name for name in ran - covered if _class_that_counts(name) not in covered)


def _class_that_counts(name: str) -> str:
    """The class in the place of a member that has no digest of its own; else empty."""
    module_name, _, path = name.partition(":")
    class_name, _, member = path.partition(".")
    module = installed_sources().module(module_name)
    assert module is not None
    own = {method.name for owner in module.definitions.get(class_name, []) for method in owner.members}
    return f"{module_name}:{class_name}" if member and f"{class_name}.{member}" not in own else ""
