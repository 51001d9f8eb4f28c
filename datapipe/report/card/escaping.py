"""Text of users in Markdown: names, paths and messages are shown as they are and never read as markup."""

from __future__ import annotations

import re
import unicodedata

from datapipe.credentials import masked
from datapipe.report.cells import Cell, cell

MOST_CHARS = 300
"""Of a text in the card. Longer ones end in "…"."""

_SPECIAL = re.compile(r"[\\`*_\[\]<>&|~#$!]")
_PLAIN_CODE = re.compile(r"[^`|\\]+")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that change how others are shown, or show nothing: controls, bidirectional marks, surrogates."""


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def plain(text: str) -> str:
    """One line of visible characters, without credentials."""
    line = " ".join(masked(text[: 4 * MOST_CHARS]).split())
    shown = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in _HIDDEN else char for char in line)
    return shown if len(shown) <= MOST_CHARS else f"{shown[: MOST_CHARS - 1]}…"


def prose(text: str) -> Markdown:
    """Text of a user within a sentence or a heading."""
    return Markdown(_SPECIAL.sub(_entity, plain(text)))


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def code(text: str) -> Markdown:
    """Text of a user in a code span. Bars would end the cell of a table, so a text with one is written in HTML."""
    shown = plain(text)
    if _PLAIN_CODE.fullmatch(shown):
        return Markdown(f"`{shown}`")
    return Markdown(f"<code>{_SPECIAL.sub(_entity, shown)}</code>")


def link(url: str) -> Markdown:
    """A web page. Its address has no spaces, which the mixture checks."""
    shown = plain(url)
    return Markdown(f"<{shown}>") if not re.search(r"[<>\s|`]", shown) else code(shown)


def shown(value: Cell) -> str:
    """A value in the template: Markdown as it is, any other text escaped, numbers as everywhere in the report."""
    if isinstance(value, Markdown):
        return value
    return prose(value) if isinstance(value, str) else cell(value)
