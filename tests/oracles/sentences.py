"""Sentences of a line by making every token, in the words of spaCy's rules."""

from __future__ import annotations

import re
import unicodedata

from datapipe.kernels.text.abbreviations import ABBREVIATIONS
from datapipe.kernels.text.english_signs import EDGE, ICON, LOWER, QUOTE, STOPS, UPPER
from datapipe.kernels.text.marks import END_CHARS
from tests.oracles.english_words import has, is_address, prefix
from tests.oracles.words import text_of

_DEGREES = re.compile(r"°[CFKcfk]\.")


def trailing(chunk: str) -> str:
    """The suffix to cut off."""
    if match := re.search(r"(\.\.+|['’][sS])\Z", chunk):
        return match.group()
    if not chunk or chunk[-1] != ".":
        return chunk[-1] if chunk and has(chunk[-1], EDGE) else ""
    before = chunk[:-1]
    if before and has(before[-1], STOPS):
        return "."
    if len(before) > 1 and has(before[-1], UPPER) and has(before[-2], UPPER):
        return "."
    return "." if re.search(r"°[FfCcKk]\Z", before) else ""


def is_abbreviation(word: str) -> bool:
    return word + "." in ABBREVIATIONS or bool(re.fullmatch(r"[a-z]|([1-9]|1[0-2])[ap]\.m", word))


def is_exception(chunk: str) -> bool:
    return chunk.endswith(".") and is_abbreviation(chunk[:-1])


def ends_in_abbreviation(word: str) -> bool:
    if re.search(r"[0-9][gmt]\Z", word):
        return True
    match = re.search(r"(?:\A|…|(?<=[A-Za-z0-9\x80-\U0010ffff])(?:-{1,3}|[–—,:<>=/~]))([A-Za-z0-9.]*)\Z", word)
    return bool(match) and is_abbreviation(match.group(1))


def inner(core: str) -> list[str]:
    """The core cut at ellipses and icons, and at full stops between a small letter and a capital."""
    cuts = []
    for match in re.finditer(r"(?s)\.\.+|.", core):
        begin, stop = match.span()
        if match.group() == ".":
            between = begin > 0 and stop < len(core)
            if between and has(core[begin - 1], LOWER, QUOTE) and has(core[stop], UPPER, QUOTE):
                cuts.append((begin, stop))
        elif begin > 0 and (stop - begin > 1 or has(match.group(), ICON)):
            cuts.append((begin, stop))
    if not cuts or is_address(core):
        return [core]
    edges = [0, *[edge for cut in cuts for edge in cut], len(core)]
    tokens = [core[start:stop] for start, stop in zip(edges, edges[1:])]
    return [token for token in tokens if token]


def whole(before: list[str], word: str) -> bool:
    """Whether the full stop behind a word belongs to it."""
    is_unit = before[-1:] == ["°"] and word in tuple("CFKcfk")
    return not is_unit and ends_in_abbreviation(word)


def tokens(chunk: str) -> list[str]:
    front: list[str] = []
    back: list[str] = []
    while chunk and not is_exception(chunk) and not _DEGREES.fullmatch(chunk):
        first = chunk[: prefix(chunk)]
        if first and (is_exception(chunk[len(first) :]) or _DEGREES.fullmatch(chunk[len(first) :])):
            front, chunk = [*front, first], chunk[len(first) :]
            break
        last = trailing(chunk[len(first) :])
        if last and (is_exception(chunk[: len(chunk) - len(last)]) or _DEGREES.fullmatch(chunk[: len(chunk) - len(last)])):
            back, chunk = [last, *back], chunk[: len(chunk) - len(last)]
            break
        if not first + last:
            break
        front, back, chunk = [*front, first], [last, *back], chunk[len(first) : len(chunk) - len(last)]
    if _DEGREES.fullmatch(chunk):
        return [token for token in [*front, *chunk, *back] if token]
    if chunk and not is_exception(chunk):
        core = inner(chunk)
        back = [suffix for suffix in back if suffix]
        if back and back[0] == "." and whole(front + core[:-1], core[-1]):
            core[-1] += back.pop(0)
    else:
        core = [chunk]
    joined = list(front)
    for token in core:
        if token == "." and len(joined) > len(front) and whole(joined[:-1], joined[-1]):
            joined[-1] += token
        elif joined[-1:] == ["°"] and token in ("C.", "F.", "K."):
            joined += token
        else:
            joined.append(token)
    return [token for token in [*joined, *back] if token]


def sentences(line: bytes) -> int:
    """Number of sentences that are not blank."""
    text = text_of(line)
    kinds: list[str] = []
    for white, chunk in re.findall(r"(\s*)(\S+)|\s+\Z", text):
        kinds += [" "] if white not in ("", " ") else []
        kinds += tokens(chunk)
    count, ended, blank = 0, False, True
    for token in kinds:
        punctuation = all(unicodedata.category(character)[0] == "P" for character in token)
        if ended and not punctuation:
            ended, blank = False, True
        if token in set(END_CHARS):
            ended = True
        if token != " " and blank:
            count, blank = count + 1, False
    return count
