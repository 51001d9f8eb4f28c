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
    page = template.render(report=report, sections=sections(report, most), palette=PALETTE)
    return page.encode("utf-8", "backslashreplace")
