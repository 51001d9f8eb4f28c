"""What `datapipe inspect` and `datapipe report A B` print: documents, thresholds, evaluation sets, clusters, two outputs.

What differs between duplicates is marked, and coloured on a terminal: words of the surviving text alone stand in [-marks-],
words of the dropped text alone in {+marks+}, so that a log can be read and searched.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table as Grid
from rich.text import Text

from datapipe.explore.batch_tokens import TokenRow
from datapipe.explore.comparison import Comparison, OneSided, OutputStatus, RuleChange
from datapipe.explore.contamination import Contamination
from datapipe.explore.differences import COMPARED_CHARS, Difference, Passage, Segment, difference
from datapipe.machine.terminal import harmless
from datapipe.quantities import counted, size
from datapipe.report.cells import Bytes, Table, cell, share_of
from datapipe.report.contamination import evaluation_table
from datapipe.report.layout import (
    NO_BREAK,
    NumberTable,
    fitting,
    harmless_text,
    line_width,
    print_lines,
    print_text,
    print_verbatim,
    print_wrapped,
    wrapped,
)

_SHOWN_CHARS = 600
_KEPT_TEXT, _READ_TEXT, _EXTRACTED_TEXT = "(as the stages left it)", "(as it was read)", "(as the stage got it)"
_COLUMN_CHARS = 200
_SHOWN_FINDINGS = 5
_SHOWN_NAMES = 10
_SWEEP_LEGEND = """The counts cover the documents that the run kept.
alone: documents that pass this threshold.
with the others: documents that also pass the other rules of the stage."""
_INDENT = 9
_SHOWN_PASSAGES = 3
_SIDE_CHARS = 120  # A long text is cut to so many characters at its beginning and at its end
_CONTROLS = re.compile(r"[^\S\n]+|[\x00-\x09\x0b-\x1f\x7f-\x9f]+")
_LEGEND = """
measured: the highest similarity to any document of the cluster, as the stage computed it.
in common: counted here from the two texts as they were read, before any stage changed them."""
_SHOWN_REASONS, _SHOWN_RULES = 6, 12


def print_rows(rows: Sequence[TokenRow], console: Console) -> None:
    """Prints rows of `batch_tokens`. What no loss counts stands in «guillemets» and is dim on a terminal; control tokens are
    bold and magenta."""
    for row in rows:
        console.print(Rule(harmless_text(f"row {row.row}  {row.source}"), align="left"), soft_wrap=True)
        for document in row.documents:
            learned = f"{document.num_learned:,} of {counted(document.num_tokens, 'token')} learned"
            start = f" from token {document.start:,}" if document.start else ""
            print_text(f"document {document.key}{start}, {learned}", console, "cyan")
            text = Text()
            for run in document.runs:
                style = " ".join(["bold magenta"] * run.is_control + ["dim"] * (not run.is_learned))
                shown = run.text if run.is_learned else f"«{run.text}»"
                text.append_text(harmless_text(shown, style))
            console.print(text, soft_wrap=True) if console.is_terminal else print(text.plain, file=console.file)
        if row.num_padding:
            print_text(f"{counted(row.num_padding, 'token')} of padding", console, "cyan")


def print_documents(documents: Sequence[Mapping[str, Any]], console: Console, full: bool, if_none: str) -> None:
    """Prints documents of `Inspector.find`, or a line where there are none."""
    for document in documents:
        title = harmless_text(document["document"] + (f"  id {document['own_id']}" if document["own_id"] else ""))
        console.print(Rule(title, align="left") if len(title) < console.width else title, soft_wrap=True)
        print_text(_decision(document), console, "bold")
        if document["columns"]:
            columns = (f"{name}: {fitting(str(value), _COLUMN_CHARS)}" for name, value in document["columns"].items())
            print_text(", ".join(columns), console)
        if document["error"]:
            print_text(document["error"].strip(), console, "red")
        text = document["text"]
        if text is None:
            console.print(harmless_text("(no text: its file is missing or has changed)", "dim"))
        else:
            print_verbatim(text if full or len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + " …", console)
    if not documents:
        print_text(if_none, console)


def _decision(document: Mapping[str, Any]) -> str:
    decision = f"{document['outcome']} {document['reason'] or ''}".strip()
    if document["value"] is not None:
        decision += f"  measured{NO_BREAK}{document['value']:.4g}"
    if document["threshold"] is not None:
        decision += f"  threshold{NO_BREAK}{document['threshold']:.4g}"
    about = _KEPT_TEXT if document["outcome"] == "kept" else _EXTRACTED_TEXT if document["is_as_judged"] else _READ_TEXT
    decision += f"  {about.replace(' ', NO_BREAK)}"
    if document["is_taken_down"]:
        decision += "  taken down since"
    if document["survivor"]:
        decision += f"  duplicate of {document['survivor']}"
    return decision


def print_sweep(sweep: Mapping[str, Any], console: Console) -> None:
    """Prints a table for each source of a `sweep.sweep`, and for their sum where there are several."""
    passes = "this value or more" if sweep["side"] == "min" else "this value or less"
    named = f"{sweep['stage']}, {sweep['option'] or sweep['rule']}"
    print_text(f"{named}: {passes} passes the rule '{sweep['rule']}'", console, "bold")
    for source in [*sweep["sources"], *([sweep["total"]] if len(sweep["sources"]) > 1 else [])]:
        console.print(_table(source))
    print_text(_SWEEP_LEGEND, console)
    if sweep["dropping"]:
        dropping = ", ".join(sweep["dropping"])
        print_text(f"Sources left out, because the stage has no `mode: tag` there: {dropping}", console)
    if unsure := sweep["total"]["unsure"]:
        failed = f"{counted(unsure, 'document')} failed a rule before another one whose value is not stored."
        counts = "They count as passing the other one, so 'with the others' may be too high by as many."
        print_text(f"{failed} {counts}", console)


def _table(source: Mapping[str, Any]) -> NumberTable:
    """Documents come first, their text after them: a narrow terminal leaves out the last columns."""
    tagged, in_force = source["tagged"], f"▶ {_number(source['limit'])}" if source["limit"] is not None else ""
    rows = []
    for kept in source["kept"]:
        counts = [kept["alone"], kept["together"]]
        documents = [
            value for each in counts for value in (each["documents"], share_of(each["documents"], tagged["documents"]))
        ]
        texts = [cell for each in counts for cell in (Bytes(each["bytes"]), share_of(each["bytes"], tagged["bytes"]))]
        name = in_force if kept["threshold"] == source["limit"] else _number(kept["threshold"])
        rows.append([name, *documents, *texts])
    title = f"{source['name']}: {counted(tagged['documents'], 'document')}, {size(tagged['bytes'])}"
    headings = ["threshold", "alone", "", "with the others", "", "text alone", "", "text with the others", ""]
    note = "▶ in force" if any(row[0] == in_force for row in rows) else ""
    return NumberTable.of(Table(title=title, headings=headings, rows=rows, strong=[in_force], note=note))


def _number(value: float) -> str:
    """The shortest text that reads back as the same threshold."""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else repr(value)


def print_contamination(contamination: Contamination, console: Console, full: bool = False) -> None:
    """Prints the items of evaluation sets, all of them with `full`, and a sample of documents."""
    console.print(NumberTable.of(evaluation_table(contamination.lists)))
    for document in contamination.documents:
        print_text(f"{document.document}  {document.outcome} by {document.stage}", console, "bold")
        findings = document.findings
        shown = findings if full else findings[:_SHOWN_FINDINGS]
        for each in shown:
            where = f"bytes {each.start:,} to {each.stop:,}"
            print_text(f"  {each.list}:{each.entry}  {where}  measured {each.value:g}", console)
        if len(findings) > len(shown):
            print_text(f"  and {counted(len(findings) - len(shown), 'other item')}", console)
    _print_names("contaminated", [f"{each.list}:{each.entry}" for each in contamination.contaminated], console, full)
    if contamination.undetectable is None:
        print_text("undetectable items: the evaluation files are gone or have changed, so their names are not known", console)
    else:
        names = [f"{name}:{entry}" for name, entries in contamination.undetectable.items() for entry in entries]
        _print_names("undetectable", names, console, full)


def _print_names(kind: str, names: Sequence[str], console: Console, full: bool) -> None:
    shown = names if full else names[:_SHOWN_NAMES]
    more = f" and {len(names) - len(shown):,} more, with --full" if len(shown) < len(names) else ""
    if names:
        print_text(f"{kind}: {', '.join(shown)}{more}", console)


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
    """Prints a dropped document. Returns the comparison; None where a text is missing."""
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


def _passages(passages: Sequence[Passage], full: bool) -> Grid:
    table = Grid.grid(padding=(0, 1, 0, 2))
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
    return harmless(_CONTROLS.sub(" ", text))


def _shortened(text: str) -> str:
    """A text on one line, with its number of words or characters for the middle of a long one."""
    plain = _plain(text).replace("\n", " ")
    if len(plain) <= 3 * _SIDE_CHARS:
        return plain
    beginning, end = plain[:_SIDE_CHARS], plain[-_SIDE_CHARS:]
    beginning, end = beginning.rpartition(" ")[0] or beginning, end.partition(" ")[2] or end
    middle = plain[len(beginning) : -len(end)]
    words = middle.split()
    hidden = counted(len(words), "word") if len(words) > 1 else f"{len(middle):,} characters"
    return f"{beginning} … ({hidden}) … {end}"


def print_comparison(comparison: Comparison, console: Console, full: bool = False) -> None:
    """Prints a comparison, with `full` all its reasons and rules."""
    width = line_width(console)
    print_wrapped((f"{letter}  {output}" for letter, output in zip("AB", comparison.outputs)), console, "bold")
    print_wrapped(_not_done(comparison.runs), console, "red")
    options = comparison.options or ["the mixtures are the same, but for names and execution"]
    print_wrapped(["", *(f"  {option}" for option in options), ""], console)
    console.print(_sources(comparison))
    documents = comparison.documents
    print_lines(["", f"{counted(documents.both, 'document')} kept by both"], console, "bold")
    for letter, other, side in (("A", "B", documents.only_first), ("B", "A", documents.only_second)):
        print_lines(list(_one_sided(letter, other, side, width, full)), console)
    if comparison.rules:
        print_lines([""], console)
        console.print(_rules(comparison.rules, full))


def _not_done(runs: Sequence[OutputStatus]) -> Iterator[str]:
    for letter, run in zip("AB", runs):
        if run.status != "finished":
            reason = f": {run.problem}" if run.problem else ""
            yield f"{letter} {run.status}, so its numbers count what it has committed{reason}"


def _sources(comparison: Comparison) -> NumberTable:
    table = NumberTable("documents and tokens", ["", "A", "B", "B − A"])
    sources = comparison.sources
    for name, numbers in {**sources, **({"total": comparison.total} if len(sources) > 1 else {})}.items():
        for label, (before, after) in numbers:
            if before or after:
                change = "" if before is None or after is None else f"{after - before:+,}".replace("-", "−")
                table.add_row(f"{name}: {label}", cell(before), cell(after), change)
        table.add_section()
    return table


def _one_sided(letter: str, other: str, side: OneSided, width: int, full: bool) -> Iterator[str]:
    yield ""
    if not side.documents:
        yield f"no document kept by {letter} alone"
        return
    yield f"{counted(side.documents, 'document')} kept by {letter} alone; in {other}:"
    reasons = list(side.reasons.items())
    for reason, count in reasons if full else reasons[:_SHOWN_REASONS]:
        yield from wrapped(f"  {count:,}  {reason}", width, hanging=6)
        yield from (line for name in side.sample[reason] for line in wrapped(f"      {name}", width, hanging=8))
    if not full and len(reasons) > _SHOWN_REASONS:
        yield f"  and {counted(len(reasons) - _SHOWN_REASONS, 'more reason')}; --full shows all"


def _rules(rules: Sequence[RuleChange], full: bool) -> NumberTable:
    shown = rules if full else rules[:_SHOWN_RULES]
    more = len(rules) - len(shown)
    caption = f"and {counted(more, 'more rule')}; --full shows all" if more else ""
    headings = ["rule", "fail in A", "in B", "threshold of A", "of B", "median in A", "in B"]
    table = NumberTable("rules that decide or measure otherwise", headings, caption=caption)
    for change in shown:
        failed = ["·" if share is None else f"{share:.1%}" for share in change.failed]
        numbers = [cell(number) for number in (*change.thresholds, *change.medians)]
        table.add_row(f"{change.source}: {change.stage}:{change.rule}", *failed, *numbers)
    return table
