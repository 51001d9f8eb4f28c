"""`datapipe init`, `run`, `plan` and `bench`: the commands that take a mixture file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from importlib.metadata import version
from math import inf
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from datapipe.cli.options import (
    Json,
    Limit,
    MixtureFile,
    Output,
    Rebuild,
    Settings,
    TrustRecords,
    command_line,
    end_by_signals,
    ignore_signals,
    print_json,
    show,
    size_of,
)
from datapipe.credentials import masked
from datapipe.dataclass import fields
from datapipe.errors import DatapipeError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from datapipe.config.mixture import Mixture
    from datapipe.engine.events import Observer
    from datapipe.engine.run import Run, RunOptions
    from datapipe.engine.watching.state import RunState
    from datapipe.snapshots.generations import Generation
    from datapipe.steps.simulation import Prices, Simulation

_SHOWN_SOURCES = 10  # Sources of which the last screen names the documents


def init(file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("mixture.yaml")) -> None:
    """Write a commented starter mixture."""
    from datapipe.config import starter_mixture

    if file.exists():
        raise UserError(f"{file} exists and is not overwritten. Give another name: datapipe init other.yaml")
    file.write_text(starter_mixture(), encoding="utf-8")
    show(f"wrote {file}. Next: `datapipe plan {quote(str(file))}`, then `datapipe run {quote(str(file))}`")


def run(
    mixture_file: MixtureFile,
    engine: Annotated[str, typer.Option(metavar="local|ray", help="Run tasks in local processes or on Ray.")] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Worker processes. Default: one for each core.")
    ] = None,
    address: Annotated[str | None, typer.Option(metavar="ADDR", help="A running Ray cluster: auto, or host:port.")] = None,
    output: Output = None,
    limit: Limit = None,
    set_: Settings = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Publish into an output that holds another mixture. Its snapshots stay.")
    ] = False,
    follow: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Keep running: list the sources every SECONDS, and add new files as `publish` of the mixture says.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="With --follow: exit after two listings, and after new files are added.")
    ] = False,
    rebuild: Rebuild = False,
    trust_records: TrustRecords = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="PORT", help="Serve figures for Prometheus; 0: any port."),
    ] = None,
    metrics_host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address that serves the figures. Default: loopback; 0.0.0.0: all addresses."),
    ] = None,
    log_json: Annotated[
        str | None, typer.Option("--log-json", metavar="FILE", help="Append a line of JSON for each event; - for stdout.")
    ] = None,
) -> None:
    """Run a mixture. The same command resumes a run that was stopped.

    \b
    datapipe run mixture.yaml --output runs/trial --limit 1000
    datapipe run mixture.yaml --engine ray --address auto
    datapipe run mixture.yaml --follow 60
    """
    from datapipe.config import load_mixture
    from datapipe.engine.events import EventLog, all_of
    from datapipe.engine.following.follow import Follower
    from datapipe.engine.run import RunOptions
    from datapipe.engine.watching.state import RunState
    from datapipe.engine.watching.terminal import Terminal
    from datapipe.machine.json_log import JsonLog
    from datapipe.report.layout import wide_console

    end_by_signals()
    try:
        mixture = load_mixture(mixture_file, set_ or (), output)
        given = {"engine": engine, "workers": workers, "address": address, "limit": limit}
        options = RunOptions(**given, replaces=replace, rebuilds=rebuild, trusts_records=trust_records)
        if metrics_host is not None and metrics_port is None:
            raise UserError("--metrics-host requires --metrics-port, for example --metrics-port 9400")
        if follow is not None and limit is not None:
            raise UserError("--follow and --limit: a trial is not followed. Leave one of them out.")
        if once and follow is None:
            raise UserError("--once requires --follow, for example --follow 60")
        with ExitStack() as stack:
            log = stack.enter_context(closing(JsonLog(log_json))) if log_json is not None else None
            console, state = wide_console(to_stderr=log is not None and log.is_on_stdout), RunState()
            if metrics_port is not None:
                from datapipe.engine.watching.metrics import serve_runs
                from datapipe.storage.root import Root

                about = {"mixture": mixture.name, "output": masked(Root(mixture.output).url), "engine": engine}
                about["version"] = version("datapipe")
                host = metrics_host or "127.0.0.1"
                server = stack.enter_context(serve_runs(state, about, metrics_port, host))
                shown_host = f"[{host}]" if ":" in host else host
                show(f"figures for Prometheus: http://{shown_host}:{server.port}/metrics", to_stderr=True)
            shown = [Terminal(console, state).observe, *([EventLog(log).observe] if log is not None else [])]
            run_one = partial(_run, all_of(shown), options, state, console)
            stack.enter_context(_read_to_its_end())
            if follow is None:
                run_one(mixture, None)
            else:
                Follower(mixture, follow, run_one, all_of([state.observe, *shown])).follow(2 if once else None)
    except KeyboardInterrupt:  # perhaps the second, which came while the first was answered
        ignore_signals()
        show(f"stopped. Committed tasks are kept. Resume with the same command: `{command_line()}`", to_stderr=True)
        raise typer.Exit(130) from None


def _run(
    emit: Observer, options: RunOptions, state: RunState, console: Console, mixture: Mixture, generation: Generation | None
) -> None:
    from datapipe.engine.run import Run
    from datapipe.engine.run_report import run_and_report
    from datapipe.report.layout import line_width
    from datapipe.report.screen import print_screen

    ended = run_and_report(run := Run(mixture, emit, options, generation=generation), state)
    if ended.report is not None:
        lines = _snapshot_lines(run, line_width(console))
        print_screen(ended.report, masked(run.root.url), console, lines, has_next=generation is None)
    ended.raise_problem()


@contextmanager
def _read_to_its_end() -> Iterator[None]:
    """Raises DatapipeError where the program that reads what the run prints has ended."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be printed goes nowhere
        raise DatapipeError(
            "stopped: the program that read what it prints has ended, as in `datapipe run … | head`. Committed tasks are kept. "
            "Run the same command again to go on; `datapipe run … > run.log` keeps what it prints"
        ) from None


def _snapshot_lines(run: Run, width: int) -> list[str]:
    """Lines about the new snapshot; none where there is none, and where files are added: the follower has one."""
    from datapipe.report.screen import snapshot_lines, work_lines
    from datapipe.report.snapshot_list import changes

    if run.snapshot is None or run.work is None or run.generation is not None:
        return []
    newest, before = run.snapshot.fingerprint, "" if run.before is None else run.before.fingerprint
    differences = changes(run.root, run.before, run.snapshot) if run.before is not None and run.is_new else []
    output = masked(run.root.url)
    lines = snapshot_lines(
        output,
        newest,
        before,
        differences,
        work_lines(output, run.work, width),
        loads_before=run.before is not None and run.before.has_tokens,
    )
    return [*lines, *_documents(run)] if not run.snapshot.has_tokens else lines


def _documents(run: Run) -> list[str]:
    from datapipe.quantities import counted

    assert run.snapshot is not None
    lines = ["", "documents:"]
    sources = list(run.snapshot.sources)
    for source in sources[:_SHOWN_SOURCES]:
        num_files = sum(entry.source == source for entry in run.snapshot.shards)
        files = f"{masked(run.root.child_url(f'documents/{source}'))}/*.{run.snapshot.shard_format}"
        lines.append(f"  {files}  {counted(num_files, 'file')}")
    if len(sources) > _SHOWN_SOURCES:
        lines.append(f"  and {counted(len(sources) - _SHOWN_SOURCES, 'more source')}")
    return [*lines, "To get tokens, add a tokenizer to the mixture and run it again: nothing is cleaned again."]


def plan(
    mixture_file: MixtureFile,
    output: Output = None,
    limit: Limit = None,
    set_: Settings = None,
    rebuild: Rebuild = False,
    trust_records: TrustRecords = False,
    as_json: Json = False,
    at: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Show the run with this many bytes of input files: 100TB.")
    ] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --at: cores of the run. Default: the cores of this machine.")
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=DOLLARS,…",
            help="With --at: core_hour (0.04), put and get (0.005, 0.0004 for 1,000 requests), tb_month of storage (23).",
        ),
    ] = None,
) -> None:
    """Show the steps of a run: what would run, why, for how long.

    Nothing runs. The last line estimates the bytes and the time. The time excludes compiling the kernels, which happens
    once on a machine. The document of --json has `steps`, `sources`,
    `estimate` and `warnings`. `tasks` of a step is null until the step before it is committed.

    --at shows a run of another size instead: its time and its limits, tasks, requests, bytes and dollars. The
    estimate follows from the last run of the output. A sample of 10,000 documents is enough:

    \b
    datapipe run mixture.yaml --output sample --limit 10000
    datapipe plan mixture.yaml --output sample --at 100TB --cores 1000
    """
    from datapipe.config import load_mixture
    from datapipe.engine.history import estimated, why
    from datapipe.engine.local import usable_cores
    from datapipe.engine.run import planned, simulation
    from datapipe.report.layout import print_wrapped, wide_console
    from datapipe.report.plan_view import estimate_text, last_grids, plan_json, plan_view
    from datapipe.report.screen import print_tables
    from datapipe.storage.outages import free_bytes, may_write
    from datapipe.storage.root import Root

    size, paid = _size_to_simulate(at, limit, {"--cores": cores, "--prices": prices}), _prices(prices or "")
    mixture = load_mixture(mixture_file, set_ or (), output)
    options = {"rebuilds": rebuild, "trusts_records": trust_records}
    request, plan = planned(mixture, limit, lambda line: show(line, to_stderr=True), **options)
    root = Root(mixture.output)
    if size is not None:
        _show_simulation(simulation(root, request, plan, size, cores, paid), as_json)
        return
    reasons, expected = why(root, request, plan), estimated(root, request, plan)
    if root.local is not None and not may_write(str(root.local)):
        show(
            f"warning: output: {root.url}: this user cannot write there, or its disk has no room, so a run would fail. Give "
            f"this user access, or another --output",
            "yellow",
            to_stderr=True,
        )
    if as_json:
        print_json(plan_json(mixture, request, plan, reasons, expected))
        for warning in request.warnings:
            show(f"warning: {warning}", "yellow", to_stderr=True)
        return
    console = wide_console()
    console.print(plan_view(mixture, request, plan, reasons))
    if grids := last_grids(root, mixture):
        print_tables(grids, ["These are the cells of the last run."], console)
    free = None if root.local is None else free_bytes(str(root.local))
    texts = [estimate_text(expected, free, usable_cores()), *(f"warning: {warning}" for warning in request.warnings)]
    print_wrapped([line for text in texts if text for line in ("", text)], console)


def _size_to_simulate(at: str | None, limit: int | None, others: Mapping[str, object]) -> int | None:
    """Bytes of input of the run that `plan` shows; None for the run as it is. Raises UserError for options that do not fit."""
    if at is None:
        if given := [name for name, value in others.items() if value is not None]:
            raise UserError(f"{' and '.join(given)}: expected with --at SIZE, the bytes of input of the run to show")
        return None
    if limit is not None:
        raise UserError("--at and --limit: a run of another size reads all of its input. Leave one of them out")
    return size_of("--at", at)


def _prices(given: str) -> Prices:
    """The prices in "core_hour=0.05,put=0.01", and those by default. Raises UserError that names a wrong one."""
    from datapipe.steps.simulation import Prices

    names, prices = [each.name for each in fields(Prices)], dict[str, float]()
    for part in filter(None, map(str.strip, given.split(","))):
        name, _, price = part.partition("=")
        try:
            prices[name] = float(price)
        except ValueError:
            prices[name] = -1.0
        if name not in names or not 0 <= prices[name] < inf:
            example = "--prices core_hour=0.05,put=0.01"
            raise UserError(f"--prices: {part}: expected NAME=DOLLARS with one of {', '.join(names)}, as in {example}")
    return Prices(**prices)


def _show_simulation(simulation: Simulation, as_json: bool) -> None:
    from datapipe.report.layout import print_wrapped, wide_console
    from datapipe.report.simulation_view import simulation_lines, simulation_table

    if as_json:
        print_json(simulation.to_json())
        return
    console = wide_console()
    console.print(simulation_table(simulation))
    print_wrapped([line for text in simulation_lines(simulation) for line in ("", text)], console)


def bench(
    mixture_file: MixtureFile,
    source: Annotated[str, typer.Option(help="Only this source.")] = "",
    sample: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of text to read of each source.")] = "64MB",
    seconds: Annotated[
        float, typer.Option(min=0, help="Repeat for about this long, at most 5 times, and report medians.")
    ] = 120,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to a file.")] = None,
    set_: Settings = None,
) -> None:
    """Measure the speed of each stage, and name the bottleneck.

    It runs on one core, on a sample of your own data.

    \b
    datapipe bench mixture.yaml --source web --sample 256MB
    """
    from datapipe.bench.bench import bench
    from datapipe.bench.printed import print_bench
    from datapipe.config import load_mixture
    from datapipe.report.layout import wide_console

    sample_bytes = size_of("--sample", sample)
    if json_file is not None and not json_file.parent.is_dir():
        raise UserError(f"--json {json_file}: no folder {json_file.parent}. Expected a file in an existing folder")
    mixture = load_mixture(mixture_file, set_ or ())
    end_by_signals()
    console = wide_console()
    with console.status("") as status:
        figures = bench(mixture, source=source, sample_bytes=sample_bytes, seconds=seconds, show=status.update)
    print_bench(figures, console)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
