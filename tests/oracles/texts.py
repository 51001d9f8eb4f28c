"""Hashes, characters, words, lines and normal forms of texts, one character at a time in plain Python."""

import unicodedata
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

from datapipe.kernels.text.unicode_classes import CLASS_SHIFT, JOINED, JOINS, MAY_CHANGE

MASK = 2**64 - 1


def mix(value: int) -> int:
    """The finalizer of splitmix64."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def fnv(data: Iterable[int]) -> int:
    """FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


def polynomial(hashes: Iterable[int], radix: int = 0xD1342543DE82EF9B) -> int:
    """Hashes as the digits of one number."""
    value = 0
    for hashed in hashes:
        value = (value * radix + hashed) & MASK
    return value


WORD_CLASSES = {"L": 1, "M": 2, "N": 4, "P": 8, "S": 16}
SPACE, OTHER = 32, 64


class Span(NamedTuple):
    """A word or a line: its span in the text, hash, characters and flags."""

    start: int
    length: int
    hashed: int
    chars: int
    flag: int


def characters(text: bytes) -> Iterator[tuple[int, str, int]]:
    """(offset, character, bytes) of each character; a byte that begins none is U+FFFD."""
    offset = 0
    while offset < len(text):
        character, size = "\ufffd", 1
        for size_tried in (1, 2, 3, 4):
            try:
                character, size = text[offset : offset + size_tried].decode(), size_tried
                break
            except UnicodeDecodeError:
                continue
        yield offset, character, size
        offset += size


def text_of(text: bytes) -> str:
    return "".join(character for _, character, _ in characters(text))


def kind(character: str) -> int:
    if character.isspace():
        return SPACE
    return WORD_CLASSES.get(unicodedata.category(character)[0], OTHER)


def hashed(word: bytes) -> int:
    return mix(fnv(word))


def words(text: bytes) -> list[Span]:
    spans: list[Span] = []
    word: list[tuple[int, str, int]] = []
    for offset, character, size in [*characters(text), (len(text), " ", 1)]:
        if not character.isspace():
            word.append((offset, character, size))
        elif word:
            start, flag = word[0][0], 0
            for _, inner, _ in word:
                flag |= kind(inner)
            spans.append(Span(start, offset - start, hashed(text[start:offset]), len(word), flag))
            word = []
    return spans


def line_hash(line: bytes) -> int:
    """Of the words of a line, and of the white space between them unless it is one space."""
    value, end = fnv(b""), 0
    for word in words(line):
        gap = line[end : word.start]
        for part in ([hashed(gap)] if end and gap != b" " else []) + [word.hashed]:
            value = (value ^ part) * 0xBF58476D1CE4E5B9 & MASK
            value ^= value >> 32
        end = word.start + word.length
    return mix(value)


def lines(text: bytes, separator: bytes = b"\n") -> list[Span]:
    """The lines that are not blank; the flag is 1 for the first of a paragraph."""
    spans: list[Span] = []
    line_start, opens = 0, 1
    for line in text.split(separator):
        seen = list(characters(line))
        while seen and seen[0][1].isspace():
            seen.pop(0)
        while seen and seen[-1][1].isspace():
            seen.pop()
        if seen:
            start, stop = seen[0][0], seen[-1][0] + seen[-1][2]
            spans.append(Span(line_start + start, stop - start, line_hash(line[start:stop]), len(seen), opens))
        opens = 0 if seen else 1
        line_start += len(line) + len(separator)
    return spans


def paragraphs(text: bytes) -> list[Span]:
    """The text between empty lines, without the white space around it; each opens a paragraph."""
    return [span._replace(flag=1) for span in lines(text, b"\n\n")]


_AHEAD, _BEHIND = 0xD6E8FEB86659FD93, 0xA0761D6478BD642F


def raw_lines(text: bytes) -> list[tuple[int, int, int]]:
    """Of each line that is not blank: hash, characters, and whether white space follows the last character."""
    rows = []
    for line in lines(text):
        ahead = text[: line.start].rsplit(b"\n", 1)[-1]
        behind = text[line.start + line.length :].split(b"\n", 1)[0]
        around = mix(fnv(ahead[::-1]) * _AHEAD & MASK) ^ mix(fnv(behind) * _BEHIND & MASK)
        num_chars = line.chars + len(list(characters(ahead))) + len(list(characters(behind)))
        rows.append((mix(line.hashed ^ around), num_chars, int(bool(behind))))
    return rows


KEPT_CONTROLS = "\t\n"
LINE_ENDS = "\r\x0b\x0c"
SEPARATORS = "\x1c\x1d\x1e\x1f"


def is_control(character: str) -> bool:
    return (character < " " or character == "\x7f") and character not in KEPT_CONTROLS


def rewritten(text: bytes, fix_newlines: bool, strip_control: bool) -> bytes:
    out = b""
    seen = list(characters(text))
    for number, (index, character, size) in enumerate(seen):
        is_line_end = character in LINE_ENDS + "\u2028\u2029"
        before_newline = character == "\r" and number + 1 < len(seen) and seen[number + 1][1] == "\n"
        if before_newline and (fix_newlines or strip_control):
            continue
        if fix_newlines and is_line_end:
            out += b"\n"
        elif strip_control and character in LINE_ENDS + SEPARATORS:
            out += b" "
        elif not (strip_control and (is_control(character) or (character == "\ufeff" and not out))):
            out += text[index : index + size]
    return out


def may_change(kinds: list[int], num_chars: int) -> bool:
    """Whether the first characters of those with these entries of the composition table may not be in NFC behind any others.

    The marks behind them and the character after these may join them."""
    behind = list(takewhile(lambda kind: kind >> CLASS_SHIFT, kinds[num_chars:]))
    kinds = kinds[: num_chars + len(behind) + 1]
    joined = [True, *(bool(kind & JOINED) for kind in kinds)]
    classes = [255, *(kind >> CLASS_SHIFT for kind in kinds)]
    pairs = zip(classes, classes[1:])
    return (
        any(kind & MAY_CHANGE for kind in kinds)
        or any(kind & JOINS and before for kind, before in zip(kinds, joined))
        or any(0 < own < before for before, own in pairs)
    )


def is_touched(text: bytes, fix_newlines: bool, strip_control: bool) -> bool:
    """Whether a text has a character that may change."""
    touched: set[str] = set()
    if fix_newlines:
        touched |= set(LINE_ENDS + "\u2028\u2029")
    if strip_control:
        touched |= {chr(code) for code in range(0x20)} - set(KEPT_CONTROLS) | {"\x7f", "\ufeff"}
    return any(character in touched for _, character, _ in characters(text))


def replaced(text: bytes, spans: list[tuple[int, int, bytes]]) -> bytes:
    for start, stop, by in sorted(spans, reverse=True):
        text = text[:start] + by + text[stop:]
    return text


def _old_lines(text: bytes) -> list[tuple[int, bytes, int, int]]:
    """The lines of a text without the blanks around them, empty ones too: first byte, bytes, the first word and the one behind
    the last. What follows the last newline is no line where it is empty."""
    found, start, spans = [], 0, words(text)
    for line in text.split(b"\n"):
        numbers = [number for number, span in enumerate(spans) if start <= span.start < start + len(line)]
        first = numbers[0] if numbers else sum(span.start < start for span in spans)
        found.append((start + len(line) - len(line.lstrip(b" \t")), line.strip(b" \t"), first, first + len(numbers)))
        start += len(line) + 1
    return found[:-1] if not text or text.endswith(b"\n") else found


class LineSpan(NamedTuple):
    """Whole lines of a text; of new ones the bytes, else the words of the earlier text."""

    first: int
    stop: int
    moved: int
    is_new: bool


def line_spans(earlier: bytes, text: bytes) -> list[LineSpan]:
    old, last, start = [line for line in _old_lines(earlier) if line[1]], 0, 0
    spans: list[LineSpan] = []
    for raw in text.split(b"\n"):
        line, begin, end = raw.strip(b" \t"), start + len(raw) - len(raw.lstrip(b" \t")), start + len(raw)
        start = end + 1
        if not line:
            continue
        same = next((number for number in range(last, min(last + 64, len(old))) if old[number][1] == line), None)
        if same is None:
            span = LineSpan(begin, end, 0, True)
            joins = bool(spans) and spans[-1].is_new
        else:
            last = same + 1
            span = LineSpan(old[same][2], old[same][3], begin - old[same][0], False)
            joins = bool(spans) and spans[-1][1:] == (span.first, span.moved, False)
        if joins:
            span = span._replace(first=spans.pop().first)
        spans.append(span)
    return spans
