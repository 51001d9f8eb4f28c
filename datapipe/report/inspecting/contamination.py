"""Contaminated, clean and undetectable items of evaluation sets, in reports and `datapipe inspect --contamination`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console

from datapipe.metrics import counted
from datapipe.report.layout import NumberTable, print_text

_SHOWN_FINDINGS = 5
_SHOWN_NAMES = 10


class Finding(Protocol):
    @property
    def list(self) -> str: ...
    @property
    def entry(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def value(self) -> float: ...


class Document(Protocol):
    @property
    def document(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def findings(self) -> Sequence[Finding]: ...


class Counts(Protocol):
    def to_json(self) -> dict[str, Any]: ...


class Contamination(Protocol):
    """What this module shows of `inspect.contamination.Contamination`."""

    @property
    def lists(self) -> Sequence[Counts]: ...
    @property
    def documents(self) -> Sequence[Document]: ...
    @property
    def found(self) -> Mapping[tuple[str, str, str], int]: ...
    @property
    def undetectable(self) -> Mapping[str, Sequence[str]] | None: ...


def contamination_table(lists: Sequence[Mapping[str, Any]]) -> NumberTable:
    """A row for each list: its entries, and how many of them are of each kind."""
    table = NumberTable("evaluation sets", ["benchmark", "items", "contaminated", "clean", "undetectable"])
    several = len({counts["stage"] for counts in lists}) > 1
    for counts in lists:
        kinds = [f"{counts[name]:,}" for name in ("entries", "contaminated", "clean", "undetectable")]
        table.add_row(f"{counts['stage']}: {counts['name']}" if several else counts["name"], *kinds)
    return table


def print_contamination(found: Contamination, console: Console, full: bool = False) -> None:
    """Prints the table, the sample of documents, and items by name.

    Args:
        full: whether all items and findings are printed.
    """
    console.print(contamination_table([counts.to_json() for counts in found.lists]))
    for document in found.documents:
        print_text(f"{document.document}  {document.outcome} by {document.stage}", console, "bold")
        shown = document.findings if full else document.findings[:_SHOWN_FINDINGS]
        for finding in shown:
            where = f"bytes {finding.start:,} to {finding.stop:,}"
            print_text(f"  {finding.list}:{finding.entry}  {where}  measured {finding.value:g}", console)
        if len(document.findings) > len(shown):
            print_text(f"  and {counted(len(document.findings) - len(shown), 'other item')}", console)
    _print_names("contaminated", [f"{name}:{entry}" for _, name, entry in sorted(found.found)], console, full)
    if found.undetectable is None:
        print_text("undetectable items: the evaluation files are gone or have changed, so their names are not known", console)
    else:
        names = [f"{name}:{entry}" for name, entries in found.undetectable.items() for entry in entries]
        _print_names("undetectable", names, console, full)


def _print_names(kind: str, names: Sequence[str], console: Console, full: bool) -> None:
    """Prints names of items, all or the first of them."""
    shown = names if full else names[:_SHOWN_NAMES]
    more = f" and {len(names) - len(shown):,} more, with --full" if len(shown) < len(names) else ""
    if names:
        print_text(f"{kind}: {', '.join(shown)}{more}", console)
