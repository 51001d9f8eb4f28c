"""`datapipe inspect --clusters`: the surviving document beside each document that was dropped for it, differences marked.

On a terminal of at least `SIDE_BY_SIDE_COLUMNS` the two texts stand side by side, in colours. Otherwise they stand below each
other: words of the surviving text alone in [-marks-], words of the dropped text alone in {+marks+}, so that a log can be read
and searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from datapipe.explore.clusters import Cluster, Member
from datapipe.explore.differences import COMPARED_CHARS, Difference, Passage, Segment, difference, word_spans
from datapipe.explore.located import LocatedDocument
from datapipe.metrics import counted
from datapipe.report.layout import harmless_text, print_text, print_verbatim
from datapipe.terminal import harmless

SIDE_BY_SIDE_COLUMNS = 100
"""Narrower terminals show the two texts below each other."""

_INDENT = 9
_SHOWN_PASSAGES = 3
_SHOWN_CHARS = 200
_SIDE_WORDS, _SIDE_CHARS = 20, 140
"""A long passage is cut to so many words, or characters, at its beginning and at its end."""

_LINE_CHARS, _MEMBER_LINES = 88, 8
"""The passages of one dropped document take at most so many lines of 100 columns; with its headings, about 12 lines."""

_CONTROLS = re.compile(r"[^\S\n]+|[\x00-\x09\x0b-\x1f\x7f-\x9f]+")


@dataclass(slots=True)
class _Totals:
    """Totals of the clusters that were shown.

    Attributes:
        measured: removals with a measured similarity.
        equal: removals whose text equals the surviving one.
        in_common: of the other removals, the n-grams in common.
    """

    clusters: int = 0
    removals: int = 0
    measured: int = 0
    equal: int = 0
    in_common: list[float] = field(default_factory=list)


def print_clusters(clusters: Iterable[Cluster], console: Console, full: bool = False) -> None:
    """Prints clusters as they come, and a summary at the end."""
    totals = _Totals()
    for cluster in clusters:
        totals.clusters += 1
        _print_cluster(cluster, console, full, totals)
    console.print(Rule(align="left"))
    print_text(_summary(totals), console)


def _print_cluster(cluster: Cluster, console: Console, full: bool, totals: _Totals) -> None:
    title = f"{cluster.stage}: {counted(cluster.dropped, 'document')} dropped in favour of one, {_measured(cluster.similarity)}"
    if cell_len(title) < console.width or not console.is_terminal:
        console.print(Rule(harmless_text(title), align="left"))
    else:
        console.print(Rule(align="left"))
        print_text(title, console)
    print_text(f"stays    {_document(cluster.survivor)}", console, "bold", hanging=_INDENT)
    if cluster.dropped_later_by:
        print_text(f"{' ' * _INDENT}dropped by a later stage: {cluster.dropped_later_by}", console, "yellow", hanging=0)
    if cluster.survivor.text is None:
        print_text(f"{' ' * _INDENT}(no text to compare with: {cluster.no_text})", console, "dim", hanging=0)
    elif not full:
        _print_beginning(cluster.survivor.text, console)
    for member in cluster.members:
        _print_member(cluster, member, console, full, totals)
    if cluster.dropped > len(cluster.members):
        print_text(f"\nand {counted(cluster.dropped - len(cluster.members), 'more document')} (--members shows them)", console)


def _print_member(cluster: Cluster, member: Member, console: Console, full: bool, totals: _Totals) -> None:
    similarity = member.similarity
    measured = _measured(None if similarity is None else (similarity, similarity))
    print_text(f"\ndropped  {_document(member.document)}  {measured}", console, "bold", hanging=_INDENT)
    totals.removals += 1
    totals.measured += similarity is not None
    surviving, dropped = cluster.survivor.text, member.document.text
    if dropped is None:
        print_text(f"{' ' * _INDENT}(no text: its file is missing or has changed)", console, "dim", hanging=0)
    elif surviving is None:
        _print_beginning(dropped, console, full)
    else:
        compared = difference(surviving, dropped, cluster.shingles, **({"context": None} if full else {}))
        totals.equal += compared.is_equal
        if not compared.is_equal:
            totals.in_common.append(compared.in_common)
        _print_difference(compared, cluster.shingles, console, full)


def _print_difference(
    compared: Difference, shingles: tuple[int, Literal["word", "char"]], console: Console, full: bool
) -> None:
    for line in _figures(compared, shingles):
        print_text(f"{' ' * _INDENT}{line}", console, hanging=0)
    shown = list(compared.passages) if full else _longest(compared.passages)
    if shown:
        console.print(_side_by_side(shown, full) if _is_wide(console) else _below_each_other(shown, full))
    num_hidden = len(compared.passages) - len(shown)
    if num_hidden:
        print_text(f"  and {counted(num_hidden, 'shorter passage')} that differ (--full shows the whole texts)", console)


def _print_beginning(text: str, console: Console, full: bool = False) -> None:
    if full:
        print_verbatim(f"{' ' * _INDENT}{_plain(text)}", console, "dim")
    else:
        print_text(" " * _INDENT + _shortened(_plain(text).replace("\n", " ")), console, "dim", hanging=0)


def _measured(similarity: tuple[float, float] | None) -> str:
    if similarity is None:
        return "not measured"
    least, greatest = similarity
    return f"measured {least:.4g}" if least == greatest else f"measured {least:.4g} to {greatest:.4g}"


def _is_wide(console: Console) -> bool:
    return console.is_terminal and console.width >= SIDE_BY_SIDE_COLUMNS


def _document(document: LocatedDocument) -> str:
    size = "" if document.text is None else f"  {len(document.text):,} characters"
    return f"{document.label}{size}"


def _figures(compared: Difference, shingles: tuple[int, Literal["word", "char"]]) -> list[str]:
    """Lines with the counts of a comparison."""
    size, unit = shingles
    grams = f"{'word' if unit == 'word' else 'character'} {size}-grams in common {compared.in_common:.4g}"
    if compared.is_equal:
        return ["the same text"]
    if compared.has_same_words:
        lines = [f"the same words; white space, punctuation or case differ; {grams}"]
    else:
        lines = [
            f"{grams}; only in the surviving text {compared.only[0]:,} of {counted(compared.words[0], 'word')}, "
            f"only in the dropped text {compared.only[1]:,} of {counted(compared.words[1], 'word')}"
        ]
    if not compared.is_whole:
        lines.append(f"(compared: the first {COMPARED_CHARS:,} characters of each text)")
    if not compared.is_aligned:
        lines.append("(the texts differ too much to align to the end: the passages begin at the first difference)")
    return lines


def _summary(totals: _Totals) -> str:
    shown = f"{counted(totals.clusters, 'cluster')}, {counted(totals.removals, 'removal')} shown"
    if totals.equal:
        shown += f"; {totals.equal:,} with the same text"
    if totals.in_common:
        shares = sorted(totals.in_common)
        least, median, greatest = (f"{share:.4g}" for share in (shares[0], shares[len(shares) // 2], shares[-1]))
        shown += f"; {len(shares):,} with n-grams in common from {least} to {greatest}, median {median}"
    lines = []
    if totals.measured:
        lines.append("measured: the highest similarity to any document of the cluster, as the stage computed it.")
    if totals.equal or totals.in_common:
        lines.append("in common: counted here from the two texts as they were read, before any stage changed them.")
    return "\n".join([f"{shown}.", *([""] if lines else []), *lines])


# ------------------------------------------------------------------------------------------------ texts


def _longest(passages: Sequence[Passage]) -> list[Passage]:
    """The longest passages, shortened, as many as there is room for, in the order of the texts."""
    shown: dict[int, Passage] = {}
    lines_left = _MEMBER_LINES
    by_size = sorted(range(len(passages)), key=lambda index: passages[index].differing, reverse=True)
    for index in by_size[:_SHOWN_PASSAGES]:
        passage = replace(passages[index], first=_cut(passages[index].first), second=_cut(passages[index].second))
        for segments in (passage.first, passage.second):
            lines_left -= 1 + sum(len(segment.text) for segment in segments) // _LINE_CHARS
        if shown and lines_left < 0:
            break
        shown[index] = passage
    return [shown[index] for index in sorted(shown)]


def _cut(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """The segments of one text on one line. The middle of a long text is replaced by its number of words."""
    plain = [Segment(text=_plain(segment.text).replace("\n", " "), differs=segment.differs) for segment in segments]
    whole = "".join(segment.text for segment in plain)
    words = word_spans(whole)
    start = max((stop for _, stop in words[:_SIDE_WORDS] if stop <= _SIDE_CHARS), default=_SIDE_CHARS)
    latest = len(whole) - _SIDE_CHARS
    stop = min((start for start, _ in words[-_SIDE_WORDS:] if start >= latest), default=latest)
    num_cut = sum(start <= word_start and word_stop <= stop for word_start, word_stop in words)
    notice = f" … ({counted(num_cut, 'word')}) … " if num_cut else f" … ({stop - start:,} characters) … "
    if stop - start <= len(notice):
        return tuple(plain)
    beginning, end = _between(plain, 0, start), _between(plain, stop, len(whole))
    return (*beginning, Segment(text=notice, differs=False), *end)


def _between(segments: Sequence[Segment], start: int, stop: int) -> list[Segment]:
    """Characters [start, stop) of consecutive segments."""
    selected, offset = [], 0
    for segment in segments:
        text = segment.text[max(start - offset, 0) : max(stop - offset, 0)]
        offset += len(segment.text)
        if text:
            selected.append(Segment(text=text, differs=segment.differs))
    return selected


def _side_by_side(passages: Sequence[Passage], full: bool) -> Table:
    table = Table(box=box.SIMPLE, show_lines=True, expand=True, pad_edge=False)
    table.add_column("stays", ratio=1, overflow="fold")
    table.add_column("dropped", ratio=1, overflow="fold")
    for passage in passages:
        table.add_row(_marked(passage, passage.first, full, "bold green"), _marked(passage, passage.second, full, "bold red"))
    return table


def _below_each_other(passages: Sequence[Passage], full: bool) -> Table:
    table = Table.grid(padding=(0, 1, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for passage in passages:
        table.add_row("stays", _marked(passage, passage.first, full, "bold green", ("[-", "-]")))
        table.add_row("dropped", _marked(passage, passage.second, full, "bold red", ("{+", "+}")))
    return table


def _marked(passage: Passage, segments: Sequence[Segment], full: bool, style: str, marks: tuple[str, str] = ("", "")) -> Text:
    """The segments of one text, with marks around those that differ."""
    text = Text("" if passage.begins else "… ")
    for segment in segments:
        plain = _plain(segment.text) if full else segment.text
        core = plain.rstrip()
        text.append(f"{marks[0]}{core}{marks[1]}" if segment.differs else core, style=style if segment.differs else "")
        text.append(plain[len(core) :])
    text.append("" if passage.ends else "…")
    return text


def _plain(text: str) -> str:
    """The text without control characters, which could control the terminal; white space within a line as one space."""
    return harmless(_CONTROLS.sub(" ", text))


def _shortened(text: str) -> str:
    """The beginning of a long text, and the number of characters that follow."""
    if len(text) <= _SHOWN_CHARS + 40:
        return text
    beginning = text[:_SHOWN_CHARS].rpartition(" ")[0] or text[:_SHOWN_CHARS]
    return f"{beginning} … ({len(text) - len(beginning):,} characters)"
