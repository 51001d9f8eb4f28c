"""The modules of datapipe and stages that run inside a block, as the interpreter reports them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from datapipe.records.source_code import is_machinery

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = tuple(f"{_ROOT / package}/" for package in ("datapipe", "stages"))


@contextmanager
def executed() -> Iterator[set[str]]:
    """Yields a set that this thread fills with modules whose functions run, without machinery.

    Code that runs while a module is imported is left out: imports are in the code of their module already. Numba does not
    report compiled kernels; these count by the `Kernel` that is called.
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
        elif event == "call" and not importing and code.co_filename.startswith(_PACKAGES):
            ran.add(frame.f_globals.get("__name__", ""))
            if code.co_qualname == "Kernel.__call__":
                ran.add(frame.f_locals["self"].function.__module__)

    sys.setprofile(on_event)
    try:
        yield ran
    finally:
        sys.setprofile(None)
        ran -= {"", *filter(is_machinery, ran)}
