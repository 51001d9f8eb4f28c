"""`datapipe inspect --clusters`: the surviving document, and below it each document that was dropped for it.

What differs is marked, and coloured on a terminal: words of the surviving text alone stand in [-marks-], words of the dropped
text alone in {+marks+}, so that a log can be read and searched.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from datapipe.explore.differences import COMPARED_CHARS, Difference, Passage, Segment, difference
from datapipe.machine.terminal import harmless
from datapipe.quantities import counted
from datapipe.report.layout import harmless_text, print_text, print_verbatim

_INDENT = 9
_SHOWN_PASSAGES = 3
_SIDE_CHARS = 120
"""A long text is cut to so many characters at its beginning and at its end."""

_CONTROLS = re.compile(r"[^\S\n]+|[\x00-\x09\x0b-\x1f\x7f-\x9f]+")
_LEGEND = """
measured: the highest similarity to any document of the cluster, as the stage computed it.
in common: counted here from the two texts as they were read, before any stage changed them."""


def print_clusters(clusters: Iterable[Mapping[str, Any]], console: Console, full: bool = False) -> None:
    """Prints clusters of `find_clusters` as they come, and a summary at the end."""
    num_clusters = num_removals = 0
    in_common: list[float] = []
    for cluster in clusters:
        num_clusters, num_removals = num_clusters + 1, num_removals + len(cluster["members"])
        _print_head(cluster, console, full)
        for member in cluster["members"]:
            compared = _print_member(cluster, member, console, full)
            in_common += [] if compared is None else [compared.in_common]
        if num_hidden := cluster["dropped"] - len(cluster["members"]):
            print_text(f"\nand {counted(num_hidden, 'more document')} (--members shows them)", console)
    console.print(Rule(align="left"))
    shares = ""
    if in_common:
        least, middle, greatest = (f"{share:.4g}" for share in (min(in_common), median(in_common), max(in_common)))
        shares = f"; n-grams in common from {least} to {greatest}, median {middle}"
    print_text(f"{counted(num_clusters, 'cluster')}, {counted(num_removals, 'removal')} shown{shares}.\n{_LEGEND}", console)


def _print_head(cluster: Mapping[str, Any], console: Console, full: bool) -> None:
    survivor, measured = cluster["survivor"], _measured(**(cluster["similarity"] or {}))
    title = f"{cluster['stage']}: {counted(cluster['dropped'], 'document')} dropped in favour of one, {measured}"
    if cell_len(title) < console.width or not console.is_terminal:
        console.print(Rule(harmless_text(title), align="left"))
    else:
        console.print(Rule(align="left"))
        print_text(title, console)
    print_text(f"stays    {_document(survivor)}", console, "bold", hanging=_INDENT)
    if survivor["dropped_later_by"]:
        print_text(f"{' ' * _INDENT}dropped by a later stage: {survivor['dropped_later_by']}", console, "yellow", hanging=0)
    if survivor["text"] is None:
        print_text(f"{' ' * _INDENT}(no text to compare with: {survivor['no_text']})", console, "dim", hanging=0)
    elif not full:
        _print_beginning(survivor["text"], console)


def _print_member(cluster: Mapping[str, Any], member: Mapping[str, Any], console: Console, full: bool) -> Difference | None:
    """Prints a dropped document. Returns what it has in common with the surviving one; None where a text is missing."""
    measured = _measured(member["similarity"], member["similarity"])
    print_text(f"\ndropped  {_document(member)}  {measured}", console, "bold", hanging=_INDENT)
    surviving, dropped = cluster["survivor"]["text"], member["text"]
    if dropped is None:
        print_text(f"{' ' * _INDENT}(no text: its file is missing or has changed)", console, "dim", hanging=0)
        return None
    if surviving is None:
        _print_beginning(dropped, console, full)
        return None
    size, unit = cluster["shingles"]["size"], cluster["shingles"]["unit"]
    compared = difference(surviving, dropped, (size, unit), **({"context": None} if full else {}))
    for line in _figures(compared, f"{'word' if unit == 'word' else 'character'} {size}-grams"):
        print_text(f"{' ' * _INDENT}{line}", console, hanging=0)
    longest = sorted(range(len(compared.passages)), key=lambda index: -compared.passages[index].differing)
    shown = [compared.passages[index] for index in sorted(longest if full else longest[:_SHOWN_PASSAGES])]
    if shown:
        console.print(_passages(shown, full))
    if len(shown) < len(compared.passages):
        hidden = counted(len(compared.passages) - len(shown), "shorter passage")
        print_text(f"  and {hidden} that differ (--full shows the whole texts)", console)
    return compared


def _print_beginning(text: str, console: Console, full: bool = False) -> None:
    if full:
        print_verbatim(f"{' ' * _INDENT}{_plain(text)}", console, "dim")
    else:
        print_text(" " * _INDENT + _shortened(text), console, "dim", hanging=0)


def _measured(min: float | None = None, max: float | None = None) -> str:
    if min is None:
        return "not measured"
    return f"measured {min:.4g}" if min == max else f"measured {min:.4g} to {max:.4g}"


def _document(document: Mapping[str, Any]) -> str:
    run = f" (of {document['run']})" if document["run"] else ""
    size = "" if document["text"] is None else f"  {len(document['text']):,} characters"
    return f"{document['document']}{run}{size}"


def _figures(compared: Difference, ngrams: str) -> Iterator[str]:
    grams = f"{ngrams} in common {compared.in_common:.4g}"
    if compared.is_equal:
        yield "the same text"
    elif not compared.passages:
        yield f"the same words; white space, punctuation or case differ; {grams}"
    else:
        yield (
            f"{grams}; only in the surviving text {compared.only[0]:,} of {counted(compared.words[0], 'word')}, "
            f"only in the dropped text {compared.only[1]:,} of {counted(compared.words[1], 'word')}"
        )
    if not compared.is_whole:
        yield f"(compared: the first {COMPARED_CHARS:,} characters of each text)"
    if not compared.is_aligned:
        yield "(the texts differ too much to align to the end: the passages begin at the first difference)"


def _passages(passages: Sequence[Passage], full: bool) -> Table:
    table = Table.grid(padding=(0, 1, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for passage in passages:
        table.add_row("stays", _marked(passage, passage.first, full, "bold green", "[-", "-]"))
        table.add_row("dropped", _marked(passage, passage.second, full, "bold red", "{+", "+}"))
    return table


def _marked(passage: Passage, segments: Sequence[Segment], full: bool, style: str, opening: str, closing: str) -> Text:
    text = Text("" if passage.begins else "… ")
    for segment in segments:
        plain = _plain(segment.text) if full else _shortened(segment.text)
        core = plain.rstrip()
        text.append(f"{opening}{core}{closing}" if segment.differs else core, style=style if segment.differs else "")
        text.append(plain[len(core) :])
    text.append("" if passage.ends else "…")
    return text


def _plain(text: str) -> str:
    """The text without control characters; white space within a line as one space."""
    return harmless(_CONTROLS.sub(" ", text))


def _shortened(text: str) -> str:
    """A text on one line. The middle of a long one is replaced by its number of words, or of characters."""
    plain = _plain(text).replace("\n", " ")
    if len(plain) <= 3 * _SIDE_CHARS:
        return plain
    beginning, end = plain[:_SIDE_CHARS], plain[-_SIDE_CHARS:]
    beginning, end = beginning.rpartition(" ")[0] or beginning, end.partition(" ")[2] or end
    middle = plain[len(beginning) : -len(end)]
    words = middle.split()
    hidden = counted(len(words), "word") if len(words) > 1 else f"{len(middle):,} characters"
    return f"{beginning} … ({hidden}) … {end}"
