"""The command line. Every command is a few lines over the package that does the work.

Exit status: 0 done, 1 the run failed, 2 the user's input is wrong, 130 stopped by Ctrl-C. Errors are plain lines on stderr.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from datapipe.cli.index import index, takedown
from datapipe.cli.inspect import inspect
from datapipe.cli.loader import OutputFolder, loader_bench, trace
from datapipe.errors import DatapipeError, SnapshotError, UserError

app = typer.Typer(
    name="datapipe",
    help="Raw corpora to training batches: one mixture file, deterministic to the byte, resumable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

tokenizer_app = typer.Typer(help="Tokenizers apart from a mixture.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tokenizer_app, name="tokenizer")

MixtureFile = Annotated[Path, typer.Argument(metavar="MIXTURE.yaml", help="The mixture file; `datapipe init` writes one.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the mixture: --set pack.sequence_length=512"),
]
Output = Annotated[str | None, typer.Option(metavar="URL", help="Where to write, instead of the mixture's output.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Read at most N documents of each source: a quick look.")]


@app.command()
def init(file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("mixture.yaml")) -> None:
    """Write a commented starter mixture."""
    from datapipe.config.starter import starter_mixture

    if file.exists():
        raise UserError(f"{file} exists already, and is not overwritten. Give another name: datapipe init other.yaml")
    file.write_text(starter_mixture(), encoding="utf-8")
    print(f"wrote {file}. Try it: datapipe plan {file}, then datapipe run {file}")


@app.command()
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
    signal.signal(signal.SIGTERM, _interrupt)
    with Progress(console) as progress:
        running = Run(mixture, _engine_factory(engine, workers, address), progress, limit)
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


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _command() -> str:
    return " ".join(["datapipe", *sys.argv[1:]])


def _print_next_steps(output: str, sequence_length: int) -> None:
    print(f"\n{output} is ready. Stream it:\n")
    print("    from datapipe.loader import Loader")
    print(f'    for batch in Loader("{output}", batch_size=8):')
    print(f'        batch["input_ids"], batch["labels"]        # (8, {sequence_length}) int64 each\n')


@app.command()
def plan(mixture_file: MixtureFile, output: Output = None, limit: Limit = None, set_: Settings = None) -> None:
    """Show the step tree: what is committed, what would run, and the mixture table."""
    from datapipe.config import load_mixture
    from datapipe.engine.run import planned
    from datapipe.report.funnel import wide_console
    from datapipe.report.plan_view import plan_view

    mixture = load_mixture(mixture_file, set_ or (), output)
    request, plan = planned(mixture, limit)
    wide_console().print(plan_view(mixture, request, plan))


@app.command()
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

    sample_bytes = _size("--sample", sample)
    if json_file is not None and not json_file.parent.is_dir():
        raise UserError(f"--json {json_file}: no folder {json_file.parent}. Expected a file in a folder that exists")
    mixture = load_mixture(mixture_file, set_ or ())
    signal.signal(signal.SIGTERM, _interrupt)
    console = wide_console()
    with console.status("") as status:
        found = bench(mixture, source=source, sample_bytes=sample_bytes, seconds=seconds, say=status.update).to_json()
    print_bench(found, console)
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@tokenizer_app.command("train")
def tokenizer_train(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT…", help="Files or globs, of any format that is read.")],
    vocab_size: Annotated[int, typer.Option(metavar="N", help="Tokens in all: 256 bytes, merges, and the end-of-text token.")],
    pattern: Annotated[str, typer.Option(metavar="P", help="How text is cut: gpt2, cl100k, o200k, llama3, qwen2.")] = "gpt2",
    eos: Annotated[str, typer.Option(metavar="T", help="The token that ends a document.")] = "<|endoftext|>",
    sample: Annotated[str, typer.Option(metavar="SIZE", help="Text to train on.")] = "256MB",
    output: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the tokenizer.")] = Path("tokenizer.json"),
    text: Annotated[str, typer.Option(metavar="FIELD", help="Input field with the text; dots reach into objects.")] = "text",
) -> None:
    """Train a byte-level BPE tokenizer from files, and tell what it makes of documents held out from training."""
    from datapipe.engine.train_files import train_from_files
    from datapipe.report.funnel import print_training, wide_console

    if output.exists() or not output.parent.is_dir():
        found = "exists already, and is not overwritten" if output.exists() else "its folder does not exist"
        raise UserError(f"--output {output}: {found}. Give another name")
    try:
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:  # known before the work, not after it
        raise UserError(f"--output {output}: its folder cannot be written: {error.strerror}. Give another name") from error
    sample_bytes, console = _size("--sample", sample), wide_console()
    with console.status("") as status:
        trained = train_from_files(
            inputs,
            vocab_size=vocab_size,
            pattern=pattern,
            eos=eos,
            sample_bytes=sample_bytes,
            text_field=text,
            say=status.update,
        )
    output.write_bytes(trained.content)
    print_training(trained, console)
    print(f"wrote {output}")


def _size(option: str, value: str) -> int:
    from datapipe.config.units import parse_size

    try:
        return parse_size(value)
    except ValueError as error:
        raise UserError(f"{option} {value}: {error}") from None


@app.command()
def report(output: OutputFolder) -> None:
    """Print the funnel of a run from its report.json."""
    from datapipe.report.funnel import print_funnel, wide_console
    from datapipe.report.summary import REPORT
    from datapipe.storage import Root

    try:
        print_funnel(json.loads(Root(output).read_bytes(REPORT)), wide_console())
    except FileNotFoundError as error:
        raise UserError(f"{output}: no {REPORT} here. Expected the output of `datapipe run`.") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{output}/{REPORT}: not a report that this version can read ({type(error).__name__}: {error}). "
            f"Run the mixture again: what is done is not done again, and the report is written anew"
        ) from error


app.command()(inspect)


@app.command()
def verify(output: OutputFolder) -> None:
    """Re-read every shard against its checksum, and the manifest against the shards."""
    from datapipe.shards.manifest import SNAPSHOT, length_folders, read_snapshot
    from datapipe.shards.verify import verify_snapshot
    from datapipe.storage import Root

    root = Root(output)
    further = [root.within(folder) for folder in length_folders(root)]
    problems: list[str] = []
    for place in (root, *(one for one in further if one.exists(SNAPSHOT))):
        try:
            snapshot = read_snapshot(place)
        except SnapshotError as error:
            if place is root:
                raise
            problems.append(str(error))
            continue
        found = [f"{place.url}: {problem}" if place is not root else problem for problem in verify_snapshot(place, snapshot)]
        if not found:
            tokens = sum(shard.tokens for shard in snapshot.shards)
            print(f"{place.url}: {len(snapshot.shards)} shards, {tokens:,} tokens: every byte is as it was committed")
        problems += found
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise typer.Exit(1)


@app.command()
def export(
    output: OutputFolder,
    format: Annotated[str, typer.Option(metavar="megatron|parquet|arrow", help="What to write.")],
    to: Annotated[str, typer.Option(metavar="URL", help="An empty folder, or one that is not there yet.")],
    source: Annotated[str | None, typer.Option(help="Only this source.")] = None,
    split: Annotated[str | None, typer.Option(metavar="train|validation", help="Only this split.")] = None,
    target_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size of a file; else one for each shard, or for megatron.")
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Of megatron: packed rows as sequences, instead of documents.")] = False,
) -> None:
    """Write a snapshot in another format: Megatron's .bin and .idx, or shards of Parquet or Arrow that can be streamed."""
    from datapipe.config.units import parse_size
    from datapipe.shards.export import Wanted, export_snapshot
    from datapipe.shards.manifest import read_snapshot
    from datapipe.storage import Root

    if format not in ("megatron", "parquet", "arrow"):
        raise UserError(f"--format {format}: expected megatron, parquet or arrow")
    if split not in (None, "train", "validation"):
        raise UserError(f"--split {split}: expected train or validation")
    try:
        num_bytes = None if target_bytes is None else parse_size(target_bytes)
    except ValueError as error:
        raise UserError(f"--target-bytes {target_bytes}: {error}") from None
    wanted = Wanted(format=format, source=source, split=split, target_bytes=num_bytes, rows=rows)
    root = Root(output)
    exported = export_snapshot(root, read_snapshot(root), Root(to), wanted)
    for part in exported:
        counts = f"{part.sequences:,} sequences, {part.tokens:,} tokens, {len(part.files)} files"
        print(f"{part.source} {part.split}: {counts}: {', '.join(part.files[:2])}{' …' if len(part.files) > 2 else ''}")
    print(f"{to}: {sum(len(part.files) for part in exported)} files, {sum(part.tokens for part in exported):,} tokens")


app.command()(trace)
app.command()(loader_bench)
app.command()(index)
app.command()(takedown)


@app.command()
def stages(name: Annotated[str, typer.Argument(help="Only this stage.")] = "") -> None:
    """List every stage with its options and defaults; of one stage, tell also what it does, how right and how fast."""
    from datapipe import catalogue

    names = [name] if name else catalogue.stage_names()
    for one in names:
        described = catalogue.describe(one)
        print(f"{described.name}  ({described.kind})\n    {described.summary}")
        if name:
            print("\n" + textwrap.indent(described.details, "    ") + "\n")
        for option in described.options:
            print(f"      {option.name}: {option.type} = {option.default}\n          {option.description}")
        print()


@app.command()
def schema() -> None:
    """Print the JSON Schema of the mixture file, with the options of every stage, for editors."""
    from datapipe import catalogue

    print(json.dumps(catalogue.mixture_schema(), indent=2))


def main() -> None:
    """The entry point: turns errors into plain lines and an exit status."""
    try:
        app()
    except UserError as error:
        _fail(str(error), 2)
    except DatapipeError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except Exception as error:
        _fail(_unexpected(error), 1)


def _fail(message: str, status: int) -> NoReturn:
    print(f"datapipe: {message}", file=sys.stderr)
    sys.exit(status)


def _unexpected(error: Exception) -> str:
    """A line for an error nobody foresaw; the traceback goes to a file that can be sent along."""
    with tempfile.NamedTemporaryFile("w", prefix="datapipe-", suffix=".txt", delete=False, encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))
    kind = "The system refused it" if isinstance(error, OSError) else "This is a defect of datapipe"
    return f"{type(error).__name__}: {error}\n{kind}; the traceback is in {file.name}"
