"""The last sections of the report: origin and cost of the text, time and memory, and the snapshot before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from datapipe.metrics import counted, size
from datapipe.report.html.drawing import Bar, Chart, Table, bars, short
from datapipe.report.html.section import Section, left_out, share_of
from datapipe.report.summary import second_attempts_text, starting_text


def provenance(report: Mapping[str, Any], most: int) -> Section:
    known, heading = report["provenance"], "Licences, synthetic text, cost"
    tables: list[tuple[str, Table]] = []
    charts: list[Chart] = []
    licenses = known.get("licenses") or {}
    if licenses:
        order = sorted(licenses, key=lambda name: -(licenses[name].get("tokens") or licenses[name]["bytes"] or 0))
        unit = "tokens" if any(licenses[name].get("tokens") for name in order) else "bytes"
        whole = sum(licenses[name].get(unit) or 0 for name in order)
        title = f"{order[0]} covers {share_of(licenses[order[0]].get(unit) or 0, whole)} of the kept {unit}"
        drawn = [
            Bar(label=name, parts=[(licenses[name].get(unit) or 0, "c0")], text=short(licenses[name].get(unit) or 0))
            for name in order[:most]
        ]
        columns = ("documents", "bytes", "tokens", "drawn_tokens")
        rows = [[name, *(licenses[name].get(column) for column in columns)] for name in order[:most]]
        headings = ["licence", "documents", "bytes", "tokens", "tokens drawn"]
        charts.append(Chart(title=title, table=Table(headings=headings, rows=rows), svg=bars(title, drawn)))
    kinds = known.get("synthetic") or {}
    if kinds:
        rows = [
            [name, *(entry.get(column) for column in ("documents", "tokens", "drawn_tokens"))] for name, entry in kinds.items()
        ]
        tables.append(
            ("Natural and synthetic text", Table(headings=["text", "documents", "tokens", "tokens drawn"], rows=rows))
        )
    cost = known.get("cost") or {}
    told = [[name.replace("_", " "), value] for name, value in cost.items() if isinstance(value, int | float)]
    if told:
        tables.append(("Cost", Table(headings=["", "amount"], rows=told)))
    return Section(anchor="provenance", heading=heading, charts=charts, tables=tables)


def speed(report: Mapping[str, Any], most: int) -> Section:
    steps: Mapping[str, Any] = report["total"]["steps"]
    total = sum(step["seconds"] for step in steps.values()) or 1.0
    order = sorted(steps, key=lambda name: -steps[name]["seconds"])
    charts = []
    if order:
        slowest = report["slowest_step"]
        title = f"{order[0]} takes {share_of(steps[order[0]]['seconds'], total)} of {total:,.1f} seconds of work"
        drawn = [
            Bar(
                label=name,
                parts=[(steps[name]["seconds"], "c5" if name == slowest else "c0")],
                text=f"{steps[name]['seconds']:,.2f} s" + (", slowest" if name == slowest else ""),
                is_marked=name == slowest,
            )
            for name in order[:most]
        ]
        rows = [
            [name, steps[name]["seconds"], steps[name]["mb_per_s"], steps[name]["bytes"], steps[name]["documents"]]
            for name in order[:most]
        ]
        table = Table(headings=["work", "seconds", "MB/s", "bytes", "documents"], rows=rows)
        charts.append(Chart(title=title, table=table, svg=bars(title, drawn)))
    charts += _memory(report, most)
    more = left_out(min(most, len(order)), len(order), "kind of work", "kinds of work")
    notes = ("Seconds are summed over workers.", starting_text(report), second_attempts_text(report))
    return Section(
        anchor="speed",
        heading="Time and memory",
        charts=charts,
        note=" ".join(filter(None, notes)) if charts else "",
        more=more,
    )


def _memory(report: Mapping[str, Any], most: int) -> Iterator[Chart]:
    tasks = {name: entry for name, entry in report["tasks"].items() if entry.get("peak_bytes")}
    if not tasks:
        return
    order = sorted(tasks, key=lambda name: -tasks[name]["peak_bytes"])[:most]
    title = f"No worker took more than {size(tasks[order[0]]['peak_bytes'])}, in {order[0]}"
    drawn = [Bar(label=name, parts=[(tasks[name]["peak_bytes"], "c0")], text=size(tasks[name]["peak_bytes"])) for name in order]
    rows = [[name, tasks[name]["peak_bytes"], tasks[name]["seconds"], tasks[name]["committed"]] for name in order]
    table = Table(headings=["step", "peak bytes of a worker", "seconds", "tasks"], rows=rows)
    yield Chart(
        title=title, table=table, svg=bars(title, drawn), note="Peaks of a worker since it started, at the end of a task."
    )


# ------------------------------------------------------------------------------------------------ the snapshot before


def before_section(report: Mapping[str, Any], before: Mapping[str, Any] | None, most: int) -> Section:
    heading = "What changed since the snapshot before"
    if before is None:
        return Section(anchor="before", heading=heading)
    names = list(dict.fromkeys([*before["sources"], *report["sources"]]))
    rows: list[list[str | float | None]] = []
    for name in names:
        old, new = (each["sources"].get(name) for each in (before, report))
        for label in ("read", "kept", "tokens"):
            rows.append([f"{name}: {label}", *_two(_number(old, label), _number(new, label))])
    dropped = [each["total"]["documents"]["dropped"] for each in (before, report)]
    reasons = sorted(dict.fromkeys([*dropped[0], *dropped[1]]), key=lambda r: -abs(dropped[1].get(r, 0) - dropped[0].get(r, 0)))
    changed = [[reason, *_two(dropped[0].get(reason, 0), dropped[1].get(reason, 0))] for reason in reasons]
    changed = [row for row in changed if row[3]][:most]
    headings = ["", "before", "now", "change"]
    tables = [("Documents and tokens", Table(headings=headings, rows=rows[: 3 * most]))]
    tables += [("Dropped documents, largest change first", Table(headings=headings, rows=changed))] if changed else []
    old, new = (each["total"]["documents"]["kept"] for each in (before, report))
    note = f"{counted(new, 'document')} kept now, {old:,} before."
    return Section(
        anchor="before", heading=heading, tables=tables, note=note, more=left_out(len(rows[: 3 * most]), len(rows), "row")
    )


def _number(entry: Mapping[str, Any] | None, label: str) -> int | None:
    if entry is None:
        return None
    return entry["tokens"] if label == "tokens" else entry["documents"][label]


def _two(old: int | None, new: int | None) -> list[float | None]:
    return [old, new, None if old is None or new is None else new - old]
