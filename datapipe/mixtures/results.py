"""What runs measured: a table of weights and metrics, or of metrics alone beside the table of `mixtures propose`.

run,loss              run,web,code                  shares (num_runs, num_sources), each row with the sum 1
run-001,3.21     +    run-001,0.7,0.3        ─▶     metrics (num_runs, num_metrics)
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from datapipe.config.fields import parse_weight
from datapipe.dataclass import dataclass
from datapipe.errors import UserError, suggest
from datapipe.mixtures.propose import RUN, WEIGHTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The shares and metrics of runs, by row, and how many rows had no metric yet."""

    names: tuple[str, ...]  # of the sources
    metrics: tuple[str, ...]
    shares: np.ndarray  # (num_runs, num_sources)
    values: np.ndarray  # (num_runs, num_metrics)
    num_open: int


def read_results(path: Path, weights: Path | None, sources: Sequence[str], metrics: Sequence[str]) -> Results:
    """The results in a table. Raises UserError with file and line.

    Args:
        weights: the table of weights by run; by default the results themselves, or weights.csv beside them.
        sources: the names of the mixture; without any the columns of the table of weights, or those that are no metrics.
        metrics: names of columns; by default those that are no sources.
    """
    columns, rows = _read(path)
    beside = path.with_name(WEIGHTS)
    holds_weights = any(name in columns for name in sources)
    by_run: Mapping[str, Mapping[str, str]] = {}
    if weights is not None or (not holds_weights and beside != path and beside.exists()):
        table = weights or beside
        weight_columns, weight_rows = _read(table)
        _need(table, weight_columns, (RUN,))
        _need(path, columns, (RUN,))
        by_run = {row[RUN]: row for _, row in weight_rows}
        names = tuple(name for name in weight_columns if name != RUN)
    elif sources:
        names = tuple(name for name in columns if name in sources)
    else:
        names = tuple(name for name in columns if name not in (RUN, *metrics)) if metrics else ()
    chosen = tuple(metrics) or tuple(name for name in columns if name not in (RUN, *names))
    if not names or not chosen:
        raise UserError(
            f"{path}: found the columns {', '.join(columns[:20])}, expected weights and metrics. Name sources by --mixture, "
            f"or give --weights FILE with a row for each run; --metric NAME names a metric"
        )
    _need(path, columns, chosen)
    shares, values, num_open = [], [], 0
    for line, row in rows:
        if not all(row[metric].strip() for metric in chosen):
            num_open += 1
            continue
        if by_run and row[RUN] not in by_run:
            raise UserError(f"{path}:{line}: no weights of run '{row[RUN]}'.{suggest(row[RUN], by_run)} Expected a row of it")
        values.append([_number(f"{path}:{line}: {metric}", row[metric]) for metric in chosen])
        shares.append(_shares(f"{path}:{line}", by_run[row[RUN]] if by_run else row, names))
    return Results(names=names, metrics=chosen, shares=np.array(shares), values=np.array(values), num_open=num_open)


def _read(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The columns of a CSV file, and its rows with their lines."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restval="", restkey="")
            rows = [(reader.line_num, row) for row in reader]
            columns = list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read: {problem}. Expected a table in CSV with a row for each run") from error
    long = next((line for line, row in rows if "" in row), None)
    if long is not None and "" not in columns:
        raise UserError(f"{path}:{long}: found more cells than the {len(columns)} columns of the first line. Expected as many")
    if not rows:
        raise UserError(f"{path}: found no row. Expected a line with the names of columns, and a row for each run")
    return columns, rows


def _need(path: Path, columns: Sequence[str], names: Sequence[str]) -> None:
    for name in names:
        if name not in columns:
            near, found = suggest(name, columns), ", ".join(columns[:20])
            raise UserError(f"{path}: no column '{name}'.{near} Found: {found}")


def _number(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise UserError(f"{where}: found '{text}', expected a finite number; leave the cell empty for a run that failed")
    return value


def _shares(where: str, row: Mapping[str, str], names: Sequence[str]) -> np.ndarray:
    weights = np.zeros(len(names))
    for number, name in enumerate(names):
        try:
            weights[number] = float(parse_weight(row[name].strip() or "0"))
        except ValueError as error:
            raise UserError(f"{where}: {name}: found '{row[name]}': {error}") from None
    if not weights.sum():
        raise UserError(f"{where}: every weight is 0. Expected at least one above 0")
    return weights / weights.sum()
