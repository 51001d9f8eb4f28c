"""What a report shows: sections of tables of typed cells. `sections.py` computes them; each renderer writes them in its form.

Section ─▶ Table: rows of texts and numbers ─▶ columns of a terminal · <table> and chart of a page · Markdown
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datapipe.dataclass import dataclass
from datapipe.quantities import size
from datapipe.report.drawing import Drawing, short


class Bytes(int):
    """A number of bytes, shown with a unit."""


class Amount(int):
    """A number of tokens, shown in few characters."""


class Dropped(int):
    """A number of documents, shown as a loss."""


class Share(float):
    """A part of a whole, shown in per cent."""


Cell = str | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of texts and numbers."""

    title: str = ""  # what to read from the table
    headings: Sequence[str]
    # the first cell of a row is its name; None stands for a number that does not exist
    rows: Sequence[Sequence[Cell]]
    drawing: Drawing | None = None  # how a page draws the rows
    note: str = ""
    # strong, weak: names of rows that stand out, and that stand back
    strong: Sequence[str] = ()
    weak: Sequence[str] = ()
    by_source: bool = False  # whether each column but the first is a source, the last one all of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of a report: tables, with notes below them, and figures about a `noun` each, which a page alone draws."""

    anchor: str
    title: str
    tables: Sequence[Table] = ()
    figures: Sequence[Table] = ()
    notes: Sequence[str] = ()
    noun: str = ""


def cell(value: Cell) -> str:
    """A cell as text. Floats have four significant digits, and all before the point."""
    if value is None:
        return "·"
    if isinstance(value, str):
        return value
    if isinstance(value, Bytes):
        return size(value)
    if isinstance(value, Amount):
        return short(value, "B")
    if isinstance(value, Dropped):
        return f"−{value:,}" if value else "·"
    if isinstance(value, Share):
        return f"{value:.2%}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.4g}"


def share(part: float, whole: float) -> Share | None:
    return Share(part / whole) if whole else None


def short_share(part: float, whole: float) -> str:
    """Whole per cents, with a decimal below ten; 100% is all, and 0% nothing."""
    share = part / whole if whole else 0.0
    if share >= 0.995 and part < whole:
        return ">99%"
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.1%}" if 0 < share < 0.0995 else f"{share:.0%}"


def share_of(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0%"


def rendered(path: str, names: Mapping[str, Any], finalize: Callable[[Any], Any] | None = None, is_html: bool = False) -> str:
    """A template below `datapipe/` with these names. Functions among them are filters, too."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from datapipe.report.template_cache import TemplateCache

    folder, _, template = path.rpartition("/")
    environment = Environment(
        loader=PackageLoader("datapipe", folder),
        autoescape=is_html,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=TemplateCache(),
    )
    functions = {name: value for name, value in names.items() if callable(value)}
    environment.filters |= functions
    environment.globals |= functions  # for templates that are imported
    return environment.get_template(template).render(names)
