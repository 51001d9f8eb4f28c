"""Text for a screen: nothing that documents, names or other parties wrote controls the terminal.

    print, warnings, logs, argparse ─▶ HarmlessStream ─▶ terminal or pipe
    styles and lines of rich        ─▶ Screen (`report/layout.py`) ─▶ the stream below it: its own escape sequences stay

Control characters but tab and line feed, marks that reorder text ("Trojan source"), separators of lines and paragraphs, and
lone surrogates become escapes of JSON, such as \\u001b, so the output of `--json` stays the same document. A pipe gets the
same text: it may end in a terminal.
"""

import atexit
import gc
import os
import re
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO

from datapipe.machine.imports import defer_pandas

HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]")

_NEW_OBJECTS = 400_000  # more than a run without work makes
_MOST_OPEN_FILES = 1 << 16  # Some libraries go through all possible descriptors


def harmless(text: str) -> str:
    """A text with escapes in place of characters that control a terminal or reorder its text."""
    return text if text.isascii() and text.isprintable() else HARMFUL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class HarmlessStream:
    """A text stream that only harmless text passes to the `unfiltered` one below."""

    def __init__(self, unfiltered: TextIO) -> None:
        self.unfiltered = unfiltered

    def write(self, text: str) -> int:
        self.unfiltered.write(harmless(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def unfiltered(stream: Any) -> Any:
    """The stream below a `HarmlessStream`; any other stream itself."""
    return getattr(stream, "unfiltered", stream)


def prepare_process() -> None:
    """Prepares a process for datapipe; to be called first in it.

    A closed descriptor 0, 1 or 2 would be given to the next file that is opened, and output of a library would go into that
    file. A locale without Unicode makes the arrows of a message an error: characters that it lacks become question marks. The
    usual soft limit of open files, 1,024, is for programs that use select(2); none of ours does. Imports make much and no
    garbage, and the collector, which starts after 700 new objects by default, takes a tenth of a run without work.
    """
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)  # nor is anything collected from a process that ends
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "60000")  # else Arrow gives memory back before the next batch takes it
    defer_pandas()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")
        if stream is not None and not isinstance(stream, HarmlessStream):
            setattr(sys, name, HarmlessStream(stream))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
