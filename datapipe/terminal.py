"""Text for a screen: nothing that documents, names or other parties wrote controls the terminal.

    print, warnings, logs, argparse ─▶ HarmlessStream ─▶ terminal or pipe
    styles and lines of rich        ─▶ Screen (`report/layout.py`) ─▶ the stream below it: its own escape sequences stay

Control characters but tab and line feed, marks that reorder text ("Trojan source"), separators of lines and paragraphs,
and lone surrogates become escapes of JSON, such as \\u001b. In JSON they can only stand inside of strings, so a document of
`--json` stays the same document. A pipe gets the same text: it may end in a terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]")


def harmless(text: str) -> str:
    """A text with escapes in place of what would control a terminal or reorder its characters."""
    return text if text.isascii() and text.isprintable() else HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class HarmlessStream:
    """A text stream to which only harmless text comes through.

    Attributes:
        unfiltered: the stream below, for escape sequences of our own.
    """

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


def guard_standard_streams() -> None:
    """From now on stdout and stderr of this process take harmless text alone."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is not None and not isinstance(stream, HarmlessStream):
            setattr(sys, name, HarmlessStream(stream))
