"""`datapipe report A B`: two outputs side by side.

options that differ  ─▶  documents and tokens by source  ─▶  documents that only one keeps, and why  ─▶  rules that measured
                                                                                                        something else
"""

from collections.abc import Iterator, Sequence

from rich.console import Console

from datapipe.explore.comparison import Comparison, OneSided, OutputStatus, RuleChange
from datapipe.quantities import counted
from datapipe.report.cells import cell
from datapipe.report.layout import MOST_COLUMNS, NumberTable, print_lines, print_wrapped, wrapped

_SHOWN_REASONS, _SHOWN_RULES = 6, 12


def print_comparison(comparison: Comparison, console: Console, full: bool = False) -> None:
    """Prints a comparison, with `full` all its reasons and rules."""
    width = min(console.width, MOST_COLUMNS)
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
        if run.status != "done":
            reason = f": {run.problem}" if run.problem else ""
            yield f"{letter} {run.status}, so its numbers count what it has committed{reason}"


def _sources(comparison: Comparison) -> NumberTable:
    table = NumberTable("documents and tokens", ["", "A", "B", "B − A"])
    sources = comparison.sources
    for name, numbers in {**sources, **({"total": comparison.total} if len(sources) > 1 else {})}.items():
        for label, (one, other) in numbers:
            if one or other:
                change = "" if one is None or other is None else f"{other - one:+,}".replace("-", "−")
                table.add_row(f"{name}: {label}", cell(one), cell(other), change)
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
