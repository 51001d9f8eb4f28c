"""A text in parts: what stands, what was cut, and what was replaced, in the order of the document.

    "Call me. Ann: a@b.org"   cut "Call me. "  ─▶  [cut "Call me. "] [kept "Ann: a@b.org"]
                              redacted          ─▶  [cut "Call me. "] [kept "Ann: "] [replacement "<EMAIL>", was 7 bytes]

The text of the document is that of its kept parts and replacements; the display is that of all
parts. The redactions run over the display once more at the end, since cuts were never redacted, and
an address may lie half in a cut: every part that is sent is a piece of that redacted display.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Literal

from datapipe.dataclass import dataclass, replace
from datapipe.explore.differences import common_ends

Kind = Literal["kept", "cut", "replacement"]
Edit = tuple[int, int, str]  # characters [start, stop) of a text, and what stands there afterwards
_MOST_LINES, _MOST_TOKENS = 4_000, 2_000
_MOST_CHARS = 4 << 20  # Longer differences are one edit: the time of aligning grows with the square
_TOKEN = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A piece of a document, the stage that cut or replaced it, and the UTF-8 bytes that a replacement took the place of."""

    text: str
    kind: Kind = "kept"
    stage: str = ""
    was: int | None = None


def text_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if part.kind != "cut")


def display_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts)


def with_cuts(parts: Sequence[Part], spans: Sequence[tuple[int, int]], stage: str) -> list[Part]:
    return _edited(parts, [(start, stop, "") for start, stop in spans], lambda part, new: _cut(part, new, stage))


def after_stage(parts: Sequence[Part], text: str, stage: str, *, redacts: bool) -> list[Part]:
    """The parts after a stage has changed the text: what a redaction took is replaced, and what others took out is cut."""
    make = _replacement if redacts else _cut
    return _edited(parts, edits(text_of(parts), text), lambda part, new: make(part, new, stage))


def after_redaction(parts: Sequence[Part], display: str) -> list[Part]:
    changes = edits(display_of(parts), display)
    return _edited(parts, changes, lambda part, new: _replacement(part, new, ""), has_cuts=True)


def joined(parts: Sequence[Part]) -> list[Part]:
    """The parts with neighbours of one kind as one, and without empty ones."""
    out: list[Part] = []
    for part in parts:
        if not part.text and part.kind != "replacement":
            continue
        if out and part.kind != "replacement" and (out[-1].kind, out[-1].stage) == (part.kind, part.stage):
            out[-1] = replace(out[-1], text=out[-1].text + part.text)
        else:
            out.append(part)
    return out


def _cut(part: Part, new: str, stage: str) -> list[Part]:
    """What a stage took out, and what it wrote instead. A changed letter or space is no cut."""
    if new or not part.text.strip():
        return [Part(text=new)]
    return [Part(text=part.text, kind="cut", stage=stage)]


def _replacement(part: Part, new: str, stage: str) -> list[Part]:
    """What a redaction wrote; within a cut it is part of the cut."""
    if part.kind == "cut":
        return [replace(part, text=new)]
    was = len(part.text.encode("utf-8", "surrogatepass"))
    return [Part(text=new, kind="replacement", stage=stage or part.stage, was=was)] if new or was else []


def _edited(
    parts: Sequence[Part], changes: Sequence[Edit], make: Callable[[Part, str], list[Part]], *, has_cuts: bool = False
) -> list[Part]:
    """The parts after edits of all of them, or of those that are not cut."""
    out: list[Part] = []
    left, position = list(reversed(changes)), 0
    for part in parts:
        if part.kind == "cut" and not has_cuts:
            out.append(part)
            continue
        cursor, end = position, position + len(part.text)
        while left and (left[-1][0] < end):
            start, stop, new = left.pop()
            begin, until = max(start, cursor), min(stop, end)
            out.append(replace(part, text=part.text[cursor - position : begin - position]))
            out += make(replace(part, text=part.text[begin - position : until - position]), new)
            cursor = until
            if stop > end:
                left.append((end, stop, ""))
                break
        out.append(replace(part, text=part.text[cursor - position :]))
        position = end
    for start, stop, new in reversed(left):  # insertions at the end
        out += make(Part(text="", kind="kept"), new) if start == stop else []
    return joined(out)


def edits(before: str, after: str) -> list[Edit]:
    """Edits that turn one text into the other: by lines, and within lines that differ by words."""
    if before == after:
        return []
    head, tail = common_ends(before, after)
    middle, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if max(len(middle), len(new)) > _MOST_CHARS:
        return [(head, len(before) - tail, new)]
    first, second = middle.splitlines(keepends=True), new.splitlines(keepends=True)
    return [
        (head + start + low, head + start + high, text)
        for start, old, fresh in _differing(first, second, _MOST_LINES)
        for low, high, text in _within(old, fresh)
    ]


def _within(old: str, new: str) -> Iterator[Edit]:
    """Edits by words, without the signs that both have at their ends."""
    words = _TOKEN.findall(old), _TOKEN.findall(new)
    for start, gone, written in _differing(*words, _MOST_TOKENS):
        head, tail = common_ends(gone, written)
        yield start + head, start + len(gone) - tail, written[head : len(written) - tail]


def _differing(first: Sequence[str], second: Sequence[str], most: int) -> Iterator[tuple[int, str, str]]:
    """Of each difference the offset in the first text, what stands there, and in its place."""
    if max(len(first), len(second)) > most:
        yield 0, "".join(first), "".join(second)
        return
    offsets = [*accumulate(map(len, first), initial=0)]
    for tag, start, stop, low, high in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if tag != "equal":
            yield offsets[start], "".join(first[start:stop]), "".join(second[low:high])
