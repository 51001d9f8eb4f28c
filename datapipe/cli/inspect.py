"""`datapipe inspect`: look at documents, at clusters of duplicates, and at what other thresholds would keep."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import typer

from datapipe.cli.options import OutputFolder
from datapipe.errors import UserError


def inspect(
    output: OutputFolder,
    kept: Annotated[bool, typer.Option("--kept", help="Documents that were kept (the default).")] = False,
    dropped: Annotated[
        str | None, typer.Option(metavar="REASON", help="Dropped by a stage or stage:rule; 'all' for any.")
    ] = None,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="What could not be read or processed.")] = False,
    clusters: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE",
            help="Clusters of duplicates: what a stage such as dedup.minhash dropped, beside the document that stays, with "
            "what differs; 'all' for any stage.",
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="Of this source only; clusters that lost documents of it.")] = "",
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many documents or clusters.")] = 5,
    full: Annotated[bool, typer.Option("--full", help="Whole texts instead of their beginnings, or of what differs.")] = False,
    members: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --clusters: how many dropped documents of each; 3 by default.")
    ] = None,
    least_alike: Annotated[
        bool, typer.Option("--least-alike", help="With --clusters: those of lowest measured likeness first.")
    ] = False,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="STAGE.THRESHOLD", help="What other thresholds of a filter run with `mode: tag` would keep."),
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="0.1,0.2,…", help="The thresholds to sweep; by default quantiles.")] = None,
) -> None:
    """Look at documents: kept, dropped for a reason with the measured value, quarantined, or duplicates side by side.

    Those shown are a sample, the same each time; a larger --count holds the smaller. Is a dedup stage right about what it
    removes? Look at what it was least sure of, then at a sample, and read what is marked as different:

        datapipe inspect OUTPUT --clusters dedup.minhash --least-alike
        datapipe inspect OUTPUT --clusters dedup.minhash -n 20

    'measured' is the likeness that the stage found; 'in common' is counted from the two texts. A document with less in common
    with the one that stays is there because it is like a third. Where pages say different things in one template, raise
    min_similarity, or cut the template out first (dedup.lines).

    --sweep tells what other thresholds of a filter would keep.
    """
    asked = [kept, dropped is not None, quarantined, clusters is not None, sweep is not None]
    if sum(asked) > 1:
        raise UserError("expected one of --kept, --dropped REASON, --quarantined, --clusters STAGE, --sweep STAGE.THRESHOLD")
    if at is not None and sweep is None:
        raise UserError("--at goes with --sweep STAGE.THRESHOLD")
    if (members is not None or least_alike) and clusters is None:
        raise UserError(f"{'--least-alike' if least_alike else '--members'} goes with --clusters STAGE")
    if sweep is not None:
        _sweep(output, sweep, source, at)
    elif clusters is not None:
        _clusters(output, clusters, source, count, members or 3, least_alike, full)
    else:
        outcome = "dropped" if dropped is not None else "quarantined" if quarantined else "kept"
        _documents(output, outcome, source, "" if dropped in (None, "all") else dropped, count, full)


def _documents(
    output: str, outcome: Literal["kept", "dropped", "quarantined"], source: str, reason: str, count: int, full: bool
) -> None:
    from datapipe.inspect.documents import Looker, Wanted
    from datapipe.report.documents import print_document
    from datapipe.report.funnel import wide_console

    found = Looker(output).look(Wanted(outcome=outcome, source=source, reason=reason, count=count))
    console = wide_console()
    for document in found:
        print_document(document, console, full)
    if not found:
        print(f"no {outcome} documents")


def _clusters(output: str, stage: str, source: str, count: int, members: int, least_alike: bool, full: bool) -> None:
    from datapipe.inspect.documents import Looker
    from datapipe.inspect.duplicates import WantedClusters, find_clusters
    from datapipe.report.clusters import print_clusters
    from datapipe.report.funnel import wide_console

    wanted = WantedClusters(stage=stage, source=source, count=count, members=members, least_alike=least_alike)
    print_clusters(find_clusters(Looker(output), wanted), wide_console(), full)


def _sweep(output: str, threshold: str, source: str, at: str | None) -> None:
    from datapipe.inspect.sweep import sweep
    from datapipe.report.funnel import wide_console
    from datapipe.report.sweep import print_sweep

    try:
        thresholds = [float(one) for one in at.split(",")] if at is not None else []
        if not all(math.isfinite(one) for one in thresholds):
            raise ValueError
    except ValueError:
        raise UserError(f"--at {at}: expected numbers with commas between them, such as 0.1,0.2,0.5") from None
    print_sweep(sweep(output, threshold, source=source, at=thresholds), wide_console())
