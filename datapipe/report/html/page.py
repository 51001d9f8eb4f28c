"""The report as one HTML file: a pure function of report.json. Same report, same bytes.

    report.json  ─▶  sections  ─▶  templates/report.html  ─▶  at most 1 MB

The file has no script and asks nothing of a network. Where a run has so many sources and rules that it would be larger, the
sections show fewer of them and say how many stand only in report.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datapipe.ledger.names import REPORT_PAGE
from datapipe.metrics import size
from datapipe.report.html.drawing import PALETTE, coordinate, cut, short, visible
from datapipe.report.html.sections import sections
from datapipe.report.tables import cell
from datapipe.storage import Root

MOST_BYTES = 1_000_000
_MOST_SHOWN = (24, 12, 6, 3, 1)
"""Charts of a section and rows of a chart: the first number that fits."""

_SHOWN_WARNINGS = 20


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
    environment.filters |= {"cell": cell, "cut": cut, "n": coordinate, "short": short, "visible": visible}
    page = environment.get_template("report.html").render(
        report=report,
        tiles=tiles(report),
        warnings=report["warnings"][:_SHOWN_WARNINGS],
        num_warnings=len(report["warnings"]),
        sections=sections(report, most),
        palette=PALETTE,
    )
    return page.encode("utf-8", "backslashreplace")


def tiles(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What was built: (label, number, more) each."""
    documents, total, run, shards = report["total"]["documents"], report["total"], report["run"], report["shards"]
    read, kept = documents["read"], documents["kept"]
    share = f"of {read:,} read, {kept / read:.1%}" if read else "nothing was read"
    found = [("documents kept", f"{kept:,}", share)]
    if total["tokens"]:
        found.append(("tokens", short(total["tokens"]), f"{total['tokens']:,}"))
    if taken := sum(entry["tokens"] for entry in report["taken"].values()):
        found.append(("tokens of other snapshots", short(taken), f"{taken:,}"))
    if shards and (taken_down := shards["taken_down"]):
        found.append(("documents taken down", f"{taken_down:,}", "padding where rows have them"))
    found.append(("text kept", size(total["kept_bytes"]), f"of {size(total['bytes'])}"))
    if shards:
        found.append(("files", f"{shards['files']:,}", f"{size(shards['bytes'])}, snapshot {shards['fingerprint'][:12]}"))
    if run:
        workers = "" if run["workers"] is None else f", {run['workers']} workers"
        finished = run["finished"][:16].replace("T", " ")
        found.append(("this command", f"{run['wall_s']:,.1f} s", f"{run['engine']}{workers}, {finished} UTC"))
    return [*found, ("work in all", f"{total['task_seconds']:,.1f} s", "seconds of tasks, of resumed runs too")]
