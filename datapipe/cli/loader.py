"""`datapipe serve`, `trace` and `loader-bench`: the commands about streaming a finished output."""

import json
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from datapipe.cli.options import Json, OutputFolder, SequenceLength, SnapshotName, no_mixture, print_json, taking
from datapipe.dataclass import asdict
from datapipe.errors import SnapshotError, UserError
from datapipe.service.options import ServeOptions

GlobalBatchSize = Annotated[int | None, typer.Option(min=1, help="Rows of a step over all ranks.")]
WorldSize = Annotated[int, typer.Option(min=1, help="Number of ranks that share a step.")]


def trace(
    output: OutputFolder,
    step: Annotated[int | None, typer.Option(min=0, help="The training step, from 0.")] = None,
    document: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE/PATH:POSITION", help="List the batches of a document, given by name or key, instead of a step."
        ),
    ] = None,
    global_batch_size: GlobalBatchSize = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the JSON of loader.state_dict(), for a run whose options changed."),
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only the rows of this rank.")] = None,
    world_size: WorldSize = 1,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --document: number of epochs of its source to search. Default: the steps that --state counts, a finite "
            "run, or one epoch.",
        ),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="With --step: print the text of each document.")] = False,
    snapshot: SnapshotName = None,
    sequence_length: SequenceLength = None,
    as_json: Json = False,
) -> None:
    """List the documents of a step, or the steps of a document.

    The order is computed, so no logs are needed. Give --global-batch-size for a run that never changed. Give --state, the
    saved state of the loader, if the batch size or mixture changed, or if steps or documents were left out. The state holds
    the history of the run.

    The document of --json has `step` and `rows`, or `document`, `searched` and `appearances`.
    """
    saved = None if state is None else _read_json(state)
    run = {"global_batch_size": global_batch_size, "state": saved, "snapshot": snapshot, "sequence_length": sequence_length}
    if step is not None and document is None:
        _print_step(output, step, rank, text, {**run, "world_size": world_size}, as_json)
    elif document is not None and step is None:
        _print_document(output, document, rank, (epochs, world_size), run, as_json)
    else:
        raise UserError("give either --step or --document.")


def _print_row(row: str, console: Any) -> None:
    """Prints a row on one line, and wraps it where the terminal is narrower than the row."""
    from datapipe.report.layout import print_lines, wrapped

    print_lines(wrapped(row, console.width) if console.is_terminal else [row], console)


def _print_step(output: str, step: int, rank: int | None, text: bool, options: dict[str, Any], as_json: bool) -> None:
    from datapipe.loader.trace import trace_step
    from datapipe.report.layout import Screen, print_text, print_verbatim

    rows = trace_step(output, step, rank=rank, text=text, **options)
    if as_json:
        listed = [{"document": row.document, **asdict(row), "text": row.text if text else None} for row in rows]
        print_json({"step": step, "rows": listed})
        return
    console = Screen()
    _print_row("rank  row  source  document  key  tokens", console)
    if not rows:
        print_text(f"step {step} is left out of this run, or has no row for this rank", console)
    for row in rows:
        tokens = f"{row.token_start}:{row.token_start + row.num_tokens}"
        _print_row(f"{row.rank}  {row.row}  {row.source}  {row.document}  {row.key}  {tokens}", console)
        if text:
            print_verbatim(textwrap.indent(row.text, "    | ", lambda line: True), console)


def _print_document(
    output: str, document: str, rank: int | None, searched: tuple[int | None, int], run: dict[str, Any], as_json: bool
) -> None:
    from datapipe.loader.trace import open_run
    from datapipe.report.layout import Screen, print_text

    traced = open_run(output, **run)
    try:
        trace = traced.find_document(document, *searched)
    except SnapshotError:
        raise
    except UserError:
        key = _key_of_own_id(output, document)
        if key is None:
            raise
        document = key.hex()
        trace = traced.find_document(document, *searched)
    shown = [seen for seen in trace.appearances if rank is None or seen.rank == rank]
    if as_json:
        trace.check_complete()
        print_json({"document": document, "searched": trace.searched, "appearances": [asdict(seen) for seen in shown]})
        return
    console = Screen()
    _print_row("step  rank  row  epoch  source  shard  tokens", console)
    for seen in shown:
        tokens = f"{seen.token_start}:{seen.token_start + seen.num_tokens}"
        row = f"{seen.step}  {seen.rank}  {seen.row}  {seen.epoch}  {seen.source}  {seen.shard}:{seen.shard_row}  {tokens}"
        _print_row(row, console)
    if not trace.appearances:
        print_text("no step: the document is in no row of the output, comes later, or is left out", console)
    more = "" if searched[0] else ". --epochs N searches N epochs of its source"
    print_text(f"searched: {trace.searched}{more}", console)
    trace.check_complete()


def _key_of_own_id(output: str, own_id: str) -> bytes | None:
    """The key of the document with this id; None where there is none, or no work/."""
    from datapipe.explore.documents import Inspector

    try:
        inspector = Inspector.open(output)
        _ = inspector.database
    except (UserError, FileNotFoundError):
        return None
    return inspector.key_of_own_id(own_id)


_STATE = "Expected the JSON of one state, as json.dump(loader.state_dict(), file) writes it."


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--state {path}: {error}. {_STATE}") from error
    if not isinstance(content, dict):
        raise UserError(f"--state {path}: not a state. {_STATE}")
    return content


def loader_bench(
    output: OutputFolder,
    step_ms: Annotated[float, typer.Option(min=0, help="Milliseconds of a training step; see your trainer's log.")],
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Rows of each rank. Default: 8, unless a global size is given.")
    ] = None,
    global_batch_size: GlobalBatchSize = None,
    rank: Annotated[int, typer.Option(min=0, help="Rank of the simulated trainer.")] = 0,
    world_size: WorldSize = 1,
    steps: Annotated[int, typer.Option(min=2, max=1_000_000, help="Steps to run.")] = 100,
    prefetch: Annotated[
        int | None, typer.Option(min=0, max=1024, help="Number of batches to build ahead. Default: by their size.")
    ] = None,
    fields: Annotated[str, typer.Option(metavar="F,G,…", help="Fields of each batch.")] = "input_ids,labels",
    snapshot: SnapshotName = None,
    sequence_length: SequenceLength = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to FILE.")] = None,
) -> None:
    """Measure whether the data is the bottleneck of training.

    It streams OUTPUT to a simulated trainer. The diagnosis is data-bound or compute-bound. Each step waits --step-ms and
    leaves the processor idle, like a step on a GPU. Run the command on the machine that trains, once for each rank of that
    machine at the same time, so that they compete for disk and cores. A second run reads from the page cache, so trust the
    first.

    data-bound: the trainer waited for batches in at least 1 % of the time; the line names what would help. --prefetch
    measures another value of `Loader(prefetch=…)`.

    The exit status is 0 for either diagnosis; use --json in scripts.
    """
    from datapipe.bench.loader import bench_loader
    from datapipe.bench.printed import print_loader_bench
    from datapipe.loader import Loader
    from datapipe.report.layout import wide_console

    if json_file is not None and not json_file.parent.is_dir():
        raise UserError(f"--json {json_file}: no folder {json_file.parent}. Expected a file in an existing folder")
    if batch_size is None and global_batch_size is None:
        batch_size = 8
    size = {"global_batch_size": global_batch_size, "batch_size": batch_size, "rank": rank, "world_size": world_size}
    rows = {"snapshot": snapshot, "sequence_length": sequence_length}
    more = {"prefetch": prefetch, "fields": [field.strip() for field in fields.split(",")]}
    bench = bench_loader(lambda: Loader(output, **size, **rows, **more), step_s=step_ms / 1e3, steps=steps)
    print_loader_bench(bench, wide_console())
    if json_file is not None:
        json_file.write_text(json.dumps(bench, indent=1) + "\n", encoding="utf-8")


@taking(ServeOptions)
def serve(
    outputs: Annotated[
        list[str],
        typer.Argument(metavar="OUTPUT", help="Outputs of runs: paths or URLs, or NAME=OUTPUT.", callback=no_mixture),
    ],
    options: ServeOptions,
    log_json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Append a line of JSON for each event; - for stdout.")
    ] = None,
) -> None:
    """Serve the batches of outputs to trainers on other machines.

    \b
    datapipe serve runs/web
    datapipe serve runs/web --host 0.0.0.0 --tokens t.yaml
        --tls-cert c.pem --tls-key k.pem

    \b
    Loader("grpc://127.0.0.1:8815/runs/web", …)
    Loader("grpc+tls://a:8815,b:8815/runs/web?token_file=t")

    A loader of the service takes the arguments and states of any loader, and gives the same batches. Servers keep nothing
    between requests, so any number of them may serve the same outputs: name them all in the URL. SIGTERM drains: streams end at
    a step, and their clients continue elsewhere.
    """
    from datapipe.machine.json_log import JsonLog
    from datapipe.service.access import is_loopback
    from datapipe.service.serve import serve as serve_outputs

    if not outputs:
        raise UserError("give at least one OUTPUT.")
    if options.tokens is None and not is_loopback(options.host):
        print(f"anyone who reaches {options.host}:{options.port} can read the batches: there is no --tokens", flush=True)
    log = JsonLog(log_json) if log_json is not None else None
    try:
        serve_outputs(
            outputs,
            options,
            print_line=lambda line: print(line, flush=True),
            emit=(lambda event, **facts: None) if log is None else log.write,
        )
    finally:
        if log is not None:
            log.close()
