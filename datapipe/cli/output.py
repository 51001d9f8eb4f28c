"""`datapipe report`, `verify` and `export`: the commands about a finished output."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datapipe.cli.options import Json, OutputFolder, SequenceLength, SnapshotName, no_mixture, print_json, show, size_of
from datapipe.credentials import masked
from datapipe.errors import UserError

if TYPE_CHECKING:
    from datapipe.report.report import Report
    from datapipe.shards.manifest import Snapshot
    from datapipe.snapshots.export.export import ExportedSplit, ExportRequest
    from datapipe.storage.root import Root


def report(
    output: OutputFolder,
    other: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="Another output to compare with.", callback=no_mixture)
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Print every reason for drops, the mixture, the time of each step, and the tokenizer."),
    ] = False,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write the report as a page.")] = None,
    as_json: Json = False,
) -> None:
    """Print the report of the last run, or compare two outputs.

    Every run also writes report.html into its output: the same with charts, one file for any browser.

    \b
    datapipe report OUTPUT --full
    datapipe report OUTPUT --html report.html
    datapipe report runs/a runs/b

    With two outputs it shows which documents only one of them keeps, and why the other does not: the ablation of two
    mixtures over the same data. Two documents are the same if source, file and position are equal. --json has everything.
    """
    if html is not None and (full or as_json or other is not None):
        raise UserError("--html FILE goes with one OUTPUT, and without --full and --json: the page has everything")
    if other is not None:
        _compare((output, other), full, as_json)
        return
    if html is not None:
        _write_page(output, Path(html))
        return
    from datapipe.report.layout import wide_console
    from datapipe.report.screen import print_full, print_problem, print_screen

    if full and as_json:
        raise UserError("--full goes without --json, which has everything")
    content, console = _of_report(output), wide_console()
    if as_json:
        sys.stdout.write(content.to_bytes().decode())
        return
    if full:
        print_full(content, console)
    else:
        print_screen(content, masked(output), console)
    print_problem(content, console)


def _of_report(output: str) -> Report:
    from datapipe.records.names import MIXTURE, REPORT
    from datapipe.report.report import read_report
    from datapipe.storage.root import Root

    try:
        return read_report(Root(output))
    except FileNotFoundError as error:
        if Root(output).exists(MIXTURE):
            raise UserError(
                f"{output}: no {REPORT} yet: the run has not ended. A run writes it when it ends, well or not. "
                f"`datapipe status {quote(output)}` shows how far it is."
            ) from error
        raise UserError(f"{output}: no {REPORT} here. Expected the output of `datapipe run`.") from error
    except ValueError as error:
        raise UserError(
            f"{output}/{REPORT}: not a report that this version can read. Run the mixture again: the run writes a new report"
        ) from error


def _write_page(output: str, file: Path) -> None:
    from datapipe.quantities import size
    from datapipe.report.html.page import report_html

    if not file.parent.is_dir() or file.is_dir() or str(file) == "-":
        raise UserError(f"--html {file}: expected a file in an existing folder, such as report.html")
    content = report_html(_of_report(output))
    file.write_bytes(content)
    show(f"{file}: {size(len(content))}; open it in a browser")


def _compare(outputs: tuple[str, str], full: bool, as_json: bool) -> None:
    from datapipe.explore.comparison import compare
    from datapipe.explore.printed import print_comparison
    from datapipe.report.layout import wide_console

    differences = compare(outputs, (_of_report(outputs[0]), _of_report(outputs[1])))
    if as_json:
        print_json({"comparison": differences.model_dump(mode="json")})
    else:
        print_comparison(differences, wide_console(), full)


def verify(
    output: OutputFolder,
    snapshot: SnapshotName = None,
    all_: Annotated[bool, typer.Option("--all", help="Every snapshot of the output.")] = False,
) -> None:
    """Compare every file of the newest snapshot with its checksum.

    It reads every file of all sequence lengths, and also compares the files with the manifest.
    """
    from datapipe.quantities import counted
    from datapipe.shards.manifest import read_snapshot
    from datapipe.shards.snapshot_folder import fingerprints
    from datapipe.snapshots.verify import verify_snapshot
    from datapipe.storage.root import Root

    root = Root(output)
    problems: list[str] = []
    for name in list(fingerprints(root)) or [None] if all_ else [snapshot]:
        manifest = read_snapshot(root, name)
        damaged = verify_snapshot(root, manifest)
        if not damaged:
            files = counted(
                len(manifest.shards) + sum(len(rows.shards) for rows in manifest.further),
                "shard" if manifest.has_tokens else "file",
            )
            show(f"{masked(root.url)}: {files}, {manifest.amount}: every byte equals what was committed")
        problems += damaged
    for problem in problems:
        show(masked(problem), "red", to_stderr=True)
    if problems:
        raise typer.Exit(1)


def export(
    output: OutputFolder,
    format: Annotated[
        str | None, typer.Option(metavar="megatron|parquet|arrow|mds|jsonl", help="The format. Leave it out with --card alone.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A new or empty folder, the folder of the same export, or hf://datasets/OWNER/NAME on the hub.",
        ),
    ] = None,
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
    card: Annotated[
        bool,
        typer.Option(
            "--card",
            help="Write the card too: README.md and croissant.json. Without --format and --to: into OUTPUT itself.",
        ),
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="With hf://: create a public data set. Default: private.")] = False,
    snapshot: SnapshotName = None,
    sequence_length: SequenceLength = None,
) -> None:
    """Write a snapshot in the format of another tool.

    Packed rows: megatron's .bin and .idx, parquet and arrow for datapipe's loader, jsonl, and mds for MosaicML streaming.
    Documents, with --text or from a run without a tokenizer: parquet and jsonl in the form of the Hugging Face hub, and
    mds. Parquet and jsonl have a README.md that `datasets.load_dataset` reads. The last printed line loads the export.

    \b
    datapipe export OUTPUT --format megatron --to megatron
    datapipe export OUTPUT --format mds --zstd --to mds
    datapipe export OUTPUT --format parquet --text --to texts
    datapipe export OUTPUT --card
    datapipe export OUTPUT --format jsonl --to hf://…

    An upload to the hub includes the card. Files that are already there are not sent again, so the same command continues
    after a kill. The token is HF_TOKEN, or that of `hf auth login`. The export is first written beside OUTPUT, and deleted
    after the upload.
    """
    from datapipe.report.card.write import report_of, write_card
    from datapipe.shards.manifest import read_snapshot, read_tokens
    from datapipe.snapshots.export.export import ExportRequest
    from datapipe.storage.root import Root

    if split not in (None, "train", "validation"):
        raise UserError(f"--split {split}: expected train or validation")
    root, num_bytes = Root(output), None if target_bytes is None else size_of("--target-bytes", target_bytes)
    manifest = read_snapshot(root, snapshot)
    if format is None and to is None and card:
        warning = write_card(root, manifest, report_of(root, manifest))
        show(masked(warning or f"{root.url}: README.md and croissant.json of snapshot {manifest.fingerprint[:12]}"))
        return
    if format is None or to is None:
        raise UserError("export: give --format and --to, or --card alone, which writes the card into OUTPUT")
    if format not in ("megatron", "parquet", "arrow", "mds", "jsonl") or (text and format in ("megatron", "arrow")):
        of_text = " --text: expected parquet, jsonl or mds" if text else ": expected megatron, parquet, arrow, mds or jsonl"
        raise UserError(f"--format {format}{of_text}")
    if zstd and format != "mds":
        raise UserError(f"--zstd requires --format mds: {format} files have their own compression. Leave out --zstd")
    if rows and format != "megatron":
        raise UserError(f"--rows requires --format megatron: without --text, {format} holds packed rows. Leave out --rows")
    is_hub = to.startswith("hf://")
    if (card or is_hub) and format not in ("parquet", "jsonl", "arrow"):
        what = "--to hf://" if is_hub else "--card"
        raise UserError(f"{what} requires --format parquet, jsonl or arrow: neither the hub nor the card knows {format}")
    if public and not is_hub:
        raise UserError("--public goes with --to hf://datasets/OWNER/NAME")
    kind = "documents" if not manifest.has_tokens else "text" if text else "rows"
    wanted = ExportRequest(
        format=format, kind=kind, source=source, split=split, target_bytes=num_bytes, rows=rows, is_compressed=zstd
    )
    if format == "megatron" or wanted.is_snapshot or sequence_length is not None:
        manifest = read_tokens(root, snapshot, sequence_length)
    if is_hub:
        _upload(root, manifest, to, wanted, not public)
    else:
        _export(root, manifest, Root(to), wanted, to.rstrip("/").rpartition("/")[2] if card else None)


def _upload(root: Root, manifest: Snapshot, url: str, wanted: ExportRequest, is_private: bool) -> None:
    from dataclasses import asdict

    from datapipe.quantities import counted, size
    from datapipe.report.card.hub import hub_target, staged, upload

    target = hub_target(url)
    request = {**asdict(wanted), "snapshot": manifest.fingerprint, "length": manifest.sequence_length}
    with staged(root, target, request, lambda folder: _export(root, manifest, folder, wanted, target.name)) as folder:
        done = upload(folder, target, is_private=is_private, emit=show)
    there = f", {counted(done.there, 'file')} there already" if done.there else ""
    gone = f", {counted(done.deleted, 'file')} of an earlier export deleted" if done.deleted else ""
    show(f"{done.url}: {counted(done.sent, 'file')} uploaded, {size(done.bytes)}{there}{gone}")
    show(f'datasets.load_dataset("{target.name}", split="train")')


def _export(root: Root, manifest: Snapshot, target: Root, wanted: ExportRequest, card_for: str | None) -> None:
    """Writes an export, with a card that reads it from `card_for`, and prints what it has."""
    from datapipe.report.card.data_files import data_files, exported_files
    from datapipe.report.card.write import card_maker
    from datapipe.snapshots.export.export import export_snapshot
    from datapipe.snapshots.export.folder import is_whole
    from datapipe.snapshots.export.parts import parts_of_documents, parts_of_rows
    from datapipe.snapshots.export.text import parts_of_text
    from datapipe.snapshots.export.write import write_dataset

    make = None if card_for is None else card_maker(root, manifest, card_for, wanted.source)
    was_whole = is_whole(target)
    if manifest.has_tokens and (wanted.format == "megatron" or wanted.is_snapshot):
        about = make and (lambda exported: make(exported, data_files(target, exported)))
        exported = export_snapshot(root, manifest, target, wanted, about)
    else:
        if not manifest.has_tokens:
            parts = parts_of_documents(root, manifest, wanted.source, wanted.split)
        else:
            find = parts_of_text if wanted.kind == "text" else parts_of_rows
            parts = find(root, manifest, wanted.source, wanted.split)
        ending: Any = "jsonl.zst" if wanted.format == "jsonl" else wanted.format
        files_of = partial(exported_files, target, ending, wanted.kind == "rows")
        about = make and (lambda schema, written: make(manifest, files_of(schema, written)))
        exported = write_dataset(root, manifest, target, wanted, parts, about)
    _print_export(target, wanted, exported, was_whole)


def _print_export(target: Root, wanted: ExportRequest, exported: list[ExportedSplit], was_whole: bool) -> None:
    from datapipe.quantities import counted, size
    from datapipe.snapshots.export.folder import RECORD
    from datapipe.snapshots.export.write import loading_line

    url = masked(target.url)
    noun = "document" if wanted.kind != "rows" else "sequence" if wanted.format == "megatron" else "row"

    def amount(rows: int, tokens: int) -> str:
        return f"{counted(rows, noun)}, {counted(tokens, 'token')}" if tokens else counted(rows, noun)

    for part in exported:
        files = f", {counted(len(part.files), 'file')}: {', '.join(part.files[:2])}" if part.files else ""
        show(f"{part.source} {part.split}: {amount(part.rows, part.tokens)}{files}{' …' if len(part.files) > 2 else ''}")
    sizes = [num_bytes for path, num_bytes in target.list_files("") if path != RECORD]
    whole = amount(sum(part.rows for part in exported), sum(part.tokens for part in exported))
    stays = ". It was whole already: nothing was written" if was_whole else ""
    show(f"{url}: {counted(len(sizes), 'file')}, {size(sum(sizes))}, {whole}{stays}")
    show(loading_line(url, target.local is None, wanted, exported[0]))
