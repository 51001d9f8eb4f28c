"""The report as one HTML file: a pure function of the report. Same report, same bytes.

    Report  ─▶  `sections`, with as many rows and figures as fit  ─▶  templates/report.html  ─▶  at most 1 MB

The file has no script and no links to other files. Where a run has so many sources and rules that
the file would be larger, the sections show fewer of them and how many are only in report.json.
"""

from collections.abc import Sequence
from typing import Any

from datapipe.dataclass import replace
from datapipe.machine.terminal import HARMFUL
from datapipe.quantities import counted, size
from datapipe.records.names import REPORT_PAGE
from datapipe.report.cells import Section, Table, cell, rendered
from datapipe.report.drawing import HEAT_COLORS, WIDTH, Bars, coordinate, cut, short
from datapipe.report.report import Report
from datapipe.storage.root import Root

MOST_BYTES = 1_000_000
_MOST_SHOWN = (24, 12, 6, 3, 1)
"""Figures of a section, and rows of a chart: the first number that fits."""

_ROWS_OF_TABLES = 4  # Times as many rows as of a chart has a table that is not drawn
_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c7a00", "#7f7f7f")
"""Okabe and Ito's colours, which colour-blind people can distinguish (jfly.uni-koeln.de/color)."""

_COLORS = {"palette": _PALETTE, "num_heat": HEAT_COLORS}
_LABEL_WIDTH = 230
_CHAR_WIDTH = 7.6


def report_html(report: Report) -> bytes:
    content, found = b"", report.sections()
    for most in _MOST_SHOWN:
        content = _rendered(report, [_limited(section, most) for section in found])
        if len(content) <= MOST_BYTES:
            break
    return content


def write_page(root: Root, report: Report) -> None:
    root.write_atomic(REPORT_PAGE, report_html(report))


def _limited(section: Section, most: int) -> Section:
    """A section with at most so many figures and drawn tables, and without tables of more columns."""
    figures = section.figures[:most]
    tables = [_limited_rows(table, most) for table in section.tables if len(table.headings) <= max(most, 12)]
    tables[most:] = [replace(table, drawing=None) for table in tables[most:]]
    notes, more = list(section.notes), len(section.figures) - len(figures)
    if more:
        notes.append(f"{counted(more, f'more {section.noun}')} in report.json.")
    return replace(section, tables=tables, figures=figures, notes=notes)


def _limited_rows(table: Table, most: int) -> Table:
    rows = table.rows[: most if table.drawing else _ROWS_OF_TABLES * most]
    more = len(table.rows) - len(rows)
    note = f"{table.note} {counted(more, 'more row')} in report.json.".strip() if more else table.note
    return replace(table, rows=rows, note=note)


def _rendered(report: Report, shown: Sequence[Section]) -> bytes:
    names = {"report": report, "sections": shown, **_COLORS}
    return rendered("report/html/templates/report.html", names | _functions(), visible, is_html=True).encode()


def chart_svg(chart: Table) -> str:
    """The drawing of a table as a separate file, which follows the colours of the screen."""
    names = {"chart": chart, "style": chart_css()} | _functions()
    text = rendered("report/html/templates/chart.svg", names, visible, is_html=True)
    return "".join(line for line in text.splitlines(keepends=True) if line.strip())


def chart_css() -> str:
    """The styles of charts outside of a page."""
    return rendered("report/html/templates/chart.css", _COLORS, visible)


def _functions() -> dict[str, Any]:
    return {
        "cell": cell,
        "cut": cut,
        "n": coordinate,
        "short": short,
        "size": size,
        "visible": visible,
        "bar_unit": bar_unit,
    }


def bar_unit(table: Table) -> float:
    """The length of 1 in a chart of bars. The longest bar leaves room for its label and for the longest number."""
    assert isinstance(table.drawing, Bars)
    values = [row[table.drawing.column] for row in table.rows]
    room = WIDTH - _LABEL_WIDTH - max(len(cell(value) + table.drawing.unit) for value in values) * _CHAR_WIDTH - 14
    return room / (max(value for value in values if isinstance(value, int | float)) or 1.0)


def visible(value: Any) -> Any:
    """A value; in a text, control characters are shown as their code points."""
    return HARMFUL.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", value) if type(value) is str else value
