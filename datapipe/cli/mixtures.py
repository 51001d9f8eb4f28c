"""The search of a mixture: `datapipe mixtures propose` and `datapipe mixtures fit`."""

from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.options import Settings
from datapipe.errors import UserError

SEARCH = """Search the weights of a mixture by many small runs.

\b
1. datapipe run mixture.yaml
   makes the snapshot that all runs share.
2. datapipe mixtures propose --around mixture.yaml
   draws the weights of runs: swarm/weights.csv.
3. Train a small model with each row of it,
   Loader(OUTPUT, mixture=row), and write its
   name and loss to swarm/results.csv.
4. datapipe mixtures fit swarm/results.csv \\
     --mixture mixture.yaml --to found
   finds the best weights, or says that the
   results cannot tell.
"""

Bounds = Annotated[
    list[str] | None,
    typer.Option("--bound", metavar="SOURCE=A:B", help="Shares of a source or pattern, as in web=10%:60%; may be repeated."),
]
Tokens = Annotated[
    str | None, typer.Option(metavar="N", help="Tokens to train on, for caps by max_epochs: 100B. Default: the mixture's.")
]


def propose(
    around: Annotated[Path, typer.Option(metavar="MIXTURE.yaml", help="The mixture to draw around.")],
    runs: Annotated[int, typer.Option(min=2, max=100_000, metavar="N", help="Number of runs; the first is the mixture.")] = 64,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for weights and mixtures of runs.")] = Path("swarm"),
    concentration: Annotated[
        float, typer.Option(min=0.01, metavar="C", help="10: near the mixture. 1: anywhere. 0.3: few sources at a time.")
    ] = 1.0,
    bound: Bounds = None,
    tokens: Tokens = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    set_: Settings = None,
) -> None:
    """Draw the weights of many small runs around a mixture.

    The runs share the snapshot of the mixture's output, so nothing is tokenized again. No source exceeds its max_epochs. A
    source with `split` has a column for each cell.

    \b
    datapipe run mixture.yaml
    datapipe mixtures propose --runs 64 --around mixture.yaml
    """
    from datapipe.config import load_mixture
    from datapipe.mixtures.propose import Swarm
    from datapipe.mixtures.propose import propose as propose_runs
    from datapipe.report.layout import wide_console

    swarm = Swarm(
        num_runs=runs,
        folder=to,
        concentration=concentration,
        seed=seed,
        tokens=_count(tokens),
        bounds=tuple(bound or ()),
    )
    propose_runs(load_mixture(around, set_ or ()), swarm, wide_console())


def fit(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS.csv", help="A row for each run: its name or weights, and metrics.")
    ],
    mixture: Annotated[
        Path | None, typer.Option(metavar="MIXTURE.yaml", help="The present mixture, to compare with. Its caps hold.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write report, picture and the found mixture. Default: only print.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights by run; default: weights.csv beside the results.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=W]", help="A metric and its weight; may be repeated. Default: all metrics, equally."),
    ] = None,
    maximize: Annotated[bool, typer.Option("--maximize/--minimize", help="Whether larger metrics are better.")] = False,
    bound: Bounds = None,
    tokens: Tokens = None,
    seed: Annotated[int, typer.Option(min=0, help="Of folds, refits and candidates.")] = 0,
    set_: Settings = None,
) -> None:
    """Find the best mixture by the results of runs, or report that they cannot tell.

    Several models of the metric are compared by their errors on runs that they were not fitted on. The search for the best
    shares stays within the caps and within the shares of the runs. Intervals hold 95 %.

    \b
    datapipe mixtures fit swarm/results.csv \\
      --mixture mixture.yaml --to found
    """
    from datapipe.config import load_mixture
    from datapipe.machine.libraries import require
    from datapipe.mixtures.fit import fit as fit_results
    from datapipe.mixtures.limits import limits_of, limits_of_runs, snapshot_of
    from datapipe.mixtures.printed import print_fit, write_fit
    from datapipe.mixtures.results import read_results
    from datapipe.report.layout import wide_console

    require("scikit-learn", "datapipe mixtures fit")
    counted = dict(map(_metric, metric or ()))
    loaded = None if mixture is None else load_mixture(mixture, set_ or ())
    limits = None if loaded is None else limits_of(loaded, snapshot_of(loaded), _count(tokens))
    table = read_results(results, weights, () if limits is None else limits.names, tuple(counted))
    limits = limits_of_runs(table.names, table.shares) if limits is None else limits.of(table.names)
    console = wide_console()
    with console.status(f"fitting {len(table.values)} runs …"):
        found = fit_results(
            table,
            limits.bounded(bound or ()),
            [counted.get(name, 1.0) for name in table.metrics],
            maximizes=maximize,
            seed=seed,
        )
    print_fit(found, console)
    if to is not None:
        write_fit(found, to, mixture, console)


def _count(tokens: str | None) -> int | None:
    from datapipe.config.fields import parse_count

    try:
        return None if tokens is None else parse_count(tokens)
    except ValueError as error:
        raise UserError(f"--tokens {tokens}: {error}") from None


def _metric(option: str) -> tuple[str, float]:
    name, equals, weight = option.rpartition("=")
    try:
        return (name, float(weight)) if equals else (option, 1.0)
    except ValueError:
        raise UserError(f"--metric {option}: expected NAME or NAME=NUMBER, such as code_loss=2") from None
