"""Rules about lines, and URLs and lists of URLs, by regular expressions."""

import re

from datapipe.kernels.filters.line_rules import COUNTED, Limits
from tests.oracles.texts import characters, fnv, mix, text_of

CITATION = re.compile(rb"\[[0-9]*\]|\[edit\]|\[citation needed\]")
KEPT, LONG_WORD, NO_END_MARK, FEW_WORDS = range(4)
PAGE_AND_LINE_RULES = (
    rb"lorem ipsum",
    rb"javascript",
    rb"\{",
    rb"terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies",
)


def without_citations(line: bytes) -> bytes:
    return CITATION.sub(b"", line)


def reason(line: bytes, clean: bytes, limits: list[int]) -> int:
    """The reason to drop a line, 0 to keep it; limits in the order of `Limits`."""
    min_words, max_word_chars, words_before, need_end_mark, apostrophe, *checks = limits
    if any(len(word) > max_word_chars for word in text_of(line).split()):
        return LONG_WORD
    ends = (b".", b"?", b"!", b'"', b"'") if apostrophe else (b".", b"?", b"!", b'"')
    if need_end_mark and (not clean.endswith(ends) or clean.endswith(b"...")):
        return NO_END_MARK
    if len(text_of(line if words_before else clean).split()) < min_words:
        return FEW_WORDS
    for number, (pattern, checked) in enumerate(zip(PAGE_AND_LINE_RULES, checks, strict=True), FEW_WORDS + 1):
        if checked and re.search(pattern, clean.lower()):
            return number
    return KEPT


def joined(lines: list[bytes]) -> bytes:
    """Lines joined by newlines, without white space around the text."""
    seen = list(characters(b"\n".join(lines)))
    while seen and seen[0][1].isspace():
        seen.pop(0)
    while seen and seen[-1][1].isspace():
        seen.pop()
    return b"\n".join(lines)[seen[0][0] : seen[-1][0] + seen[-1][2]] if seen else b""


UNCHANGED, SYMBOLS, UPPERCASE, NUMERIC, COUNTER, TOO_FEW_WORDS, EMPTIED, EDITED = range(8)
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
    reason = UNCHANGED
    if symbols and text[0] in symbols and set(text) <= {*symbols, " "}:
        reason = SYMBOLS
    elif sum(map(str.isupper, text)) / len(text) > limits.max_uppercase:
        reason = UPPERCASE
    elif sum(map(str.isdigit, text)) / len(text) > limits.max_numeric:
        reason = NUMERIC
    elif limits.counters and COUNTER_PATTERN.fullmatch(ascii_lower(text)):
        reason = COUNTER
    elif words < limits.min_words:
        reason = TOO_FEW_WORDS
    elif words <= limits.max_phrase_words and (rest := edited(text, limits.loose_dots)) != text:
        if rest:
            return EDITED, before, counted(rest), rest.encode(errors="surrogateescape")
        reason = EMPTIED
    return reason, before, before if reason == UNCHANGED else 0, b""


def written(text: bytes, lines: list[tuple[int, int, int, bytes]]) -> bytes:
    """A text without its removed lines; `lines` are those that are not blank, as (start, stop, reason, rest)."""
    if all(reason == UNCHANGED for _, _, reason, _ in lines):
        return text
    remaining = iter(lines)
    parts, start = [], 0
    for raw in text.split(b"\n"):
        if raw.decode(errors="surrogateescape").strip():
            first, last, reason, rest = next(remaining)
            if reason == EDITED:
                parts.append(raw[: first - start] + rest + raw[last - start :])
            elif reason == UNCHANGED:
                parts.append(raw)
        else:
            parts.append(raw)
        start += len(raw) + 1
    return b"\n".join(parts).decode(errors="surrogateescape").strip().encode(errors="surrogateescape")


def host_range(url: bytes) -> tuple[int, int]:
    """Start and stop of the host, including its `www.`."""
    other_scheme = re.match(rb"[^/?#]*://|//", url)
    start = other_scheme.end() if other_scheme else 0
    authority = re.split(rb"[/?#]", url[start:])[0]
    user, _, server = authority.rpartition(b"@")
    start += len(user) + (b"@" in authority)
    if server.startswith(b"["):
        return start + 1, start + 1 + len(server[1:].split(b"]")[0])
    return start, start + len(server.split(b":")[0])


def normalized(url: bytes) -> bytes:
    url = re.sub(rb"^www\.", b"", url, flags=re.IGNORECASE)
    url = re.sub(rb"https?://(www\.)?", b"", url, flags=re.IGNORECASE)
    url = re.sub(rb"\?(utm_|ref|feed).*", b"", url, flags=re.DOTALL).rstrip(b"/")
    start, stop = host_range(url)
    return url[:start] + url[start:stop].lower() + url[stop:]


def host_range_without_www(url: bytes) -> tuple[int, int]:
    """Start and stop of the host, without its `www.` and a final dot."""
    start, stop = host_range(url)
    start += 4 * url[start:stop].lower().startswith(b"www.")
    return start, stop - url[start:stop].endswith(b".")


def hashed(text: bytes) -> int:
    """FNV-1a from the last byte to the first, finished by splitmix64; 1 replaces 0."""
    return mix(fnv(reversed(text))) or 1


def table(hashes: list[int], size: int) -> list[int]:
    """Each hash in the first slot, from its own on, that is free or its own."""
    slots = [0] * size
    for key in hashes:
        slot = key % size
        while slots[slot] not in (0, key):
            slot = (slot + 1) % size
        slots[slot] = key
    return slots


def domains(host: bytes) -> list[bytes]:
    """a.b.c  ->  a.b.c, b.c, c"""
    labels = host.split(b".")
    return [b".".join(labels[first:]) for first in range(len(labels))] if host else []


def words(text: bytes) -> bytes:
    """The words in lower case, each between blanks."""
    matches = re.findall(rb"[a-z0-9\x80-\xff]+", text.lower())
    return b" " + b"".join(word + b" " for word in matches)


def occurring(patterns: list[bytes], text: bytes, whole: bool) -> list[bool]:
    spoken = words(text) if whole else words(text).replace(b" ", b"")
    return [pattern in spoken for pattern in patterns]
