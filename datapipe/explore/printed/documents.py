"""`datapipe inspect`: documents with the decision of the run and its reason."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.rule import Rule

from datapipe.explore.documents import InspectedDocument
from datapipe.report.layout import NO_BREAK, fitting, harmless_text, print_text, print_verbatim

_SHOWN_CHARS = 600
_KEPT_TEXT, _READ_TEXT, _JUDGED_TEXT = "  (as the stages left it)", "  (as it was read)", "  (as the stage got it)"
_COLUMN_CHARS = 200


def print_documents(documents: Sequence[InspectedDocument], console: Console, full: bool, if_none: str) -> None:
    """Prints documents, or a line where there are none."""
    for document in documents:
        _print_document(document, console, full)
    if not documents:
        print_text(if_none, console)


def _print_document(document: InspectedDocument, console: Console, full: bool) -> None:
    """Prints a document below its name, the decision and the measured value."""
    title = harmless_text(document.name + (f"  id {document.own_id}" if document.own_id else ""))
    console.print(Rule(title, align="left") if len(title) < console.width else title, soft_wrap=True)
    print_text(_decision(document), console, "bold")
    if document.columns:
        columns = (f"{name}: {fitting(str(value), _COLUMN_CHARS)}" for name, value in document.columns.items())
        print_text(", ".join(columns), console)
    if document.error:
        print_text(document.error.strip(), console, "red")
    if document.text is None:
        console.print(harmless_text("(no text: its file is missing or has changed)", "dim"))
        return
    shown = document.text if full or len(document.text) <= _SHOWN_CHARS else document.text[:_SHOWN_CHARS] + " …"
    print_verbatim(shown, console)


def _decision(document: InspectedDocument) -> str:
    decision = f"{document.outcome} {document.reason}".strip()
    decision += _KEPT_TEXT if document.outcome == "kept" else _JUDGED_TEXT if document.is_as_judged else _READ_TEXT
    if document.value is not None:
        decision += f"  measured{NO_BREAK}{document.value:.4g}"
    if document.threshold is not None:
        decision += f"  threshold{NO_BREAK}{document.threshold:.4g}"
    if document.is_taken_down:
        decision += "  taken down since"
    if document.survivor:
        decision += f"  duplicate of {document.survivor}"
    return decision
