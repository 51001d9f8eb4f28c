"""`datapipe report`, `verify` and `export`: the commands that take a finished output."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from datapipe.cli.options import OutputFolder, size_of
from datapipe.errors import SnapshotError, UserError


def report(output: OutputFolder) -> None:
    """Print the funnel of a run from its report.json."""
    from datapipe.ledger.names import REPORT
    from datapipe.report.funnel import print_funnel, wide_console
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
    from datapipe.shards.export import ExportRequest, export_snapshot
    from datapipe.shards.manifest import read_snapshot
    from datapipe.storage import Root

    if format not in ("megatron", "parquet", "arrow"):
        raise UserError(f"--format {format}: expected megatron, parquet or arrow")
    if split not in (None, "train", "validation"):
        raise UserError(f"--split {split}: expected train or validation")
    num_bytes = None if target_bytes is None else size_of("--target-bytes", target_bytes)
    wanted = ExportRequest(format=format, source=source, split=split, target_bytes=num_bytes, rows=rows)
    root = Root(output)
    exported = export_snapshot(root, read_snapshot(root), Root(to), wanted)
    for part in exported:
        counts = f"{part.sequences:,} sequences, {part.tokens:,} tokens, {len(part.files)} files"
        print(f"{part.source} {part.split}: {counts}: {', '.join(part.files[:2])}{' …' if len(part.files) > 2 else ''}")
    print(f"{to}: {sum(len(part.files) for part in exported)} files, {sum(part.tokens for part in exported):,} tokens")
