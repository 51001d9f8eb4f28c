"""`datapipe inspect`: documents with the decision of the run, thresholds, and items of evaluation sets."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.rule import Rule

from datapipe.explore.contamination import Contamination
from datapipe.quantities import counted, size
from datapipe.report.cells import Bytes, Table, share_of
from datapipe.report.layout import NO_BREAK, NumberTable, fitting, harmless_text, print_text, print_verbatim
from datapipe.report.sections import evaluation_table
from datapipe.report.terminal import number_table

_SHOWN_CHARS = 600
_KEPT_TEXT, _READ_TEXT, _EXTRACTED_TEXT = "  (as the stages left it)", "  (as it was read)", "  (as the stage got it)"
_COLUMN_CHARS = 200
_SHOWN_FINDINGS = 5
_SHOWN_NAMES = 10
_SWEEP_LEGEND = """The counts cover the documents that the run kept.
alone: documents that pass this threshold.
with the others: documents that also pass the other rules of the stage."""


def print_documents(documents: Sequence[Mapping[str, Any]], console: Console, full: bool, if_none: str) -> None:
    """Prints documents of `Inspector.find`, or a line where there are none."""
    for document in documents:
        _print_document(document, console, full)
    if not documents:
        print_text(if_none, console)


def _print_document(document: Mapping[str, Any], console: Console, full: bool) -> None:
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
        return
    print_verbatim(text if full or len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + " …", console)


def _decision(document: Mapping[str, Any]) -> str:
    decision = f"{document['outcome']} {document['reason'] or ''}".strip()
    decision += _KEPT_TEXT if document["outcome"] == "kept" else _EXTRACTED_TEXT if document["is_as_judged"] else _READ_TEXT
    if document["value"] is not None:
        decision += f"  measured{NO_BREAK}{document['value']:.4g}"
    if document["threshold"] is not None:
        decision += f"  threshold{NO_BREAK}{document['threshold']:.4g}"
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
        documents = [cell for each in counts for cell in (each["documents"], share_of(each["documents"], tagged["documents"]))]
        texts = [cell for each in counts for cell in (Bytes(each["bytes"]), share_of(each["bytes"], tagged["bytes"]))]
        name = in_force if kept["threshold"] == source["limit"] else _number(kept["threshold"])
        rows.append([name, *documents, *texts])
    title = f"{source['name']}: {counted(tagged['documents'], 'document')}, {size(tagged['bytes'])}"
    headings = ["threshold", "alone", "", "with the others", "", "text alone", "", "text with the others", ""]
    note = "▶ in force" if any(row[0] == in_force for row in rows) else ""
    return number_table(Table(title=title, headings=headings, rows=rows, strong=[in_force], note=note))


def _number(value: float) -> str:
    """The shortest text that reads back as the same threshold."""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else repr(value)


def print_contamination(found: Contamination, console: Console, full: bool = False) -> None:
    """Prints the items of evaluation sets, all of them with `full`, and a sample of documents."""
    console.print(number_table(evaluation_table(found.lists)))
    for document in found.documents:
        print_text(f"{document.document}  {document.outcome} by {document.stage}", console, "bold")
        findings = document.findings
        shown = findings if full else findings[:_SHOWN_FINDINGS]
        for each in shown:
            where = f"bytes {each.start:,} to {each.stop:,}"
            print_text(f"  {each.list}:{each.entry}  {where}  measured {each.value:g}", console)
        if len(findings) > len(shown):
            print_text(f"  and {counted(len(findings) - len(shown), 'other item')}", console)
    _print_names("contaminated", [f"{each.list}:{each.entry}" for each in found.contaminated], console, full)
    if found.undetectable is None:
        print_text("undetectable items: the evaluation files are gone or have changed, so their names are not known", console)
    else:
        names = [f"{name}:{entry}" for name, entries in found.undetectable.items() for entry in entries]
        _print_names("undetectable", names, console, full)


def _print_names(kind: str, names: Sequence[str], console: Console, full: bool) -> None:
    shown = names if full else names[:_SHOWN_NAMES]
    more = f" and {len(names) - len(shown):,} more, with --full" if len(shown) < len(names) else ""
    if names:
        print_text(f"{kind}: {', '.join(shown)}{more}", console)
