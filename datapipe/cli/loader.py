"""`datapipe trace` and `datapipe loader-bench`: the commands about streaming a finished output."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from datapipe.cli.options import OutputFolder
from datapipe.errors import UserError


def trace(
    output: OutputFolder,
    step: Annotated[int | None, typer.Option(min=0, help="The training step, from 0.")] = None,
    document: Annotated[
        str | None, typer.Option(metavar="KEY|PATH:PLACE", help="A document instead of a step: every batch it comes up in.")
    ] = None,
    global_batch_size: Annotated[int | None, typer.Option(min=1, help="Rows of a step over all ranks.")] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="json.dump of loader.state_dict(), of a run that changed on the way.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="This rank's rows only.")] = None,
    world_size: Annotated[int, typer.Option(min=1, help="Ranks that share a step.")] = 1,
    epochs: Annotated[int | None, typer.Option(min=1, help="With --document: epochs to look at, in a run without end.")] = None,
    text: Annotated[bool, typer.Option("--text", help="With --step: what each piece says.")] = False,
) -> None:
    """Show which documents were in a step, or which steps a document is in. No logs needed: the order is arithmetic.

    Give the rows of a step with --global-batch-size; or, of a run whose batch size or mixture changed, or that left steps or
    documents out, the loader's own state, whose lineage knows what held when.
    """
    from datapipe.loader.trace import trace_document, trace_step

    saved = None if state is None else _read_json(state)
    if step is not None and document is None:
        rows = trace_step(
            output, step, global_batch_size=global_batch_size, state=saved, rank=rank, world_size=world_size, text=text
        )
        print("rank  row  source  document  key  tokens")
        if not rows:
            print(f"step {step} is left out of this run, or gives this rank no row")
        for row in rows:
            tokens = f"{row.token_start}:{row.token_start + row.num_tokens}"
            print(f"{row.rank}  {row.row}  {row.source}  {row.path}:{row.place}  {row.key}  {tokens}")
            if text:
                print(textwrap.indent(row.text, "    | ", lambda line: True))
    elif document is not None and step is None:
        options: dict[str, Any] = {
            "global_batch_size": global_batch_size,
            "state": saved,
            "world_size": world_size,
            "num_epochs": epochs,
        }
        found = trace_document(output, document, strict=False, **options)
        print("step  rank  row  epoch  source  shard  tokens")
        for one in found:
            if rank is None or one.rank == rank:
                tokens = f"{one.token_start}:{one.token_start + one.num_tokens}"
                print(f"{one.step}  {one.rank}  {one.row}  {one.epoch}  {one.source}  {one.shard}:{one.shard_row}  {tokens}")
        if not found:
            print("no step of this run: the document is in no row of the output, comes up after the end, or is left out")
        trace_document(output, document, **options)  # says so, and fails, where other outputs were drawn from too
    else:
        raise UserError("give either --step or --document.")


_STATE = "Expected the JSON of a state alone: json.dump(checkpoint['loader'], file), where that is `loader.state_dict()`."


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
    step_ms: Annotated[float, typer.Option(min=0, help="What a training step takes; see your trainer's log.")],
    batch_size: Annotated[int | None, typer.Option(min=1, help="Rows of this rank; 8 unless a global size is given.")] = None,
    global_batch_size: Annotated[int | None, typer.Option(min=1, help="Rows of a step over all ranks.")] = None,
    rank: Annotated[int, typer.Option(min=0, help="The rank to play.")] = 0,
    world_size: Annotated[int, typer.Option(min=1, help="Ranks in all.")] = 1,
    steps: Annotated[int, typer.Option(min=2, max=1_000_000, help="How many to run.")] = 100,
    prefetch: Annotated[
        int | None, typer.Option(min=0, max=1024, help="Batches built ahead; by their size if not given.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=0, help="Shards mixed at a time, 0 for all; the snapshot's if not given.")
    ] = None,
    fields: Annotated[str, typer.Option(metavar="F,G,…", help="What each batch holds.")] = "input_ids,labels",
    split: Annotated[str, typer.Option(metavar="train|validation", help="Which split.")] = "train",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers here too.")] = None,
) -> None:
    """Is the data the bottleneck? Streams OUTPUT to a trainer that is not there, and says data-bound or compute-bound.

    Each step waits --step-ms and leaves the processor alone, as a step on a GPU does. Run it on the machine that trains, one
    for each rank that shares it: they compete for disk and cores as the trainers will. What is in the system's cache is read
    faster than what is not, so the first of several runs is the honest one.

    data-bound: a hundredth of the time or more went into waiting for batches; the line says what would help. The table
    tells what other values of `Loader(prefetch=…)` would do, computed from the measured build times.

    The exit status is 0 for either verdict; --json is for scripts.
    """
    from datapipe.loader import Loader
    from datapipe.loader.bench import bench_loader
    from datapipe.loader.prefetch import MAX_THREADS
    from datapipe.report.funnel import wide_console
    from datapipe.report.loader_bench import loader_bench_json, print_loader_bench
    from datapipe.storage import Root

    if json_file is not None and not json_file.parent.is_dir():
        raise UserError(f"--json {json_file}: no folder {json_file.parent}. Expected a file in a folder that exists")
    if split not in ("train", "validation"):
        raise UserError(f"--split {split}: expected train or validation")
    is_local = Root(output).local is not None

    def open_loader() -> Loader:
        return Loader(
            output,
            batch_size=8 if batch_size is None and global_batch_size is None else batch_size,
            global_batch_size=global_batch_size,
            rank=rank,
            world_size=world_size,
            split=split,
            fields=[field.strip() for field in fields.split(",")],
            prefetch=prefetch,
            window=window,
        )

    found = bench_loader(
        open_loader,
        step_s=step_ms / 1e3,
        steps=steps,
        threads_of=lambda depth: 1 if is_local else min(depth, MAX_THREADS),
    )
    print_loader_bench(found, wide_console())
    if json_file is not None:
        json_file.write_text(json.dumps(loader_bench_json(found), indent=1) + "\n", encoding="utf-8")
