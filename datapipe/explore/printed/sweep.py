"""`datapipe inspect --sweep`: the documents that other thresholds would keep, a table for each source."""

from __future__ import annotations

from rich.console import Console

from datapipe.explore.sweep import Count, SourceSweep, Sweep
from datapipe.metrics import counted, size
from datapipe.report.layout import NumberTable, print_text


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Prints a table for each source, and for their sum where there are several."""
    passes = "this value or more" if sweep.side == "min" else "this value or less"
    print_text(f"{sweep.stage}, {sweep.option or sweep.rule}: {passes} passes the rule '{sweep.rule}'", console, "bold")
    for source in [*sweep.sources, *([sweep.total] if len(sweep.sources) > 1 else [])]:
        console.print(_table(sweep, source))
    print_text("The counts cover the documents that the run kept.", console)
    print_text("alone: documents that pass this threshold.", console)
    print_text("with the others: documents that also pass the other rules of the stage.", console)
    if sweep.dropping:
        dropping = ", ".join(sweep.dropping)
        print_text(f"Sources left out, because the stage has no `mode: tag` there: {dropping}", console)
    if sweep.total.unsure:
        print_text(_unsure(sweep.total.unsure), console)


def _unsure(num_documents: int) -> str:
    return (
        f"{counted(num_documents, 'document')} failed a rule before another one whose value is not stored. They count as "
        f"passing the other one, so 'with the others' may be too high by as many."
    )


def _table(sweep: Sweep, source: SourceSweep) -> NumberTable:
    """Documents come first, their text after them: a narrow terminal leaves out the last columns."""
    title = f"{source.name}: {counted(source.tagged.documents, 'document')}, {size(source.tagged.bytes)}"
    caption = "▶ in force" if any(kept.threshold == source.limit for kept in source.kept) else ""
    headings = ["threshold", "alone", "", "with the others", "", "text alone", "", "text with the others", ""]
    table = NumberTable(title, headings, caption=caption)
    for kept in source.kept:
        in_force = kept.threshold == source.limit
        mark = f"▶ {_number(kept.threshold)}" if in_force else _number(kept.threshold)
        documents = [cell for count in (kept.alone, kept.together) for cell in _documents(count, source.tagged)]
        texts = [cell for count in (kept.alone, kept.together) for cell in _text(count, source.tagged)]
        table.add_row(mark, *documents, *texts, style="bold yellow" if in_force else "")
    return table


def _documents(kept: Count, total: Count) -> tuple[str, str]:
    return f"{kept.documents:,}", _share(kept.documents, total.documents)


def _text(kept: Count, total: Count) -> tuple[str, str]:
    return size(kept.bytes), _share(kept.bytes, total.bytes)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _number(value: float) -> str:
    """The shortest text that reads back as the same threshold."""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else repr(value)
