"""`datapipe mixtures propose`: weights for many small runs around a mixture, over one snapshot of its output.

    mixture.yaml, its snapshot ─▶ limits ─ Dirichlet ─▶ FOLDER/weights.csv      run,web,code: a row is `Loader(mixture=row)`
                                                        FOLDER/run-001.yaml …   each shares the rows of the snapshot

Nothing is read as text or tokenized for any of the runs. A loader takes a row of the table over the snapshot itself. `datapipe
run` of a file makes an output of links to the snapshot's shards, for trainers that take an output alone. The first run is the
mixture itself.
"""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from rich.console import Console

from datapipe.config.interpolation import parsed_yaml
from datapipe.config.mixture import Mixture
from datapipe.config.stage_use import NAME_PATTERN
from datapipe.config.yaml import dump_yaml
from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.machine.files import write_atomic
from datapipe.mixtures.draws import dirichlet, rounded, within
from datapipe.mixtures.limits import Limits, limits_of, snapshot_of
from datapipe.report.cells import Share, Table
from datapipe.report.layout import NumberTable, print_text
from datapipe.rng import seed_for
from datapipe.shards.manifest import Snapshot

WEIGHTS = "weights.csv"
RUN = "run"
"""The column with the name of a run."""

_MOST_SHOWN = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Swarm:
    """What to propose: see the options of the command."""

    num_runs: int
    folder: Path
    concentration: float
    seed: int
    tokens: int | None
    bounds: Sequence[str]


def propose(mixture: Mixture, swarm: Swarm, console: Console) -> None:
    """Writes the weights and the mixtures of the runs. Raises UserError where no weights are within the limits, and where the
    folder has weights already."""
    path = swarm.folder / WEIGHTS
    if path.exists():
        raise UserError(f"--to {swarm.folder}: found {path}, which may hold your results. Give another folder, or delete it")
    snapshot = snapshot_of(mixture)
    limits = limits_of(mixture, snapshot, swarm.tokens).bounded(swarm.bounds)
    shares = drawn_runs(limits, swarm.num_runs, swarm.concentration, swarm.seed)
    runs = [f"run-{number:0{max(3, len(str(len(shares))))}}" for number in range(1, len(shares) + 1)]
    weights = [dict(zip(limits.names, map(rounded, row.tolist()))) for row in shares]
    write_atomic(path, table_of(runs, weights).encode())
    have_files = snapshot is not None and all(re.fullmatch(NAME_PATTERN, name) for name in limits.names)
    if snapshot is not None and have_files:  # cells have names that no source of a mixture has
        output = parsed_yaml(mixture.resolved_yaml())["output"]  # in which references stay references
        for run, row in zip(runs, weights):
            own = {"name": f"{mixture.name}-{run}", "output": f"{swarm.folder}/{run}"}
            data = _run_mixture(mixture, snapshot, output, row) | own
            write_atomic(swarm.folder / f"{run}.yaml", dump_yaml(data).encode(), is_synced=False)
    _print(mixture, limits, shares, console)
    for line in _next_lines(mixture, swarm, snapshot, runs[0] if have_files else ""):
        print_text(line, console)


def drawn_runs(limits: Limits, num_runs: int, concentration: float, seed: int) -> np.ndarray:
    """The shares of the runs, (num_runs, num_sources): first those of the mixture, then draws around them. All are within
    the limits."""
    seed = seed_for(seed, "mixtures", "propose")
    alphas = limits.shares * len(limits.names) * concentration
    drawn = dirichlet(limits.names, alphas, num_runs - 1, seed)
    return within(np.concatenate([limits.shares[None], drawn]), limits.low, limits.high)


def table_of(runs: Sequence[str], weights: Sequence[dict[str, str]]) -> str:
    """The table of weights: a column for each source, a row for each run."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([RUN, *weights[0]])
    writer.writerows([run, *row.values()] for run, row in zip(runs, weights))
    return stream.getvalue()


def _run_mixture(mixture: Mixture, snapshot: Snapshot, output: str, weights: dict[str, str]) -> dict[str, Any]:
    """The mixture of a run without its name and output, whose sources are those of the snapshot in `output`."""
    taken = {"snapshot": output, "version": snapshot.fingerprint}
    lengths = list(snapshot.sequence_lengths)
    pack: dict[str, Any] = {"sequence_length": lengths if lengths[1:] else lengths[0]}
    return {
        "name": "",
        "seed": mixture.seed,
        "output": "",
        "sources": {name: {**taken, "sources": [name], "weight": float(weight)} for name, weight in weights.items()},
        "pack": pack | ({"bos_aligned": True} if snapshot.bos_aligned else {}),
        "shards": {"format": snapshot.shard_format},
    }


def _print(mixture: Mixture, limits: Limits, shares: np.ndarray, console: Console) -> None:
    largest = sorted(np.argsort(-limits.shares, kind="stable")[:_MOST_SHOWN].tolist())
    rows = [
        (
            name := limits.names[number],
            *map(Share, (limits.shares[number], shares[:, number].min(), shares[:, number].max(), limits.high[number])),
            limits.reasons.get(name, ""),
        )
        for number in largest
    ]
    title = f"{mixture.name}: {len(shares)} runs"
    title += f", the largest of {len(limits.names):,} sources" if len(rows) < len(limits.names) else ""
    headings = ("source", "mixture", "lowest", "highest", "limit", "by")
    console.print(NumberTable.of(Table(title=title, headings=headings, rows=rows)))


def _next_lines(mixture: Mixture, swarm: Swarm, snapshot: Snapshot | None, first_file: str) -> list[str]:
    table, results = swarm.folder / WEIGHTS, quote(str(swarm.folder / "results.csv"))
    by_row = f"Loader(…, mixture=row) takes a row of the table, without its {RUN}: nothing needs to run"
    lines = [f"wrote {table}"]
    if snapshot is None:
        lines.append(f"{masked(mixture.output)} has no snapshot: no source is limited by its size. Run the mixture first")
    elif first_file:
        lines = [f"wrote {table}, and a mixture for each run"]
        by_row = f"`datapipe run {quote(str(swarm.folder / first_file))}.yaml` makes an output of links, and {by_row}"
    return [
        *lines,
        by_row,
        f"next: write {results}, a table with the columns {RUN} and loss, and run `datapipe mixtures fit {results}`",
    ]
