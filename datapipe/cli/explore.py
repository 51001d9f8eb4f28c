"""`datapipe inspect`, `sql` and `browse`: explore the documents of an output."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer
from pydantic_core import to_json

from datapipe.cli.options import Json, OutputFolder, end_by_signals, in_background, print_json
from datapipe.dataclass import asdict
from datapipe.errors import UserError

_CHOICES = (
    "--kept, --dropped REASON, --quarantined, --document NAME, --clusters STAGE, --sweep STAGE.THRESHOLD, --contamination"
)


def inspect(
    output: OutputFolder,
    kept: Annotated[bool, typer.Option("--kept", help="Show documents that were kept (the default).")] = False,
    dropped: Annotated[
        str | None, typer.Option(metavar="REASON", help="Show documents that a STAGE or STAGE:RULE dropped; 'all' for any.")
    ] = None,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Show documents that could not be read or processed.")
    ] = False,
    named: Annotated[
        str | None,
        typer.Option(
            "--document",
            metavar="SOURCE/PATH:POSITION",
            help="Show one document, by its name, its key or the id that its input has.",
        ),
    ] = None,
    clusters: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE",
            help="Show clusters of duplicates: the documents that a stage such as dedup.minhash dropped, beside the surviving "
            "one, with the differences marked; 'all' for any stage.",
        ),
    ] = None,
    source: Annotated[
        str, typer.Option(help="Show only documents of this source, and clusters that dropped documents of it.")
    ] = "",
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Number of documents or clusters.")] = 5,
    full: Annotated[bool, typer.Option("--full", help="Print whole texts.")] = False,
    members: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="With --clusters: number of dropped documents to show for each cluster. Default: 3."
        ),
    ] = None,
    least_alike: Annotated[
        bool, typer.Option("--least-alike", help="With --clusters: lowest measured similarity first.")
    ] = False,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE.THRESHOLD", help="Count the documents that other thresholds of a filter with `mode: tag` would keep."
        ),
    ] = None,
    thresholds: Annotated[
        str | None, typer.Option("--at", metavar="0.1,0.2,…", help="With --sweep: the thresholds. Default: quantiles.")
    ] = None,
    contaminated: Annotated[
        bool, typer.Option("--contamination", help="Show which items of evaluation sets the run found, and in which documents.")
    ] = False,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="With --contamination: search the kept documents for these evaluation files."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="With --tokens: the batch of --count rows at this step.")
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Show a batch as text: documents, control tokens, and what no loss counts."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show documents: kept, dropped, duplicates; or a batch.

    A dropped document is shown with the measured value. Differences between duplicates are marked. The documents are a
    sample that is the same each time, and a larger --count contains the smaller one. To check a dedup stage, read the
    differences in the duplicates with the lowest similarity, then in a sample:

    \b
    datapipe inspect OUTPUT --clusters all --least-alike
    datapipe inspect OUTPUT --clusters dedup.minhash -n 20

    'measured' is the similarity that the stage computed; 'in common' is counted here from the two texts. A dropped document
    may have little in common with the surviving one, if a third document of the cluster is similar to both. If pages with
    different content share a template, raise min_similarity, or remove the template first (dedup.lines). To choose the
    threshold of a filter, run it with `mode: tag` and count:

    \b
    datapipe inspect OUTPUT --at 20,50,80 \\
      --sweep filter.gopher_quality.min_words

    --contamination lists for each evaluation set how many items are contaminated, clean and undetectable. With
    --against FILE.jsonl it searches the kept documents of any run, as decontaminate.ngram would.

    --step 0 --tokens shows a batch as text. Tokens that no loss counts are in «guillemets».

    The document of --json has `documents`, `clusters`, `sweep`, `contamination` or `rows`, with whole texts.
    """
    from datapipe.explore.clusters import find_clusters
    from datapipe.explore.contamination import contamination
    from datapipe.explore.document.replay import with_decided_columns
    from datapipe.explore.documents import Inspector
    from datapipe.explore.printed import print_clusters, print_contamination, print_documents, print_sweep
    from datapipe.explore.sweep import sweep as count_sweep
    from datapipe.report.layout import wide_console

    num_chosen = sum([kept, quarantined, contaminated, *(option is not None for option in (dropped, named, clusters, sweep))])
    if num_chosen > 1:
        raise UserError(f"expected one of {_CHOICES}")
    if thresholds is not None and sweep is None:
        raise UserError("--at goes with --sweep STAGE.THRESHOLD")
    if (members is not None or least_alike) and clusters is None:
        raise UserError(f"{'--least-alike' if least_alike else '--members'} goes with --clusters STAGE")
    if against and not contaminated:
        raise UserError("--against goes with --contamination")
    if tokens or step is not None:
        others = {f"one of {_CHOICES}": num_chosen, "--source": source, "--full": full}
        if (other := next((name for name, value in others.items() if value), None)) is not None:
            raise UserError(f"--tokens shows the rows of a step, of all sources: found {other} beside it. Leave it out")
        _print_tokens(output, step, count, tokens, as_json)
        return
    values = _numbers(thresholds)
    inspector = Inspector.open(output)
    if contaminated:
        overlap = contamination(inspector, source, count, against or ())
        print_json({"contamination": overlap.model_dump(mode="json")}) if as_json else print_contamination(
            overlap, wide_console(), full
        )
    elif sweep is not None:
        swept = count_sweep(inspector, sweep, source=source, thresholds=values)
        print_json({"sweep": swept}) if as_json else print_sweep(swept, wide_console())
    elif clusters is not None:
        alike = find_clusters(inspector, clusters, source, count, members or 3, least_alike)
        print_json({"clusters": list(alike)}) if as_json else print_clusters(alike, wide_console(), full)
    else:
        outcome = "dropped" if dropped is not None else "quarantined" if quarantined else "kept"
        reason = "" if dropped in (None, "all") else dropped
        documents = inspector.find(outcome, source, reason, count) if named is None else [inspector.find_document(named)]
        listed = with_decided_columns(inspector, documents)
        if as_json:
            print_json({"documents": listed})
        else:
            print_documents(listed, wide_console(), full, f"no {outcome} documents")


def _print_tokens(output: str, step: int | None, num_rows: int, is_asked: bool, as_json: bool) -> None:
    from datapipe.explore.batch_tokens import rows_of_step
    from datapipe.explore.printed import print_rows
    from datapipe.report.layout import wide_console

    if step is None or not is_asked:
        raise UserError("--step and --tokens go together: --step 0 --tokens. `datapipe trace` lists the documents of a step")
    rows = rows_of_step(output, step, num_rows)
    print_json({"step": step, "rows": [asdict(row) for row in rows]}) if as_json else print_rows(rows, wide_console())


def _numbers(listed: str | None) -> list[float]:
    try:
        numbers = [float(value) for value in listed.split(",")] if listed is not None else []
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"--at {listed}: expected numbers separated by commas, such as 0.1,0.2,0.5")
    return numbers


Memory = Annotated[str, typer.Option(metavar="SIZE", help="Memory of a query. A query that needs more spills to disk.")]
Threads = Annotated[int, typer.Option(min=1, max=1024, help="Threads of a query.")]
Spill = Annotated[
    str, typer.Option(metavar="FOLDER", help="Folder that queries spill to. Default: the temporary folder of the machine.")
]


def sql(
    output: OutputFolder,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One SELECT of DuckDB's SQL. Default: list the views and columns.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=1_000_000, help="Rows of the printed table.")] = 100,
    memory: Memory = "1GiB",
    threads: Threads = 2,
    spill: Spill = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print every row as a line of JSON.")] = False,
) -> None:
    """Query documents in SQL: their fates, rules, values and shards.

    \b
    datapipe sql OUTPUT "select fate, stage, rule, count(*) from documents group by all"
    datapipe sql OUTPUT "select name, value from documents where rule = 'too_few_words' order by value limit 5"
    datapipe sql OUTPUT "describe documents"

    The views are documents, clusters, borderlines, findings and packed. Without QUERY the command lists their columns. A
    query reads only the tables of this output, no other file and no network, and writes nothing.
    """
    from datapipe.explore.columns import VIEWS
    from datapipe.explore.database import Limits
    from datapipe.explore.documents import Inspector

    database = Inspector.open(output, Limits(memory=memory, threads=threads, spill=spill)).database

    def answer() -> None:
        names, answers = (["view", "columns", "meaning"], iter(VIEWS)) if query is None else database.ask(query)
        if as_json:
            for row in answers:
                line = dict(zip(names, row))
                print(to_json(line, ensure_ascii=True, bytes_mode="hex", inf_nan_mode="null", fallback=str).decode())
        else:
            _print_table(names, answers, rows)

    in_background(answer)


def _print_table(names: list[str], rows: Iterator[tuple[Any, ...]], most: int) -> None:
    from rich import box
    from rich.table import Table

    from datapipe.report.layout import harmless_text, print_text, wide_console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(harmless_text(name), overflow="fold")
    for row in islice(rows, most):
        plain = ("·" if value is None else value.hex() if isinstance(value, bytes) else str(value) for value in row)
        table.add_row(*map(harmless_text, plain))
    console = wide_console()
    console.print(table)
    if next(rows, None) is not None:
        print_text(f"The first {most:,} rows; --rows N shows more, --json all.", console)


def browse(
    output: OutputFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1. Default: a free port.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
    memory: Memory = "1GiB",
    threads: Threads = 2,
    spill: Spill = "",
) -> None:
    """Explore the documents of an output in a browser.

    \b
    datapipe browse OUTPUT
    datapipe browse OUTPUT --port 8080 --no-open

    The first line is the address. The page is served on 127.0.0.1 only, below a random token. It shows the replacements of
    the redaction stages instead of what they replace. To see it from another machine: ssh -L 8080:127.0.0.1:8080 HOST.
    Ctrl-C ends the command.
    """
    from datapipe.explore.database import Limits
    from datapipe.explore.endpoints import serve

    end_by_signals()
    limits = Limits(memory=memory, threads=threads, spill=spill)
    try:
        serve(output, port, opens=not no_open, emit=lambda line: print(line, flush=True), limits=limits)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
