"""`datapipe init`, `run`, `plan` and `bench`: the commands that take a mixture file."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from datapipe.cli.options import Limit, MixtureFile, Output, Settings, interrupt, size_of
from datapipe.errors import DatapipeError, UserError


def init(file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("mixture.yaml")) -> None:
    """Write a commented starter mixture."""
    from datapipe.config.starter import starter_mixture

    if file.exists():
        raise UserError(f"{file} exists already, and is not overwritten. Give another name: datapipe init other.yaml")
    file.write_text(starter_mixture(), encoding="utf-8")
    print(f"wrote {file}. Try it: datapipe plan {file}, then datapipe run {file}")


def run(
    mixture_file: MixtureFile,
    engine: Annotated[str, typer.Option(metavar="local|ray", help="Where tasks run.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Worker processes; one per core by default.")] = None,
    address: Annotated[str | None, typer.Option(metavar="ADDR", help="A running Ray cluster: auto, or host:port.")] = None,
    output: Output = None,
    limit: Limit = None,
    set_: Settings = None,
) -> None:
    """Run a mixture, or go on with it: the same command resumes after any stop."""
    from datapipe.config import load_mixture
    from datapipe.engine.run import Run
    from datapipe.report.fertility import tokenizer_report
    from datapipe.report.funnel import print_funnel, wide_console
    from datapipe.report.progress import Progress
    from datapipe.report.summary import summarize, write_report

    mixture = load_mixture(mixture_file, set_ or (), output)
    console = wide_console()
    problem: BaseException | None = None
    signal.signal(signal.SIGTERM, interrupt)
    with Progress(console) as progress:
        running = Run(mixture, _engine_factory(engine, workers, address), progress, limit, runs_here=engine == "local")
        try:
            running.execute()
        except (DatapipeError, KeyboardInterrupt) as error:
            problem = error
    if running.plan is not None:
        status = "done" if problem is None else "stopped" if isinstance(problem, KeyboardInterrupt) else "failed"
        tokenizer = tokenizer_report(running.root, running.plan)
        told = str(problem) if problem else None
        report = summarize(mixture.name, running.plan, mixture.sources, status, told, tokenizer, running.snapshot)
        write_report(running.root, report)
        if report["total"]["documents"]["read"]:
            print_funnel(report | {"problem": None}, console)
    if isinstance(problem, KeyboardInterrupt):
        print(f"stopped. What is committed stays; to go on, run the same command again: {_command()}", file=sys.stderr)
        raise typer.Exit(130)
    if problem is not None:
        raise problem
    for length in mixture.pack.sequence_length:
        _print_next_steps(running.root.within(mixture.pack.folder(length)).url, length)


def _engine_factory(engine: str, workers: int | None, address: str | None) -> Callable[[Any, Any], Any]:
    if engine not in ("local", "ray"):
        raise UserError(f"--engine {engine}: expected local or ray")
    if address is not None and engine != "ray":
        raise UserError("--address goes with --engine ray")

    def make(root: Any, request: Any) -> Any:
        if engine == "ray":
            from datapipe.engine.ray import RayEngine

            return RayEngine(root, request, address, workers)
        from datapipe.engine.local import LocalEngine, usable_cores

        return LocalEngine(root.url, workers or usable_cores())

    return make


def _command() -> str:
    return " ".join(["datapipe", *sys.argv[1:]])


def _print_next_steps(output: str, sequence_length: int) -> None:
    print(f"\n{output} is ready. Stream it:\n")
    print("    from datapipe.loader import Loader")
    print(f'    for batch in Loader("{output}", batch_size=8):')
    print(f'        batch["input_ids"], batch["labels"]        # (8, {sequence_length}) int64 each\n')


def plan(mixture_file: MixtureFile, output: Output = None, limit: Limit = None, set_: Settings = None) -> None:
    """Show the step tree: what is committed, what would run, and the mixture table."""
    from datapipe.config import load_mixture
    from datapipe.engine.run import planned
    from datapipe.report.funnel import wide_console
    from datapipe.report.plan_view import plan_view

    mixture = load_mixture(mixture_file, set_ or (), output)
    request, plan = planned(mixture, limit)
    wide_console().print(plan_view(mixture, request, plan))


def bench(
    mixture_file: MixtureFile,
    source: Annotated[str, typer.Option(help="Only this source.")] = "",
    sample: Annotated[str, typer.Option(metavar="SIZE", help="Text to read of each source.")] = "64MB",
    seconds: Annotated[float, typer.Option(min=0, help="Repeat for about so long, at most 5 times, and give medians.")] = 120,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers here too.")] = None,
    set_: Settings = None,
) -> None:
    """Measure the speed of each stage on one core, on a sample of your own data; names the bottleneck."""
    from datapipe.bench.bench import bench
    from datapipe.config import load_mixture
    from datapipe.report.bench import print_bench
    from datapipe.report.funnel import wide_console

    sample_bytes = size_of("--sample", sample)
    if json_file is not None and not json_file.parent.is_dir():
        raise UserError(f"--json {json_file}: no folder {json_file.parent}. Expected a file in a folder that exists")
    mixture = load_mixture(mixture_file, set_ or ())
    signal.signal(signal.SIGTERM, interrupt)
    console = wide_console()
    with console.status("") as status:
        found = bench(mixture, source=source, sample_bytes=sample_bytes, seconds=seconds, say=status.update).to_json()
    print_bench(found, console)
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
