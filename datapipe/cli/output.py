"""`datapipe report`, `verify` and `export`: the commands about a finished output."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from datapipe.cli.options import Json, OutputFolder, SnapshotName, size_of
from datapipe.credentials import masked
from datapipe.errors import SnapshotError, UserError

if TYPE_CHECKING:
    from datapipe.shards.datasets.write import DatasetRequest
    from datapipe.shards.export import ExportRequest
    from datapipe.shards.manifest import Manifest, Snapshot
    from datapipe.storage import Root


def report(
    output: OutputFolder,
    full: Annotated[
        bool, typer.Option("--full", help="Every reason of drops, the mixture, the time of each step, the tokenizer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the report of the last run: what is kept, warnings.

    datapipe report OUTPUT --full
    """
    from datapipe.ledger.names import MIXTURE, REPORT
    from datapipe.report.funnel import wide_console
    from datapipe.report.screen import print_full, print_problem, print_screen
    from datapipe.report.summary import parse_report
    from datapipe.storage import Root

    if full and as_json:
        raise UserError("--full goes without --json, which has everything")
    try:
        content = Root(output).read_bytes(REPORT)
        found, console = parse_report(content), wide_console()
        if as_json:
            sys.stdout.write(content.decode())
            return
        if full:
            print_full(found, console)
        else:
            print_screen(found, masked(output), console)
        print_problem(found, console)
    except FileNotFoundError as error:
        if Root(output).exists(MIXTURE):
            raise UserError(
                f"{output}: no {REPORT} yet: the run has not ended. A run writes it when it ends, well or not."
            ) from error
        raise UserError(f"{output}: no {REPORT} here. Expected the output of `datapipe run`.") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{output}/{REPORT}: not a report that this version can read. Run the mixture again: the run writes a new report"
        ) from error


def verify(
    output: OutputFolder,
    snapshot: SnapshotName = None,
    all_: Annotated[bool, typer.Option("--all", help="Every snapshot of the output.")] = False,
) -> None:
    """Compare every file of the newest snapshot with its checksum.

    Every file is read, and compared with the manifest too. The snapshots of all sequence lengths are read, unless one snapshot
    is named.
    """
    from datapipe.metrics import counted
    from datapipe.report.layout import say
    from datapipe.report.snapshot_list import amount
    from datapipe.shards.manifest import SNAPSHOT, Snapshot, length_folders, read_manifest
    from datapipe.shards.verify import verify_snapshot
    from datapipe.storage import Root

    root = Root(output)
    others = (root.within(folder) for folder in length_folders(root))
    problems: list[str] = []
    folders = [root] if snapshot is not None else [root, *(other for other in others if other.exists(SNAPSHOT))]
    for folder, name in ((each, name) for each in folders for name in _names(each, snapshot, all_)):
        try:
            found = read_manifest(folder, name)
        except SnapshotError as error:
            if folder is root:
                raise
            problems.append(str(error))
            continue
        damaged = verify_snapshot(folder, found)
        if not damaged:
            files = counted(len(found.data_files), "shard" if isinstance(found, Snapshot) else "file")
            say(f"{masked(folder.url)}: {files}, {amount(found)}: every byte equals what was committed")
        problems += damaged if folder is root else [f"{folder.url}: {problem}" for problem in damaged]
    for problem in problems:
        say(masked(problem), "red", to_stderr=True)
    if problems:
        raise typer.Exit(1)


def _names(folder: Root, name: str | None, is_all: bool) -> list[str | None]:
    """The snapshots of a folder that are verified; None for the newest."""
    from datapipe.shards.manifest import fingerprints

    return list(fingerprints(folder)) or [None] if is_all else [name]


def export(
    output: OutputFolder,
    format: Annotated[str, typer.Option(metavar="megatron|parquet|arrow|mds|jsonl", help="The format.")],
    to: Annotated[str, typer.Option(metavar="URL", help="A new or empty folder, or that of the same export, unfinished.")],
    source: Annotated[str | None, typer.Option(help="Only this source.")] = None,
    split: Annotated[str | None, typer.Option(metavar="train|validation", help="Only this split.")] = None,
    target_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of a file; by default one file a shard, for megatron one a source and split, for mds 64 MiB, for "
            "documents and jsonl 256 MiB in memory.",
        ),
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="With megatron: write packed rows as sequences, instead of documents.")
    ] = False,
    text: Annotated[
        bool, typer.Option("--text", help="With parquet, jsonl or mds: the documents as they were tokenized, as text.")
    ] = False,
    zstd: Annotated[bool, typer.Option("--zstd", help="With mds: compress the shards.")] = False,
    snapshot: SnapshotName = None,
) -> None:
    """Write a snapshot in the format of another tool.

    Of packed rows: megatron's .bin and .idx, parquet and arrow for datapipe's loader, jsonl, and mds for MosaicML streaming. Of
    documents, with --text or of a run without a tokenizer: parquet and jsonl as the Hugging Face hub has them, and mds. Parquet
    and jsonl have a README.md that `datasets.load_dataset` reads. The last line that is printed loads what was written.

    \b
    datapipe export OUTPUT --format megatron --to megatron
    datapipe export OUTPUT --format mds --zstd --to mds
    datapipe export OUTPUT --format parquet --text --to texts
    """
    from datapipe.shards.datasets.write import DatasetRequest
    from datapipe.shards.export import ExportRequest
    from datapipe.shards.manifest import Snapshot, read_manifest, read_snapshot
    from datapipe.storage import Root

    if split not in (None, "train", "validation"):
        raise UserError(f"--split {split}: expected train or validation")
    root, num_bytes = Root(output), None if target_bytes is None else size_of("--target-bytes", target_bytes)
    manifest = read_manifest(root, snapshot)
    if format not in ("megatron", "parquet", "arrow", "mds", "jsonl") or (text and format in ("megatron", "arrow")):
        of_text = " --text: expected parquet, jsonl or mds" if text else ": expected megatron, parquet, arrow, mds or jsonl"
        raise UserError(f"--format {format}{of_text}")
    if zstd and format != "mds":
        raise UserError(f"--zstd requires --format mds: {format} files have a compression of their own. Leave out --zstd")
    if rows and format != "megatron":
        raise UserError(f"--rows requires --format megatron: without --text, {format} holds packed rows. Leave out --rows")
    kind = "documents" if not isinstance(manifest, Snapshot) else "text" if text else "rows"
    if format in ("mds", "jsonl") or (format == "parquet" and kind != "rows"):
        dataset = DatasetRequest(
            format=format,
            name=manifest.name,
            snapshot=manifest.fingerprint,
            kind=kind,
            source=source,
            split=split,
            target_bytes=num_bytes,
            is_compressed=zstd,
        )
        _export_dataset(root, Root(to), manifest, dataset)
    else:
        wanted = ExportRequest(format=format, source=source, split=split, target_bytes=num_bytes, rows=rows)
        _export_shards(root, read_snapshot(root, snapshot), Root(to), wanted)


def _export_shards(root: Root, snapshot: Snapshot, target: Root, wanted: ExportRequest) -> None:
    from datapipe.metrics import counted
    from datapipe.report.layout import say
    from datapipe.shards.export import export_snapshot

    exported = export_snapshot(root, snapshot, target, wanted)
    for part in exported:
        counts = f"{counted(part.sequences, 'sequence')}, {counted(part.tokens, 'token')}, {counted(len(part.files), 'file')}"
        say(f"{part.source} {part.split}: {counts}: {', '.join(part.files[:2])}{' …' if len(part.files) > 2 else ''}")
    num_files, num_tokens = sum(len(part.files) for part in exported), sum(part.tokens for part in exported)
    say(f"{masked(target.url)}: {counted(num_files, 'file')}, {counted(num_tokens, 'token')}")
    if wanted.format != "megatron":
        split = "" if exported[0].split == "train" else f', split="{exported[0].split}"'
        say(f"datapipe.loader.Loader({json.dumps(masked(target.url), ensure_ascii=False)}, batch_size=8{split})")


def _export_dataset(root: Root, target: Root, manifest: Manifest, wanted: DatasetRequest) -> None:
    from datapipe.inspect.text_export import parts_of_text
    from datapipe.metrics import counted, size
    from datapipe.report.layout import say
    from datapipe.shards.datasets.parts import parts_of_documents, parts_of_rows
    from datapipe.shards.datasets.write import loading_line, write_dataset
    from datapipe.shards.manifest import Snapshot

    if not isinstance(manifest, Snapshot):
        parts = parts_of_documents(root, manifest, wanted.source, wanted.split)
    else:
        find = parts_of_text if wanted.kind == "text" else parts_of_rows
        parts = find(root, manifest, wanted.source, wanted.split, lambda path: None)
    written = write_dataset(root, target, wanted, parts)
    noun = "row" if wanted.kind == "rows" else "document"
    for source, split, num_rows in written.rows:
        say(f"{source} {split}: {counted(num_rows, noun)}")
    num_rows = sum(count for _, _, count in written.rows)
    say(f"{masked(target.url)}: {counted(written.files, 'file')}, {size(written.bytes)}, {counted(num_rows, noun)}")
    say(loading_line(masked(target.url), target.local is None, wanted, written.splits[0]))
