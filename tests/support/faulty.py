"""Stages that keep every document. The first attempt at one with a certain first word ends its process, or stands still."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HANGS_S = 90
DAWDLES_S = 11.0
"""Two scrapes, and less than the 15 s after which a second attempt starts."""


def crashes_once(record: Mapping[str, Any], folder: str) -> bool:
    """Ends its process at "crashes". A file in `folder` remembers that it has."""
    return _keep(record, folder, "crashes", lambda: os.kill(os.getpid(), signal.SIGKILL))


def hangs_once(record: Mapping[str, Any], folder: str) -> bool:
    """Stands still at "hangs", likewise."""
    return _keep(record, folder, "hangs", lambda: time.sleep(HANGS_S))


def dawdles_once(record: Mapping[str, Any], folder: str) -> bool:
    """Sleeps at "dawdles", likewise, and goes on."""
    return _keep(record, folder, "dawdles", lambda: time.sleep(DAWDLES_S))


def _keep(record: Mapping[str, Any], folder: str, word: str, act: Callable[[], None]) -> bool:
    mark = Path(folder) / word
    if record["text"].startswith(f"{word} ") and not mark.exists():
        mark.touch()
        act()
    return True
