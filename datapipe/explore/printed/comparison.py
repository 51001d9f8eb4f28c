"""`datapipe report A B`: two outputs side by side.

options that differ  ─▶  documents and tokens by source  ─▶  documents that only one keeps, and why  ─▶  rules that measured
                                                                                                        something else
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from datapipe.config.interpolation import parsed_yaml
from datapipe.credentials import masked
from datapipe.explore.comparison import rule_changes
from datapipe.explore.documents import Inspector
from datapipe.metrics import counted
from datapipe.report.layout import MOST_COLUMNS, NumberTable, print_lines, wrapped
from datapipe.report.snapshot_list import option_changes
from datapipe.report.tables import cell

_SHOWN_REASONS, _SHOWN_RULES = 6, 12
_COUNTS = ("read", "kept")


def comparison_json(
    outputs: tuple[str, str],
    reports: tuple[Mapping[str, Any], Mapping[str, Any]],
    inspectors: tuple[Inspector, Inspector],
    membership: Mapping[str, Any],
) -> dict[str, Any]:
    """The comparison as plain data.

    outputs     of both, without credentials
    runs        {status, problem} of both: numbers of a run that is not done count what it has committed
    options     the stages and options of the mixtures that differ, a line each
    sources     name → {read, kept, tokens}: [first, second], null where a run has no such source
    documents   as `membership` returns them
    rules       as `rule_changes` returns them
    """
    mixtures = [parsed_yaml(inspector.mixture.resolved_yaml()) for inspector in inspectors]
    names = dict.fromkeys(name for report in reports for name in report["sources"])
    return {
        "outputs": [masked(output) for output in outputs],
        "runs": [{"status": report["status"], "problem": masked(report["problem"] or "") or None} for report in reports],
        "options": option_changes(mixtures[0], mixtures[1]),
        "sources": {name: _numbers([report["sources"].get(name) for report in reports]) for name in names},
        "total": _numbers([report["total"] for report in reports]),
        "documents": membership,
        "rules": rule_changes(*reports),
    }


def _numbers(entries: Sequence[Mapping[str, Any] | None]) -> dict[str, list[int | None]]:
    documents = {name: [None if entry is None else entry["documents"][name] for entry in entries] for name in _COUNTS}
    return {**documents, "tokens": [None if entry is None else entry["tokens"] for entry in entries]}


def print_comparison(comparison: Mapping[str, Any], console: Console, full: bool = False) -> None:
    """Prints a comparison.

    Args:
        full: whether to print all reasons and rules.
    """
    width = min(console.width, MOST_COLUMNS)
    first, second = comparison["outputs"]
    print_lines([line for text in (f"A  {first}", f"B  {second}") for line in wrapped(text, width)], console, "bold")
    print_lines([line for text in _not_done(comparison["runs"]) for line in wrapped(text, width)], console, "red")
    options = comparison["options"] or ["the mixtures are the same, but for names and execution"]
    print_lines(["", *(line for option in options for line in wrapped(f"  {option}", width)), ""], console)
    console.print(_sources(comparison))
    documents = comparison["documents"]
    print_lines(["", f"{counted(documents['both'], 'document')} kept by both"], console, "bold")
    for letter, other, side in (("A", "B", "only_first"), ("B", "A", "only_second")):
        print_lines(list(_one_sided(letter, other, documents[side], width, full)), console)
    if comparison["rules"]:
        print_lines([""], console)
        console.print(_rules(comparison["rules"], full))


def _not_done(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each run that failed or was stopped, with the reason."""
    for letter, run in zip("AB", runs):
        if run["status"] != "done":
            reason = f": {run['problem']}" if run["problem"] else ""
            yield f"{letter} {run['status']}, so its numbers count what it has committed{reason}"


def _sources(comparison: Mapping[str, Any]) -> NumberTable:
    table = NumberTable("documents and tokens", ["", "A", "B", "B − A"])
    sources = comparison["sources"]
    for name, numbers in {**sources, **({"total": comparison["total"]} if len(sources) > 1 else {})}.items():
        for label, (one, other) in numbers.items():
            if one or other:
                change = "" if one is None or other is None else f"{other - one:+,}".replace("-", "−")
                table.add_row(f"{name}: {label}", cell(one), cell(other), change)
        table.add_section()
    return table


def _one_sided(letter: str, other: str, side: Mapping[str, Any], width: int, full: bool) -> Iterator[str]:
    yield ""
    if not side["documents"]:
        yield f"no document kept by {letter} alone"
        return
    yield f"{counted(side['documents'], 'document')} kept by {letter} alone; in {other}:"
    reasons = list(side["reasons"].items())
    for reason, count in reasons if full else reasons[:_SHOWN_REASONS]:
        yield from wrapped(f"  {count:,}  {reason}", width, hanging=6)
        yield from (line for name in side["sample"][reason] for line in wrapped(f"      {name}", width, hanging=8))
    if not full and len(reasons) > _SHOWN_REASONS:
        yield f"  and {counted(len(reasons) - _SHOWN_REASONS, 'more reason')}; --full shows all"


def _rules(rules: Sequence[Mapping[str, Any]], full: bool) -> NumberTable:
    shown = rules if full else rules[:_SHOWN_RULES]
    more = len(rules) - len(shown)
    caption = f"and {counted(more, 'more rule')}; --full shows all" if more else ""
    headings = ["rule", "fail in A", "in B", "threshold of A", "of B", "median in A", "in B"]
    table = NumberTable("rules that decide or measure otherwise", headings, caption=caption)
    for change in shown:
        failed = ["·" if share is None else f"{share:.1%}" for share in change["failed"]]
        numbers = [cell(number) for number in (*change["thresholds"], *change["medians"])]
        table.add_row(f"{change['source']}: {change['stage']}:{change['rule']}", *failed, *numbers)
    return table
