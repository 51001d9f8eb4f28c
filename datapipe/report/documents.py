"""What became of every document: rows of a table from "read" to "kept", and the stream that a page draws."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from datapipe.dataclass import replace
from datapipe.metrics import Packing
from datapipe.quantities import counted
from datapipe.report.cells import Bytes, Cell, Dropped, Section, Share, Table, share_of
from datapipe.report.drawing import Flow, FlowStep, cut
from datapipe.report.records import Documents, Entry, Summary


def documents(report: Summary) -> Section:
    """What became of the documents, and their rows: a column for each source, and for all."""
    section = Section(anchor="funnel", title="What became of every document", notes=[*note_of_removed(report)])
    if not report.sources:
        return section
    named: dict[str, Entry] = {**report.sources, **({"total": report.total} if len(report.sources) > 1 else {})}
    names, entries = [*named], [*named.values()]
    *rows, kept = document_rows(report, entries)
    shares = [f" ({Share(number / read):.0%})" if read else "" for read, number in zip(rows[0][1:], kept[1:])]
    rows.append(["kept", *(f"{number:,}{part}" for number, part in zip(kept[1:], shares))])
    rows.append(["text read", *(Bytes(entry.bytes) for entry in entries)])
    rows.append(["text kept", *(Bytes(entry.kept_bytes) for entry in entries)])
    rows += [["tokens", *(entry.tokens for entry in entries)]] if report.total.tokens else []
    for length in report.total.packing:
        rows += _packing_rows(length, [entry.packing.get(length) for entry in entries])
    events = in_stage_order([name for name, count in report.total.counts.items() if count], report)
    rows += [[name, *(entry.counts.get(name, 0) for entry in entries)] for name in events]
    weak = [str(row[0]) for row in rows if str(row[0]).startswith("    ")]
    title = f"{report.name}: documents"
    table = Table(title=title, headings=["", *names], rows=rows, strong=["kept"], weak=weak, by_source=True)
    by_size = sorted(report.sources.items(), key=lambda each: -each[1].documents.read)
    return replace(
        section,
        tables=[table],
        figures=[flow_figure(name, entry, report) for name, entry in by_size if entry.documents.read],
        notes=["A document is counted under the first rule that drops it.", *section.notes],
        noun="source",
    )


def note_of_removed(report: Summary) -> Iterator[str]:
    """A sentence on the documents that were taken down; none where none were."""
    number = report.shards.taken_down if report.shards else 0
    if number:
        yield f"{counted(number, 'document')} taken down: loaders pad those that rows have. The other numbers count them."


def _packing_rows(length: int, columns: Sequence[Packing | None]) -> Iterator[list[Cell]]:
    """Rows about sequences of one length, but those of zeros. None: a source without sequences."""
    yield [f"rows of {length:,}", *(None if packing is None else packing.rows for packing in columns)]
    for name, key in (
        ("padding", "padding_tokens"),
        ("documents split", "split_documents"),
        ("split for padding", "split_for_padding"),
        ("pieces", "pieces"),
        ("tokens dropped", "dropped_tokens"),
        ("documents dropped", "dropped_documents"),
    ):
        counts = [0 if packing is None else getattr(packing, key) for packing in columns]
        if any(counts):
            shares = [f" ({packing.padding_share:.3%})" if packing and name == "padding" else "" for packing in columns]
            yield [f"  {name}", *(f"{count:,}{part}" for count, part in zip(counts, shares))]


def document_rows(report: Summary, entries: Sequence[Entry]) -> list[list[Any]]:
    """What became of every document, from "read" to "kept": a row for each stage with its
    reasons indented below it, and a number for each entry. Rows of zeros are left out."""
    documents = [entry.documents for entry in entries]

    def lost(label: str, kind: str, reasons: Iterable[str]) -> list[Any]:
        return [label, *(Dropped(sum(getattr(each, kind).get(reason, 0) for reason in reasons)) for each in documents)]

    rows: list[list[Any]] = []
    for stage, reasons in dropped_by_stage(report).items():
        if len(reasons) == 1:
            rows.append(lost(f"  {next(iter(reasons))}", "dropped", reasons))
        else:
            rows.append(lost(f"  {stage}", "dropped", reasons))
            rows += [lost(f"    {reason.rpartition(':')[2]}", "dropped", [reason]) for reason in reasons]
    rows.append(["  quarantined", *(Dropped(each.quarantined) for each in documents)])
    reasons = documents[-1].quarantine_reasons
    rows += [lost(f"    {reason}", "quarantine_reasons", [reason]) for reason in reasons]
    rows.append(["  between steps", *(Dropped(each.between_steps) for each in documents)])
    first, last = ([key, *(getattr(each, key) for each in documents)] for key in ("read", "kept"))
    return [first, *(row for row in rows if any(row[1:])), last]


def dropped_by_stage(report: Summary) -> dict[str, dict[str, int]]:
    """Documents dropped, by stage and reason ("stage:rule"), in the order of the stages."""
    dropped = report.total.documents.dropped
    by_stage: dict[str, dict[str, int]] = {}
    for reason in in_stage_order((reason for reason, count in dropped.items() if count), report):
        by_stage.setdefault(reason.rpartition(":")[0], {})[reason] = dropped[reason]
    return by_stage


def in_stage_order(names: Iterable[str], report: Summary) -> list[str]:
    """Names such as "stage:rule" in the order of the stages, of one stage as they are."""
    order: list[str] = []
    for entry in report.sources.values():
        index = 0
        for step in entry.steps:  # a stage that earlier sources lack goes behind the stage before it in this source
            stage = step.removesuffix(": apply")
            if stage not in order:
                order.insert(index, stage)
            index = max(index, order.index(stage) + 1)
    ranks = {stage: rank for rank, stage in enumerate(order)}
    return sorted(names, key=lambda name: ranks.get(name.rpartition(":")[0], len(order)))


def flow_figure(name: str, entry: Entry, report: Summary) -> Table:
    documents = entry.documents
    steps = _flow_steps(documents, dropped_by_stage(report))
    worst = max(steps, key=lambda step: step.left, default=None)
    title = f"{name} keeps {share_of(documents.kept, documents.read)} of its {counted(documents.read, 'document')}"
    title += "" if worst is None else f"; most leave at {worst.label} ({share_of(worst.left, documents.read)})"
    rows = [[label, int(count), Share(count / documents.read)] for label, count in document_rows(report, [entry])]
    headings = ["documents", "number", "share of read"]
    return Table(title=title, headings=headings, rows=rows, drawing=Flow(read=documents.read, steps=steps))


def _flow_steps(documents: Documents, stages: Mapping[str, Iterable[str]]) -> list[FlowStep]:
    steps: list[FlowStep] = []
    for stage, reasons in stages.items():
        counts = {reason: documents.dropped.get(reason, 0) for reason in reasons}
        left = sum(counts.values())
        if left:
            rule, count = max(counts.items(), key=lambda each: each[1])
            most = f", most for {rule.rpartition(':')[2]} ({count:,})" if count < left else f", for {rule.rpartition(':')[2]}"
            text = f"−{left:,} ({share_of(left, documents.read)}){cut(most, 44)}"
            steps.append(FlowStep(label=stage, left=left, text=text))
    if documents.quarantined:
        reason = cut(next(iter(documents.quarantine_reasons), ""), 34)
        text = f"−{documents.quarantined:,} ({share_of(documents.quarantined, documents.read)}) {reason}"
        steps.append(FlowStep(label="quarantined", left=documents.quarantined, text=text, color="quarantined"))
    if documents.between_steps > 0:
        text = f"−{documents.between_steps:,}: the run has not ended"
        steps.append(FlowStep(label="between steps", left=documents.between_steps, text=text, color="quarantined"))
    return steps
