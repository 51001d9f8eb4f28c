"""JSON values as lines of the same length, by a regular expression for strings and a loop over what is between them."""

from __future__ import annotations

import re

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|.', re.DOTALL)


def flattened(data: bytes) -> tuple[bytes, int, bool]:
    """The lines, how many values are open at the end, and whether an array is the outermost one."""
    lines: list[bytes] = []
    open_signs: list[bytes] = []
    is_array = False
    for token in _TOKEN.findall(data):
        is_outermost = not open_signs
        if token[:1] == b'"':
            lines.append(token.replace(b"\n", b"\1"))
            continue
        if token in b"[{":
            open_signs.append(token)
            is_array = token == b"[" if is_outermost else is_array
        elif token in b"]}" and open_signs:
            open_signs.pop()
        is_end = token in b"]}" and not open_signs
        if token == b"[" and is_outermost:
            lines.append(b" ")
        elif is_array and (is_end or (token == b"," and len(open_signs) == 1)):
            lines.append(b"\n")
            is_array = not is_end
        else:
            lines.append(b" " if token == b"\n" and open_signs else token)
    return b"".join(lines), len(open_signs), is_array
