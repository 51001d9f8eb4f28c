"""Stages that keep every document. The first attempt at one with a certain first word ends its process, or stands still."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HANGS_S = 90
DAWDLES_S = 11.0
"""Two scrapes, and less than the 15 s after which a second attempt starts."""


def crashes_once(record: Mapping[str, Any], folder: str = "") -> bool:
    """Ends its process at "crashes". A file in `folder` remembers that it has."""
    if record["text"].startswith("crashes ") and _is_first(Path(folder) / "crashes"):
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def hangs_once(record: Mapping[str, Any], folder: str = "") -> bool:
    """Stands still at "hangs", likewise."""
    if record["text"].startswith("hangs ") and _is_first(Path(folder) / "hangs"):
        time.sleep(HANGS_S)
    return True


def dawdles_once(record: Mapping[str, Any], folder: str = "") -> bool:
    """Sleeps at "dawdles", likewise, and goes on."""
    if record["text"].startswith("dawdles ") and _is_first(Path(folder) / "dawdles"):
        time.sleep(DAWDLES_S)
    return True


def _is_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
