"""The sections of the report, in the order in which people ask: what was built, what was lost where, and what it cost.

report.json  ─▶  sections, each with charts and tables     Every title says what to read from its chart
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datapipe.metrics import counted, size
from datapipe.report.funnel import dropped_by_stage
from datapipe.report.html.distributions import length_chart, measured_rules, rule_chart, rules_nobody_fails
from datapipe.report.html.drawing import (
    Bar,
    Chart,
    FlowStep,
    Section,
    Table,
    bars,
    cut,
    flow,
    left_out,
    share_of,
    short,
    stacked,
)
from datapipe.report.summary import second_attempts_text, starting_text

_COLORS = tuple(f"c{number}" for number in range(8))
_OTHER = "c7"


def sections(report: Mapping[str, Any], most: int) -> list[Section]:
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
        provenance(report, most),
        speed(report, most),
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
    rows: list[list[str | float | None]] = [["read", read, 1.0]]
    for stage, by_rule in stages.items():
        rows.append([stage, sum(by_rule.values()), sum(by_rule.values()) / read])
        told = sorted(((count, reason) for reason, count in by_rule.items() if count), reverse=True)
        rows += [[f"· {reason.rpartition(':')[2]}", count, count / read] for count, reason in told[:most]]
    if quarantined:
        rows.append(["quarantined", quarantined, quarantined / read])
        rows += [[f"· {reason}", count, count / read] for reason, count in list(reasons.items())[:most]]
    if unread > 0:
        rows.append(["between steps", unread, unread / read])
    rows.append(["kept", kept, kept / read])
    table = Table(headings=["documents", "number", "share of read"], rows=rows)
    return Chart(title=title, table=table, svg=flow(title, read, steps, kept))


def _flow_step(stage: str, reasons: Mapping[str, int], read: int) -> FlowStep:
    left = sum(reasons.values())
    rule, count = max(reasons.items(), key=lambda each: each[1])
    most = f", most for {rule.rpartition(':')[2]} ({count:,})" if count < left else f", for {rule.rpartition(':')[2]}"
    return FlowStep(label=stage, left=left, text=f"−{left:,} ({share_of(left, read)}){cut(most, 44)}")


# ------------------------------------------------------------------------------------------------ distributions


def _distributions(report: Mapping[str, Any], most: int) -> Section:
    rules = measured_rules(report)
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
        rows = entry["sizes"]
        if not rows:
            continue
        labels = [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high, _, _ in rows]
        largest = labels[-1]
        title = (
            f"{stage}: {counted(entry['dropped'], 'document')} dropped in favour of {entry['clusters']:,}; "
            f"the largest cluster has {largest} documents"
        )
        table = Table(
            headings=["size of the cluster", "clusters", "documents"],
            rows=[[label, clusters, documents] for label, (_, _, clusters, documents) in zip(labels, rows)],
        )
        drawn = [
            Bar(label=f"{label} documents", parts=[(clusters, "c0")], text=f"{clusters:,}")
            for label, (_, _, clusters, _) in zip(labels, rows)
        ]
        note = (
            ""
            if entry["sampled"] == 1
            else f"Clusters counted: a keyed sample of {entry['sampled']:.3%}; the title estimates all."
        )
        charts.append(Chart(title=title, table=table, svg=bars(title, drawn), note=note))
    more = left_out(min(most, len(charts)), len(charts), "stage")
    return Section(anchor="duplicates", heading="Duplicates by size of their cluster", charts=charts[:most], more=more)


# ------------------------------------------------------------------------------------------------ tokens


def _languages(report: Mapping[str, Any], most: int) -> Section:
    total: dict[str, list[int]] = {}
    for entry in ((report["tokenizer"] or {}).get("sources") or {}).values():
        for language, counts in (entry["languages"] or {}).items():
            sums = total.setdefault(language or "(none)", [0, 0, 0])
            for place, name in enumerate(("documents", "bytes", "tokens")):
                sums[place] += counts[name]
    if not total or set(total) == {"(none)"}:
        return Section(anchor="languages", heading="Languages")
    order = sorted(total, key=lambda language: -total[language][1])
    text = sum(numbers[1] for numbers in total.values())
    title = f"{order[0]} is {share_of(total[order[0]][1], text)} of the kept text; {counted(len(order), 'language')} in all"
    drawn = [Bar(label=name, parts=[(total[name][1], "c0")], text=size(total[name][1])) for name in order[:most]]
    table = Table(headings=["language", "documents", "bytes", "tokens"], rows=[[name, *total[name]] for name in order[:most]])
    chart = Chart(title=title, table=table, svg=bars(title, drawn))
    more = left_out(len(drawn), len(order), "language")
    return Section(anchor="languages", heading="Languages", charts=[chart], more=more)


def _schedule(report: Mapping[str, Any]) -> Section:
    mixture = report["mixture"]
    if not mixture:
        return Section(anchor="schedule", heading="What training draws")
    order = sorted(mixture["sources"], key=lambda name: -mixture["sources"][name]["share"])
    shown = order[:7]
    rows = [
        [name, entry["share"], entry["tokens"], entry["epochs"], entry["epoch_tokens"]]
        for name, entry in ((name, mixture["sources"][name]) for name in order[:60])
    ]
    headings = ["source", "share", "tokens", "epochs", "tokens an epoch"]
    table = Table(headings=headings, rows=rows)
    schedule = mixture.get("schedule") or []
    total = "an endless run" if mixture["tokens"] is None else counted(mixture["tokens"], "token")
    first = mixture["sources"][order[0]]
    title = f"{order[0]} is {first['share']:.1%} of {total}"
    repeated = max(order, key=lambda name: mixture["sources"][name]["epochs"] or 0.0)
    epochs = mixture["sources"][repeated]["epochs"]
    title += f"; {repeated} is drawn most often, {epochs:,.1f} times" if epochs else ""
    drawn = [
        Bar(label=name, parts=[(mixture["sources"][name]["share"], "c0")], text=share_of(mixture["sources"][name]["share"], 1))
        for name in order[:60]
    ]
    charts = [Chart(title=title, table=table, svg=bars(title, drawn))]
    if schedule:
        charts.append(_over_the_run(schedule, shown, len(order)))
    return Section(
        anchor="schedule", heading="What training draws", charts=charts, more=left_out(len(rows), len(order), "source")
    )


def _over_the_run(schedule: Sequence[Mapping[str, Any]], shown: Sequence[str], num_sources: int) -> Chart:
    """Shares of the largest sources over the run, the others together."""
    rows: list[list[float]] = []
    for interval in schedule:
        drawn = interval["tokens"]
        whole = sum(drawn.values()) or 1
        named = [drawn.get(name, 0) / whole for name in shown]
        others = [sum(count for name, count in drawn.items() if name not in shown) / whole] if num_sources > len(shown) else []
        rows.append([*named, *others])
    names = [*shown, *(["others"] if num_sources > len(shown) else [])]
    colors = [*_COLORS[: len(shown)], _OTHER][: len(names)]
    borders = [schedule[0]["start_tokens"], *(interval["stop_tokens"] for interval in schedule)]
    moves = max(max(column) - min(column) for column in zip(*rows))
    title = "Shares stay the same over the run" if moves < 0.05 else "Shares change over the run"
    headings = ["tokens from", "to", *names]
    table = Table(
        headings=headings,
        rows=[[interval["start_tokens"], interval["stop_tokens"], *row] for interval, row in zip(schedule, rows)],
    )
    note = "From the bottom: " + ", ".join(f"[{color}]{name}" for name, color in zip(names, colors)) + ". Axis: tokens."
    return Chart(title=title, table=table, svg=stacked(title, borders, rows, colors), note=note)


def _tokenizer(report: Mapping[str, Any], most: int) -> Section:
    tokenizer = report["tokenizer"]
    if not tokenizer:
        return Section(anchor="tokenizer", heading="Tokenizer")
    entries: list[tuple[str, Mapping[str, Any]]] = []
    for name, entry in tokenizer["sources"].items():
        entries.append((name, entry))
        languages = entry["languages"] or {}
        if len(languages) > 1:
            order = sorted(languages, key=lambda language: -languages[language]["bytes"])
            entries += [(f"{name} · {language or '(none)'}", languages[language]) for language in order[:8]]
    entries = [each for each in entries if each[1]["bytes_per_token"] is not None]
    if not entries:
        return Section(anchor="tokenizer", heading="Tokenizer")
    shown = entries[:most]
    worst = min(shown, key=lambda each: each[1]["bytes_per_token"])
    title = f"{tokenizer['vocab_size']:,} ids; a token is shortest in {worst[0]}, {worst[1]['bytes_per_token']:.2f} bytes"
    drawn = [
        Bar(label=name, parts=[(entry["bytes_per_token"], "c0")], text=f"{entry['bytes_per_token']:.2f} bytes per token")
        for name, entry in shown
    ]
    rows = [
        [name, entry["bytes_per_token"], entry["tokens_per_word"], entry["tokens"], entry["bytes"]] for name, entry in shown
    ]
    table = Table(headings=["source", "bytes per token", "tokens per word", "tokens", "bytes"], rows=rows)
    unused = tokenizer["unused"]
    note = "" if unused is None else f"{unused['count']:,} of {tokenizer['vocab_size']:,} ids never occur in these texts."
    chart = Chart(title=title, table=table, svg=bars(title, drawn), note=note)
    return Section(
        anchor="tokenizer", heading="Tokenizer", charts=[chart], more=left_out(len(shown), len(entries), "source or language")
    )


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
