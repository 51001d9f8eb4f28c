"""The report as one HTML file: a pure function of report.json. Same report, same bytes.

    report.json  ─▶  sections, each with charts and tables  ─▶  templates/report.html  ─▶  at most 1 MB

Sections come in the order in which people ask: what was built, what was lost where, and what it cost. Every title says what to
read from its chart. The file has no script and asks nothing of a network. Where a run has so many sources and rules that it
would be larger, the sections show fewer of them and say how many stand only in report.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from datapipe.quantities import counted, size
from datapipe.records.names import REPORT_PAGE
from datapipe.report.html.distributions import length_chart, rule_chart, rules_nobody_fails
from datapipe.report.html.drawing import (
    PALETTE,
    Bars,
    Chart,
    Flow,
    FlowStep,
    Section,
    Stacked,
    coordinate,
    cut,
    left_out,
    short,
    visible,
)
from datapipe.report.summary import second_attempts_text, starting_text
from datapipe.report.tables import (
    Bytes,
    Cell,
    Share,
    Table,
    cell,
    document_rows,
    dropped_by_stage,
    fertility_table,
    kept_table,
    language_counts,
    measured_rules,
    mixture_table,
    share_of,
    work_table,
)
from datapipe.storage.root import Root

MOST_BYTES = 1_000_000
_MOST_SHOWN = (24, 12, 6, 3, 1)
"""Charts of a section and rows of a chart: the first number that fits."""


def report_html(report: Mapping[str, Any]) -> bytes:
    """The page of the content of report.json."""
    content = b""
    for most in _MOST_SHOWN:
        content = _rendered(report, most)
        if len(content) <= MOST_BYTES:
            break
    return content


def write_page(root: Root, report: Mapping[str, Any]) -> None:
    """Writes report.html beside report.json."""
    root.write_atomic(REPORT_PAGE, report_html(report))


def _rendered(report: Mapping[str, Any], most: int) -> bytes:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("datapipe.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters |= {"cell": cell, "cut": cut, "n": coordinate, "short": short, "size": size, "visible": visible}
    template = environment.get_template("report.html")
    page = template.render(report=report, sections=_sections(report, most), palette=PALETTE)
    return page.encode("utf-8", "backslashreplace")


def _sections(report: Mapping[str, Any], most: int) -> list[Section]:
    """The sections that have something to show.

    Args:
        most: charts of a section, rows of a chart and of a table, at most.
    """
    found = [
        _funnel(report, most),
        _distributions(report, most),
        _clusters(report, most),
        _languages(report, most),
        _lengths(report, most),
        _schedule(report),
        _tokenizer(report, most),
        _provenance(report, most),
        _speed(report, most),
    ]
    return [section for section in found if section.charts or section.tables or section.note]


# ------------------------------------------------------------------------------------------------ the funnel


def _funnel(report: Mapping[str, Any], most: int) -> Section:
    by_size = sorted(report["sources"].items(), key=lambda each: -each[1]["documents"]["read"])
    charts = [_flow(name, entry, report, most) for name, entry in by_size[: max(1, most // 2)] if entry["documents"]["read"]]
    return Section(
        anchor="funnel",
        heading="What became of every document",
        charts=charts,
        note="The stream is as wide as the documents in it. What a stage drops leaves to the right.",
        more=left_out(len(charts), len(by_size), "source"),
    )


def _flow(name: str, entry: Mapping[str, Any], report: Mapping[str, Any], most: int) -> Chart:
    documents = entry["documents"]
    read, kept = documents["read"], documents["kept"]
    stages = {
        stage: {reason: documents["dropped"].get(reason, 0) for reason in reasons}
        for stage, reasons in dropped_by_stage(report).items()
    }
    stages = {stage: reasons for stage, reasons in stages.items() if any(reasons.values())}
    unread = read - kept - sum(sum(reasons.values()) for reasons in stages.values()) - documents["quarantined"]
    steps = [_flow_step(stage, reasons, read) for stage, reasons in stages.items()]
    quarantined, reasons = documents["quarantined"], documents["quarantine_reasons"]
    if quarantined:
        text = f"−{quarantined:,} ({share_of(quarantined, read)}) {cut(next(iter(reasons), ''), 34)}"
        steps.append(FlowStep(label="quarantined", left=quarantined, text=text, color="quarantined"))
    if unread > 0:
        text = f"−{unread:,}: the run has not ended"
        steps.append(FlowStep(label="between steps", left=unread, text=text, color="quarantined"))
    worst = max(steps, key=lambda step: step.left, default=None)
    title = f"{name} keeps {share_of(kept, read)} of its {counted(read, 'document')}"
    title += "" if worst is None else f"; most leave at {worst.label} ({share_of(worst.left, read)})"
    rows = [[label, int(count), Share(count / read)] for label, count in document_rows(report, [entry], most)]
    table = Table(headings=["documents", "number", "share of read"], rows=rows)
    return Chart(title=title, table=table, drawing=Flow(read=read, steps=steps))


def _flow_step(stage: str, reasons: Mapping[str, int], read: int) -> FlowStep:
    left = sum(reasons.values())
    rule, count = max(reasons.items(), key=lambda each: each[1])
    most = f", most for {rule.rpartition(':')[2]} ({count:,})" if count < left else f", for {rule.rpartition(':')[2]}"
    return FlowStep(label=stage, left=left, text=f"−{left:,} ({share_of(left, read)}){cut(most, 44)}")


# ------------------------------------------------------------------------------------------------ distributions


def _distributions(report: Mapping[str, Any], most: int) -> Section:
    rules = sorted(measured_rules(report), key=lambda rule: (-rule.facts["dropped"], -rule.facts["failed"]))
    failing = [rule for rule in rules if rule.facts["failed"]]
    others = [rule for rule in rules if not rule.facts["failed"]]
    quiet = rules_nobody_fails(others[: 4 * most])
    more = [left_out(min(most, len(failing)), len(failing), "rule that some documents fail")]
    more.append(left_out(len(quiet.rows), len(others), "rule that none fails"))
    return Section(
        anchor="filters",
        heading="What the filters measured",
        charts=[rule_chart(rule) for rule in failing[:most]],
        tables=[(f"{counted(len(others), 'rule')} that no document fails", quiet)] if others else [],
        note="Areas stand for documents: blue passes the rule, orange fails it, whatever other rules say." if rules else "",
        more=" ".join(filter(None, more)),
    )


def _lengths(report: Mapping[str, Any], most: int) -> Section:
    lengths = report["lengths"]
    order = sorted(lengths, key=lambda source: -report["sources"].get(source, {"bytes": 0})["bytes"])
    shown = order[: max(1, most // 3)]
    charts = [
        length_chart(source, part, lengths[source][part])
        for source in shown
        for part in ("read", "kept")
        if lengths[source][part]
    ]
    more = left_out(len(shown), len(order), "source")
    return Section(anchor="lengths", heading="Lengths of documents", charts=charts, more=more)


def _clusters(report: Mapping[str, Any], most: int) -> Section:
    charts = []
    for stage, entry in report["clusters"].items():
        rows = [
            [f"{low:,} documents" if low == high else f"{low:,} to {high:,} documents", clusters, documents]
            for low, high, clusters, documents in entry["sizes"]
        ]
        if not rows:
            continue
        title = (
            f"{stage}: {counted(entry['dropped'], 'document')} dropped in favour of {entry['clusters']:,}; "
            f"the largest cluster has {rows[-1][0]}"
        )
        sample = f"Clusters counted: a keyed sample of {entry['sampled']:.3%}; the title estimates all."
        table = Table(headings=["size of the cluster", "clusters", "documents"], rows=rows)
        charts.append(Chart(title=title, table=table, drawing=Bars(), note="" if entry["sampled"] == 1 else sample))
    more = left_out(min(most, len(charts)), len(charts), "stage")
    return Section(anchor="duplicates", heading="Duplicates by size of their cluster", charts=charts[:most], more=more)


# ------------------------------------------------------------------------------------------------ tokens


def _languages(report: Mapping[str, Any], most: int) -> Section:
    section = Section(anchor="languages", heading="Languages")
    counts = language_counts(report)
    if not counts.keys() - {""}:
        return section
    order = sorted(counts, key=lambda language: -counts[language]["bytes"])
    rows: list[list[Cell]] = [
        [name or "(none)", counts[name]["documents"], Bytes(counts[name]["bytes"]), counts[name]["tokens"]] for name in order
    ]
    share = share_of(counts[order[0]]["bytes"], sum(each["bytes"] for each in counts.values()))
    title = f"{rows[0][0]} is {share} of the kept text; {counted(len(rows), 'language')} in all"
    table = Table(headings=["language", "documents", "text", "tokens"], rows=rows)
    return _bars(section, title, table, Bars(column=2), most, "language")


def _bars(section: Section, title: str, table: Table, drawing: Bars, most: int, noun: str, note: str = "") -> Section:
    """A section with bars for the first rows of a table."""
    shown = replace(table, rows=table.rows[:most])
    chart = Chart(title=title, table=shown, drawing=drawing, note=note)
    return replace(section, charts=[chart], more=left_out(len(shown.rows), len(table.rows), noun))


def _schedule(report: Mapping[str, Any]) -> Section:
    section = Section(anchor="schedule", heading="What training draws")
    mixture = report["mixture"]
    if not mixture:
        return section
    sources = mixture["sources"]
    order = sorted(sources, key=lambda name: -sources[name]["share"])
    table = mixture_table({"sources": {name: sources[name] for name in order}})
    total = "an endless run" if mixture["tokens"] is None else counted(mixture["tokens"], "token")
    repeated = max(order, key=lambda name: sources[name]["epochs"] or 0.0)
    epochs = sources[repeated]["epochs"]
    title = f"{order[0]} is {sources[order[0]]['share']:.1%} of {total}"
    title += f"; {repeated} is drawn most often, {epochs:,.1f} times" if epochs else ""
    section = _bars(section, title, table, Bars(), 60, "source")
    if not mixture["schedule"]:
        return section
    return replace(section, charts=[*section.charts, _over_the_run(mixture["schedule"], order[:7], len(order))])


def _over_the_run(schedule: Sequence[Mapping[str, Any]], shown: Sequence[str], num_sources: int) -> Chart:
    """Shares of the largest sources over the run, the others together."""
    names = [*shown, *(["others"] if num_sources > len(shown) else [])]
    rows: list[list[float]] = []
    for interval in schedule:
        drawn = interval["tokens"]
        whole = sum(drawn.values()) or 1
        shares = [drawn.get(name, 0) / whole for name in shown]
        others = sum(count for name, count in drawn.items() if name not in shown) / whole
        rows.append([interval["start_tokens"], interval["stop_tokens"], *map(Share, [*shares, others][: len(names)])])
    moves = max(max(column) - min(column) for column in list(zip(*rows))[2:])
    title = "Shares stay the same over the run" if moves < 0.05 else "Shares change over the run"
    legend = [(f"c{number}", name) for number, name in enumerate(names)]
    table = Table(headings=["tokens from", "to", *names], rows=rows)
    return Chart(title=title, table=table, drawing=Stacked(), note="Axis: tokens. From the bottom:", legend=legend)


def _tokenizer(report: Mapping[str, Any], most: int) -> Section:
    section, tokenizer = Section(anchor="tokenizer", heading="Tokenizer"), report["tokenizer"]
    table = fertility_table(tokenizer or {"sources": {}})
    rows = [row for row in table.rows if row[2] is not None]
    if not rows:
        return section
    ratio, worst = min((float(ratio or 0), str(name)) for name, _, ratio, *_ in rows[:most])
    title = f"{tokenizer['vocab_size']:,} ids; a token is shortest in {worst}, {ratio:.2f} bytes"
    unused = tokenizer["unused"]
    note = "" if unused is None else f"{unused['count']:,} of {tokenizer['vocab_size']:,} ids never occur in these texts."
    drawing = Bars(column=2, unit=" bytes per token")
    return _bars(section, title, replace(table, rows=rows), drawing, most, "source or language", note)


def _provenance(report: Mapping[str, Any], most: int) -> Section:
    known = report["provenance"]
    section = Section(anchor="provenance", heading="Licences, synthetic text, cost")
    licenses = known["licenses"]
    if licenses:
        unit = "tokens" if any(each["tokens"] for each in licenses.values()) else "bytes"
        order = sorted(licenses, key=lambda name: -(licenses[name][unit] or 0))
        whole = sum(each[unit] or 0 for each in licenses.values())
        title = f"{order[0]} covers {share_of(licenses[order[0]][unit] or 0, whole)} of the kept {unit}"
        table = kept_table("licence", {name: licenses[name] for name in order})
        section = _bars(section, title, table, Bars(column=3 if unit == "tokens" else 2), most, "licence")
    tables: list[tuple[str, Table]] = []
    if known["synthetic"]:
        tables.append(("Natural and synthetic text", kept_table("text", known["synthetic"])))
    amounts = [[name.replace("_", " "), value] for name, value in known["cost"].items() if isinstance(value, int | float)]
    if amounts:
        tables.append(("Cost", Table(headings=["", "amount"], rows=amounts)))
    return replace(section, tables=tables)


def _speed(report: Mapping[str, Any], most: int) -> Section:
    section, table = Section(anchor="speed", heading="Time and memory"), work_table(report)
    if table.rows:
        rows = sorted(table.rows, key=lambda row: -report["total"]["steps"][row[0]]["seconds"])
        total = sum(step["seconds"] for step in report["total"]["steps"].values())
        title = f"{rows[0][0]} takes {cell(rows[0][2])} of {total:,.1f} seconds of work"
        section = _bars(section, title, replace(table, rows=rows), Bars(unit=" s"), most, "step")
    charts = [*section.charts, *_memory(report, most)]
    notes = ("Seconds are summed over workers.", starting_text(report), second_attempts_text(report))
    return replace(section, charts=charts, note=" ".join(filter(None, notes)) if charts else "")


def _memory(report: Mapping[str, Any], most: int) -> list[Chart]:
    tasks = {name: entry for name, entry in report["tasks"].items() if entry["peak_bytes"]}
    if not tasks:
        return []
    order = sorted(tasks, key=lambda name: -tasks[name]["peak_bytes"])[:most]
    title = f"No worker took more than {size(tasks[order[0]]['peak_bytes'])}, in {order[0]}"
    rows = [[name, Bytes(tasks[name]["peak_bytes"]), tasks[name]["seconds"], tasks[name]["committed"]] for name in order]
    table = Table(headings=["step", "peak memory of a worker", "seconds", "tasks"], rows=rows)
    note = "Peaks of a worker since it started, at the end of a task."
    return [Chart(title=title, table=table, drawing=Bars(), note=note)]
