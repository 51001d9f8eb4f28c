"""`datapipe sql`: a query over what is known of every document of an output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer
from pydantic_core import to_json

from datapipe.cli.options import OutputFolder

Memory = Annotated[str, typer.Option(metavar="SIZE", help="Memory of a query; what needs more spills to disk.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of a query.")]
Spill = Annotated[str, typer.Option(metavar="FOLDER", help="Where queries spill; the machine's temporary folder by default.")]


def sql(
    output: OutputFolder,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT of DuckDB's SQL.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows of the printed table.")] = 100,
    memory: Memory = "1GiB",
    threads: Threads = 2,
    spill: Spill = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print every row as a line of JSON.")] = False,
) -> None:
    """Query what is known of every document, in SQL.

    \b
    datapipe sql OUTPUT "select fate, stage, rule, count(*) from documents group by all"
    datapipe sql OUTPUT "select name, value from documents where rule = 'too_few_words' order by value limit 5"
    datapipe sql OUTPUT "describe documents"

    A document has a source, a fate, a rule, a measured value, columns, a shard. The views are documents, clusters, borderlines,
    findings and packed; mixtures/README.md lists their columns. A query reads the tables of this output alone: no other file,
    no network, and it writes nothing.
    """
    from datapipe.explore.database import Limits
    from datapipe.explore.documents import Inspector

    names, found = Inspector.open(output, Limits(memory=memory, threads=threads, spill=spill)).database.ask(query)
    if as_json:
        for row in found:
            line = dict(zip(names, row))
            print(to_json(line, ensure_ascii=True, bytes_mode="hex", inf_nan_mode="null", fallback=str).decode())
    else:
        _print_table(names, found, rows)


def _print_table(names: list[str], found: Iterator[tuple[Any, ...]], most: int) -> None:
    from rich import box
    from rich.table import Table

    from datapipe.report.funnel import wide_console
    from datapipe.report.layout import harmless_text, print_text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(harmless_text(name), overflow="fold")
    for row in islice(found, most):
        plain = ("·" if value is None else value.hex() if isinstance(value, bytes) else str(value) for value in row)
        table.add_row(*map(harmless_text, plain))
    console = wide_console()
    console.print(table)
    if next(found, None) is not None:
        print_text(f"The first {most:,} rows; --rows N shows more, --json all.", console)
