"""Rules about lines of web pages by regular expressions."""

from __future__ import annotations

import re

from datapipe.kernels.filters.counters import COUNTED
from datapipe.kernels.filters.line_rules import Limits

KEPT, SYMBOLS, UPPERCASE, NUMERIC, COUNTER, FEW_WORDS, EMPTIED, EDITED = range(8)
COUNTER_PATTERN = re.compile(rf"\W*[0-9][0-9,.]*[kmb]?\s+(?:{'|'.join(COUNTED)})\W*")


def in_any_case(phrase: str) -> str:
    """A pattern for ASCII case alone."""
    return "".join(f"[{sign}{sign.upper()}]" if sign.isalpha() else re.escape(sign) for sign in phrase)


def decoded(line: bytes) -> str:
    return line.decode(errors="surrogateescape")


def ascii_lower(text: str) -> str:
    return re.sub("[A-Z]", lambda match: match.group().lower(), text)


def counted(text: str) -> int:
    """Words that begin with a letter or a digit."""
    return sum(word[0].isalnum() for word in text.split())


def edited(text: str, loose_dots: bool) -> str:
    """The line without the phrases, in turn; blank where the line is one phrase."""
    dots = "(?s:.{3})" if loose_dots else r"\.\.\."
    for pattern in (
        rf"\s?{in_any_case('items in cart')}",
        rf"\s?{in_any_case('read more')}{dots}\Z",
        rf"\A{in_any_case('sign-in')}\s?",
    ):
        text = re.sub(pattern, "", text)
    return text if text.strip() else ""


def classified(line: bytes, limits: Limits, symbols: str) -> tuple[int, int, int, bytes]:
    """(reason, words before, words after, the rest of an edited line)."""
    text = decoded(line)
    before, words = counted(text), len(text.split())
    reason = KEPT
    if symbols and text[0] in symbols and set(text) <= {*symbols, " "}:
        reason = SYMBOLS
    elif sum(map(str.isupper, text)) / len(text) > limits.max_uppercase:
        reason = UPPERCASE
    elif sum(map(str.isdigit, text)) / len(text) > limits.max_numeric:
        reason = NUMERIC
    elif limits.counters and COUNTER_PATTERN.fullmatch(ascii_lower(text)):
        reason = COUNTER
    elif words < limits.min_words:
        reason = FEW_WORDS
    elif words <= limits.max_phrase_words and (rest := edited(text, limits.loose_dots)) != text:
        if rest:
            return EDITED, before, counted(rest), rest.encode(errors="surrogateescape")
        reason = EMPTIED
    return reason, before, before if reason == KEPT else 0, b""


def written(text: bytes, lines: list[tuple[int, int, int, bytes]]) -> bytes:
    """A text without its removed lines; `lines` are those that are not blank, as (start, stop, reason, rest)."""
    if all(reason == KEPT for _, _, reason, _ in lines):
        return text
    remaining = iter(lines)
    parts, start = [], 0
    for raw in text.split(b"\n"):
        if raw.decode(errors="surrogateescape").strip():
            first, last, reason, rest = next(remaining)
            if reason == EDITED:
                parts.append(raw[: first - start] + rest + raw[last - start :])
            elif reason == KEPT:
                parts.append(raw)
        else:
            parts.append(raw)
        start += len(raw) + 1
    return b"\n".join(parts).decode(errors="surrogateescape").strip().encode(errors="surrogateescape")
