"""`datapipe inspect`: documents for people to look at, each with what became of it and why."""

from __future__ import annotations

import math
from typing import Protocol

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

_SHOWN_CHARS = 600
_AS = {True: "  (as the stages left it)", False: "  (as it was read)"}


class Document(Protocol):
    """What is shown of a document; `executor.look.Seen` has it."""

    @property
    def source(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def place(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def threshold(self) -> float | None: ...
    @property
    def survivor(self) -> str: ...
    @property
    def text(self) -> str | None: ...
    @property
    def error(self) -> str: ...


def print_document(document: Document, console: Console, full: bool = False) -> None:
    """Prints a document under a line that says where it is from and why it was dropped."""
    console.print(Rule(f"{document.source}  {document.path}:{document.place}", align="left"))
    decision = f"{document.outcome} {document.reason}".strip() + _AS[document.outcome == "kept"]
    if document.value is not None:
        decision += "  not measured" if math.isnan(document.value) else f"  measured {document.value:.4g}"
    if document.threshold is not None:
        decision += f"  against {document.threshold:.4g}"
    if document.survivor:
        decision += f"  stands in for it: {document.survivor}"
    console.print(Text(decision, style="bold"), soft_wrap=True)
    if document.error:
        console.print(Text(document.error.strip(), style="red"), soft_wrap=True)
    if document.text is None:
        console.print(Text("(the source gives no document here)", style="dim"))
        return
    shown = document.text if full or len(document.text) <= _SHOWN_CHARS else document.text[:_SHOWN_CHARS] + " …"
    console.print(Text(shown), soft_wrap=True)
