"""The kind of content of a text, by regular expressions."""

from __future__ import annotations

import re


def content(text: bytes) -> int:
    if re.search(rb"[A-Za-z\x80-\xff]", text):
        return 2
    return 1 if re.search(rb"[0-9]", text) else 0
