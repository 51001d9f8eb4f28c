"""`datapipe inspect --clusters`: the document that stays beside each that was dropped for it, with what differs marked.

On a terminal that is wide enough the two stand side by side, in colours; else below each other, what is in one alone in
[-marks-] and what is in the other alone in {+marks+}, so that a log can be read and searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from datapipe.report.differences import COMPARED_CHARS, Difference, Passage, Piece, difference, word_spans

SIDE_BY_SIDE_COLUMNS = 100
"""Narrower terminals show the texts below each other."""

_SHOWN_PASSAGES = 3
_SHOWN_CHARS = 200
_SIDE_WORDS, _SIDE_CHARS = 20, 140
"""Of a passage in one text, so much from its beginning and so much from its end."""

_LINE_CHARS, _MEMBER_LINES = 88, 8
"""What the passages of one dropped document come to at most, at 100 columns; with what is said of it, about 12 lines."""

_CONTROLS = re.compile(r"[^\S\n]+|[\x00-\x09\x0b-\x1f\x7f-\x9f]+")


class Document(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def text(self) -> str | None: ...


class Member(Protocol):
    @property
    def document(self) -> Document: ...
    @property
    def likeness(self) -> float | None: ...


class Cluster(Protocol):
    """What is shown; `executor.duplicates.Cluster` has it."""

    @property
    def stage(self) -> str: ...
    @property
    def survivor(self) -> Document: ...
    @property
    def later(self) -> str: ...
    @property
    def members(self) -> Sequence[Member]: ...
    @property
    def dropped(self) -> int: ...
    @property
    def likeness(self) -> tuple[float, float] | None: ...
    @property
    def shingles(self) -> tuple[int, Literal["word", "char"]]: ...
    @property
    def no_text(self) -> str: ...


@dataclass(slots=True)
class _Told:
    """What was shown: clusters, removals, those with a measure, those of equal texts, and of the others what is in common."""

    clusters: int = 0
    removals: int = 0
    measured: int = 0
    equal: int = 0
    in_common: list[float] = field(default_factory=list)


def print_clusters(clusters: Iterable[Cluster], console: Console, full: bool = False) -> None:
    """Prints clusters as they come, and in the end how alike the documents were."""
    told = _Told()
    for cluster in clusters:
        told.clusters += 1
        _print_cluster(cluster, console, full, told)
    console.print(Rule(align="left"))
    console.print(Text(_summary(told)), soft_wrap=True)


def _print_cluster(cluster: Cluster, console: Console, full: bool, told: _Told) -> None:
    title = f"{cluster.stage}: {_count(cluster.dropped, 'document')} dropped in favour of one, {_measured(cluster.likeness)}"
    console.print(Rule(title, align="left"))
    console.print(Text(f"stays    {_document(cluster.survivor)}", style="bold"), soft_wrap=True)
    if cluster.later:
        console.print(Text(f"         dropped later itself, by {cluster.later}", style="yellow"), soft_wrap=True)
    if cluster.survivor.text is None:
        console.print(Text(f"         (no text to compare with: {cluster.no_text})", style="dim"), soft_wrap=True)
    elif not full:
        _print_begin(cluster.survivor.text, console)
    for member in cluster.members:
        _print_member(cluster, member, console, full, told)
    if cluster.dropped > len(cluster.members):
        console.print(Text(f"\nand {_count(cluster.dropped - len(cluster.members), 'more document')} (--members shows them)"))


def _print_member(cluster: Cluster, member: Member, console: Console, full: bool, told: _Told) -> None:
    likeness = member.likeness
    measured = _measured(None if likeness is None else (likeness, likeness))
    console.print(Text(f"\ndropped  {_document(member.document)}  {measured}", style="bold"), soft_wrap=True)
    told.removals += 1
    told.measured += likeness is not None
    stays, dropped = cluster.survivor.text, member.document.text
    if dropped is None:
        console.print(Text("         (no text: its file is gone or has changed)", style="dim"))
        return
    if stays is None:
        _print_begin(dropped, console, full)
        return
    found = difference(stays, dropped, cluster.shingles, **({"context": None} if full else {}))
    told.equal += found.is_equal
    if not found.is_equal:
        told.in_common.append(found.in_common)
    for line in _figures(found, cluster.shingles):
        console.print(Text(f"         {line}"), soft_wrap=True)
    shown = list(found.passages) if full else _shown(found.passages)
    if shown:
        console.print(_side_by_side(shown, full) if _is_wide(console) else _below(shown, full))
    hidden = len(found.passages) - len(shown)
    if hidden:
        console.print(Text(f"  and {_count(hidden, 'shorter passage')} that differ (--full shows the whole texts)"))


def _print_begin(text: str, console: Console, full: bool = False) -> None:
    shown = _plain(text) if full else _shortened(_plain(text).replace("\n", " "))
    console.print(Text(f"         {shown}", style="dim"), soft_wrap=True)


def _measured(likeness: tuple[float, float] | None) -> str:
    if likeness is None:
        return "not measured"
    least, greatest = likeness
    return f"measured {least:.4g}" if least == greatest else f"measured {least:.4g} to {greatest:.4g}"


def _is_wide(console: Console) -> bool:
    return console.is_terminal and console.width >= SIDE_BY_SIDE_COLUMNS


def _document(document: Document) -> str:
    size = "" if document.text is None else f"  {len(document.text):,} characters"
    return f"{document.source}  {document.label}{size}".strip()


def _figures(found: Difference, shingles: tuple[int, Literal["word", "char"]]) -> list[str]:
    """What was counted, in lines."""
    size, unit = shingles
    grams = f"{'word' if unit == 'word' else 'character'} {size}-grams in common {found.in_common:.4g}"
    if found.is_equal:
        return ["the same text"]
    if found.has_same_words:
        lines = [f"the same words; white space, punctuation or case differ; {grams}"]
    else:
        lines = [
            f"{grams}; only in what stays {found.only[0]:,} of {_count(found.words[0], 'word')}, "
            f"only in what was dropped {found.only[1]:,} of {_count(found.words[1], 'word')}"
        ]
    if not found.is_whole:
        lines.append(f"(of the first {COMPARED_CHARS:,} characters of each)")
    if not found.is_aligned:
        lines.append("(too much differs to be set side by side to the end: what is shown is from where it begins to)")
    return lines


def _summary(told: _Told) -> str:
    """What all of it comes to."""
    shown = f"{_count(told.clusters, 'cluster')}, {_count(told.removals, 'removal')} shown"
    if told.equal:
        shown += f"; {told.equal:,} with the very text that stays"
    if told.in_common:
        common = sorted(told.in_common)
        least, middle, most = (f"{common[at]:.4g}" for at in (0, len(common) // 2, -1))
        shown += f"; {len(common):,} with n-grams in common of {least} to {most}, {middle} in the middle"
    lines = []
    if told.measured:
        lines.append("measured: what the stage found, the greatest likeness to any document of the cluster.")
    if told.equal or told.in_common:
        lines.append("in common: counted here from the two texts, as they were read, before any stage changed them.")
    return "\n".join([f"{shown}.", *([""] if lines else []), *lines])


# ------------------------------------------------------------------------------------------------ texts


def _shown(passages: Sequence[Passage]) -> list[Passage]:
    """The longest, shortened, as many as there is room for, in the order of the texts."""
    shown: dict[int, Passage] = {}
    left = _MEMBER_LINES
    by_size = sorted(range(len(passages)), key=lambda at: passages[at].differing, reverse=True)
    for at in by_size[:_SHOWN_PASSAGES]:
        passage = replace(passages[at], one=_cut(passages[at].one), other=_cut(passages[at].other))
        left -= sum(1 + sum(len(piece.text) for piece in side) // _LINE_CHARS for side in (passage.one, passage.other))
        if shown and left < 0:
            break
        shown[at] = passage
    return [shown[at] for at in sorted(shown)]


def _cut(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The pieces of one text in one line, with the middle of a long one left out, and said to be."""
    plain = [Piece(text=_plain(piece.text).replace("\n", " "), differs=piece.differs) for piece in pieces]
    whole = "".join(piece.text for piece in plain)
    words = word_spans(whole)
    start = max((last for _, last in words[:_SIDE_WORDS] if last <= _SIDE_CHARS), default=_SIDE_CHARS)
    latest = len(whole) - _SIDE_CHARS
    stop = min((first for first, _ in words[-_SIDE_WORDS:] if first >= latest), default=latest)
    left_out = sum(start <= first and last <= stop for first, last in words)
    told = f" … ({_count(left_out, 'word')}) … " if left_out else f" … ({stop - start:,} characters) … "
    if stop - start <= len(told):
        return tuple(plain)
    begin, end = _between(plain, 0, start), _between(plain, stop, len(whole))
    return (*begin, Piece(text=told, differs=False), *end)


def _between(pieces: Sequence[Piece], start: int, stop: int) -> list[Piece]:
    """Characters [start, stop) of pieces behind each other."""
    found, at = [], 0
    for piece in pieces:
        text = piece.text[max(start - at, 0) : max(stop - at, 0)]
        at += len(piece.text)
        if text:
            found.append(Piece(text=text, differs=piece.differs))
    return found


def _side_by_side(passages: Sequence[Passage], full: bool) -> Table:
    table = Table(box=box.SIMPLE, show_lines=True, expand=True, pad_edge=False)
    table.add_column("stays", ratio=1, overflow="fold")
    table.add_column("dropped", ratio=1, overflow="fold")
    for passage in passages:
        table.add_row(_marked(passage, passage.one, full, "bold green"), _marked(passage, passage.other, full, "bold red"))
    return table


def _below(passages: Sequence[Passage], full: bool) -> Table:
    table = Table.grid(padding=(0, 1, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for passage in passages:
        table.add_row("stays", _marked(passage, passage.one, full, "bold green", ("[-", "-]")))
        table.add_row("dropped", _marked(passage, passage.other, full, "bold red", ("{+", "+}")))
    return table


def _marked(passage: Passage, pieces: Sequence[Piece], full: bool, style: str, marks: tuple[str, str] = ("", "")) -> Text:
    """The pieces of one text, those that differ marked."""
    text = Text("" if passage.begins else "… ")
    for piece in pieces:
        plain = _plain(piece.text) if full else piece.text
        core = plain.rstrip()
        text.append(f"{marks[0]}{core}{marks[1]}" if piece.differs else core, style=style if piece.differs else "")
        text.append(plain[len(core) :])
    text.append("" if passage.ends else "…")
    return text


def _plain(text: str) -> str:
    """Without control characters, which could speak to the terminal; white space within a line as one space."""
    return _CONTROLS.sub(" ", text)


def _shortened(text: str) -> str:
    """The beginning of a long text, and how much follows."""
    if len(text) <= _SHOWN_CHARS + 40:
        return text
    begin = text[:_SHOWN_CHARS].rpartition(" ")[0] or text[:_SHOWN_CHARS]
    return f"{begin} … ({len(text) - len(begin):,} characters)"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
