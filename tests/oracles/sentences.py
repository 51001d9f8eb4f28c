"""Sentences of a line by making every token, in the words of spaCy's rules."""

from __future__ import annotations

import re
import unicodedata

from datapipe.kernels.text.abbreviations import ABBREVIATIONS
from datapipe.kernels.text.marks import CURRENCY, END_CHARS, MARKS, QUOTES

_HOST = rb"(?:[A-Za-z0-9\x80-\xff](?:[A-Za-z0-9\x80-\xff_-]*[A-Za-z0-9\x80-\xff])?\.)+[a-z\x80-\xff]{2,}(?::\d{2,5})?"
_SCHEME = re.compile(rb"[A-Za-z0-9\x80-\xff_.+-]{2,}://")


def shown(character: str) -> str:
    """The character itself; U+FFFD for a byte that begins none."""
    return "\ufffd" if "\udc80" <= character <= "\udcff" else character


def category(character: str) -> str:
    return unicodedata.category(shown(character))


def is_small(character: str) -> bool:
    return category(character)[0] == "L" and not character.isupper()


def is_large(character: str) -> bool:
    return category(character)[0] == "L" and not character.islower()


def is_front(character: str) -> bool:
    return character in QUOTES + MARKS + CURRENCY + "§%=—–" or category(character) == "So"


def is_back(character: str) -> bool:
    return character in QUOTES + MARKS + "—–" or category(character) == "So"


def may_stand_before_a_full_stop(character: str) -> bool:
    return is_small(character) or character in QUOTES + MARKS + "0123456789%²-+|"


def leading(piece: str) -> str:
    """What is cut off the front."""
    if found := re.match(r"\.\.+|\+(?![0-9])", piece):
        return found.group()
    return piece[0] if piece and is_front(piece[0]) else ""


def trailing(piece: str) -> str:
    """What is cut off the back."""
    if found := re.search(r"(\.\.+|['’][sS])\Z", piece):
        return found.group()
    if not piece or piece[-1] != ".":
        return piece[-1] if piece and is_back(piece[-1]) else ""
    before = piece[:-1]
    if before and may_stand_before_a_full_stop(before[-1]):
        return "."
    if len(before) > 1 and is_large(before[-1]) and is_large(before[-2]):
        return "."
    return "." if re.search(r"°[FfCcKk]\Z", before) else ""


def is_abbreviation(word: str) -> bool:
    return word + "." in ABBREVIATIONS or bool(re.fullmatch(r"[a-z]|([1-9]|1[0-2])[ap]\.m", word))


def is_exception(piece: str) -> bool:
    return piece.endswith(".") and is_abbreviation(piece[:-1])


def ends_in_abbreviation(word: str) -> bool:
    if re.search(r"[0-9][gmt]\Z", word):
        return True
    found = re.search(r"(?:\A|[-–—…,:<>=/~])([A-Za-z0-9.]*)\Z", word)
    return bool(found) and is_abbreviation(found.group(1))


def is_address(piece: str) -> bool:
    raw = piece.encode(errors="surrogateescape")
    start = found.end() if (found := _SCHEME.match(raw)) else 0
    return bool(re.fullmatch(rb"(?:[^/?#]*@)?" + _HOST + rb"(?:[/?#].*)?", raw[start:], re.DOTALL))


def inner(core: str) -> list[str]:
    """The core cut at ellipses, and at full stops between a small letter and a capital."""
    cuts = []
    for found in re.finditer(r"\.\.+|\.|…", core):
        at, stop = found.span()
        between = at > 0 and stop < len(core)
        if found.group() == ".":
            small = between and (is_small(core[at - 1]) or core[at - 1] in QUOTES)
            if small and (is_large(core[stop]) or core[stop] in QUOTES):
                cuts.append((at, stop))
        elif at > 0:
            cuts.append((at, stop))
    if not cuts or is_address(core):
        return [core]
    edges = [0, *[edge for cut in cuts for edge in cut], len(core)]
    tokens = [core[start:stop] for start, stop in zip(edges, edges[1:])]
    return [token for token in tokens if token]


def tokens(piece: str) -> list[str]:
    front: list[str] = []
    back: list[str] = []
    while piece and not is_exception(piece):
        first = leading(piece)
        if first and is_exception(piece[len(first) :]):
            front, piece = [*front, first], piece[len(first) :]
            break
        last = trailing(piece[len(first) :])
        if last and is_exception(piece[: len(piece) - len(last)]):
            back, piece = [last, *back], piece[: len(piece) - len(last)]
            break
        if not first + last:
            break
        front, back, piece = [*front, first], [last, *back], piece[len(first) : len(piece) - len(last)]
    core = [piece] if is_exception(piece) else inner(piece) if piece else []
    if core and not is_exception(piece):
        back = [one for one in back if one]
        if back and back[0] == "." and ends_in_abbreviation(core[-1]):
            core[-1] += back.pop(0)
    joined: list[str] = []
    for token in core:
        if token == "." and joined and ends_in_abbreviation(joined[-1]):
            joined[-1] += token
        else:
            joined.append(token)
    return [token for token in [*front, *joined, *back] if token]


def sentences(line: bytes) -> int:
    """How many sentences that are not blank."""
    text = line.decode(errors="surrogateescape")
    found: list[str] = []
    for white, piece in re.findall(r"(\s*)(\S+)|\s+\Z", text):
        found += [" "] if white not in ("", " ") else []
        found += tokens(piece)
    count, ended, blank = 0, False, True
    for token in found:
        punctuation = all(category(character)[0] == "P" for character in token)
        if ended and not punctuation:
            ended, blank = False, True
        if token in set(END_CHARS):
            ended = True
        if token != " " and blank:
            count, blank = count + 1, False
    return count
