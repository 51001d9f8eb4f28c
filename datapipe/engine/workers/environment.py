"""What a process of datapipe needs of its surroundings, made so at its start.

A descriptor 0, 1 or 2 that is closed would be given to the next file that is opened, and what a library prints would go into
that file. A locale without Unicode makes the arrows of a message an error. The usual soft limit of open files, 1,024, is for
programs that use select(2); none of ours does.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from io import TextIOWrapper

from datapipe.terminal import guard_standard_streams

MOST_OPEN_FILES = 1 << 16
"""More is never of use, and some libraries go through all descriptors that there may be."""


def prepare_process() -> None:
    """To be called first in a process."""
    _open_standard_streams()
    _print_any_text()
    guard_standard_streams()
    _raise_open_files()


def _open_standard_streams() -> None:
    """Opens those of the descriptors 0 to 2 that are closed, on nothing."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free


def _print_any_text() -> None:
    """Characters that the locale lacks become question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


def _raise_open_files() -> None:
    """Raises the soft limit of open files to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
