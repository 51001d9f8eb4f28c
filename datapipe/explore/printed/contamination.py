"""Contaminated, clean and undetectable items of evaluation sets, in `datapipe inspect --contamination`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from datapipe.metrics import counted
from datapipe.report.funnel import contamination_table
from datapipe.report.layout import print_text

_SHOWN_FINDINGS = 5
_SHOWN_NAMES = 10


def print_contamination(found: Mapping[str, Any], console: Console, full: bool = False) -> None:
    """Prints the table, the sample of documents, and items by name.

    Args:
        found: as `contamination` returns it.
        full: whether all items and findings are printed.
    """
    console.print(contamination_table(found["lists"]))
    for document in found["documents"]:
        print_text(f"{document['document']}  {document['outcome']} by {document['stage']}", console, "bold")
        findings = document["findings"]
        shown = findings if full else findings[:_SHOWN_FINDINGS]
        for each in shown:
            where = f"bytes {each['start']:,} to {each['stop']:,}"
            print_text(f"  {each['list']}:{each['entry']}  {where}  measured {each['value']:g}", console)
        if len(findings) > len(shown):
            print_text(f"  and {counted(len(findings) - len(shown), 'other item')}", console)
    _print_names("contaminated", [f"{each['list']}:{each['entry']}" for each in found["contaminated"]], console, full)
    if found["undetectable"] is None:
        print_text("undetectable items: the evaluation files are gone or have changed, so their names are not known", console)
    else:
        names = [f"{name}:{entry}" for name, entries in found["undetectable"].items() for entry in entries]
        _print_names("undetectable", names, console, full)


def _print_names(kind: str, names: Sequence[str], console: Console, full: bool) -> None:
    """Prints names of items, all or the first of them."""
    shown = names if full else names[:_SHOWN_NAMES]
    more = f" and {len(names) - len(shown):,} more, with --full" if len(shown) < len(names) else ""
    if names:
        print_text(f"{kind}: {', '.join(shown)}{more}", console)
