"""Texts in which the spans to find are marked, so that a case of a table is one line: "from ⟦8.8.8.8⟧ to 10.0.0.1"."""

import re


def unmarked(text: str) -> str:
    """The text itself."""
    return re.sub("[⟦⟧]", "", text)


def marked(text: str) -> list[str]:
    """The spans between the marks."""
    return re.findall("⟦(.*?)⟧", text, re.DOTALL)


def replaced(text: str, by: str) -> str:
    """The text with each span replaced."""
    return re.sub("⟦.*?⟧", by, text, flags=re.DOTALL)


def scraps(text: str) -> list[str]:
    """What stands between the spaces of a text, to draw from."""
    return text.split()
