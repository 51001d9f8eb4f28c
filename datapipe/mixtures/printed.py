"""What `mixtures fit` says: on the terminal, and as a folder with a report, its picture and the found mixture."""

import io
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from rich.console import Console
from ruamel.yaml import YAML

from datapipe.cell_names import DEFAULT, source_of
from datapipe.config import load_mixture
from datapipe.config.mixture import Mixture
from datapipe.machine.files import write_atomic
from datapipe.mixtures.draws import rounded
from datapipe.mixtures.fit import Fit
from datapipe.mixtures.propose import WEIGHTS, table_of
from datapipe.report.card.markdown import table_markdown
from datapipe.report.cells import Share, Table, cell
from datapipe.report.drawing import Intervals
from datapipe.report.html.page import chart_svg
from datapipe.report.layout import NumberTable, print_text

REPORT, PICTURE, MIXTURE = "report.md", "shares.svg", "mixture.yaml"
FOUND = "found"
"""The name of the found mixture in a table of weights."""


def print_fit(fit: Fit, console: Console) -> None:
    console.print(NumberTable.of(_shares_table(fit)))
    for line in _lines(fit):
        print_text(line, console)


def write_fit(fit: Fit, folder: Path, mixture: Path | None, console: Console) -> None:
    """Writes the report, its picture, and where the data tell, the mixture or its weights. Raises UserError for a mixture
    whose weights are not those of its sources alone."""
    table = _shares_table(fit)
    text = "\n\n".join(["# The found mixture", table_markdown(table), f"![{table.title}]({PICTURE})", *_lines(fit)])
    write_atomic(folder / REPORT, f"{text}\n".encode())
    write_atomic(folder / PICTURE, chart_svg(table).encode())
    written = [REPORT, PICTURE]
    if fit.tells:
        weights = _weights(fit)
        write_atomic(folder / WEIGHTS, table_of([FOUND], [weights]).encode())
        written.append(WEIGHTS)
        if mixture is not None and _takes(load_mixture(mixture, keep_unset=True), weights):
            write_atomic(folder / MIXTURE, with_weights(mixture, weights).encode())
            written.append(MIXTURE)
    print_text(f"wrote {', '.join(written)} in {folder}", console)


def with_weights(mixture: Path, weights: dict[str, str]) -> str:
    """The text of a mixture file with other weights of its sources, and of cells of these; comments stay."""
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 10_000, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    data = yaml.load(mixture.read_text(encoding="utf-8"))
    for source in dict.fromkeys(map(source_of, weights)):
        own, spec = {name: weight for name, weight in weights.items() if source_of(name) == source}, data["sources"][source]
        spec["weight"] = float(sum(map(Decimal, own.values())))
        if source not in own:
            cells = {name.partition("/")[2]: float(weight) for name, weight in own.items()}
            spec["split"]["weights"] = {DEFAULT: 0, **cells}
    stream = io.StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


def _takes(mixture: Mixture, weights: dict[str, str]) -> bool:
    """Whether the weights are those of the sources of a mixture, or of cells of these. Cells of other outputs, phases and
    weights by size are written elsewhere."""
    spec, split = mixture.mixture, {name for name, source in mixture.sources.items() if source.split is not None}
    return (
        spec.weighting == "given"
        and not spec.phases
        and all(name in mixture.all_sources or source_of(name) in split for name in weights)
    )


def _weights(fit: Fit) -> dict[str, str]:
    return dict(zip(fit.limits.names, map(rounded, fit.shares.tolist())))


def _shares_table(fit: Fit) -> Table:
    limits = fit.limits
    rows = [
        (name, *map(Share, (now, found, *interval)), limits.reasons.get(name, ""))
        for name, now, found, interval in zip(limits.names, limits.shares, fit.shares, fit.share_intervals)
    ]
    most = max(share for row in rows for share in row[1:5] if isinstance(share, float))
    return Table(
        title="shares: the mixture now, the found one, and 95 % of refits",
        headings=("source", "now", "found", "from", "to", "limit"),
        rows=rows,
        drawing=Intervals(least=0.0, most=most),
    )


def _lines(fit: Fit) -> Iterator[str]:
    metrics = " + ".join(metric for metric, _ in fit.models)
    low, high = map(cell, fit.difference_interval)
    yield (
        f"{metrics}, as predicted: {cell(fit.found)} (95%: {' to '.join(map(cell, fit.found_interval))}), with the mixture "
        f"now {cell(fit.now)}; the difference is {cell(fit.found - fit.now)} (95%: {low} to {high})"
    )
    yield (
        f"error on runs that a model was not fitted on: {cell(fit.rmse)}; of the mean: {cell(fit.rmse_of_mean)}; "
        f"{1 - (fit.rmse / fit.rmse_of_mean) ** 2 if fit.rmse_of_mean else 0.0:.0%} of the variance is explained"
    )
    for metric, model in fit.models:
        errors = ", ".join(f"{name} {cell(error)}" for name, error in model.errors.items())
        yield f"model of {metric}: {model.surrogate.name}, of errors {errors}"
    yield from (f"note: {note}" for note in fit.notes)
    yield from (f"the data cannot tell: {doubt}" for doubt in fit.doubts)
    if fit.tells:
        yield "weights: {" + ", ".join(f"{name}: {weight}" for name, weight in _weights(fit).items()) + "}"
    else:
        yield "train more runs, for more steps, or with shares farther apart (propose --concentration 0.5)"
