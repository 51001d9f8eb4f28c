"""`datapipe index` and `datapipe takedown`: the rows of earlier runs that later runs compare their documents with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from datapipe.cli.options import no_mixture, show
from datapipe.credentials import masked
from datapipe.errors import UserError

if TYPE_CHECKING:
    from datapipe.storage.root import Root


def index(
    outputs: Annotated[
        list[str],
        typer.Argument(metavar="OUTPUT...", help="Outputs of runs, or indexes: paths or URLs.", callback=no_mixture),
    ],
    to: Annotated[str, typer.Option("--to", metavar="INDEX", help="Folder of the new index: a path or URL, new or empty.")],
) -> None:
    """Store the rows of dedup stages, for later runs to compare.

    Later runs drop documents that the indexed runs have seen. A dedup stage can also compare `against` the output of an
    earlier run directly, as long as that output has its work/ folder. An index is a separate folder for one output or
    several. It holds hashes and signatures of every document that reached a dedup stage, including dropped ones; for
    dedup.substring it holds passages of text.

    \b
    datapipe index runs/2023 runs/2024 --to indexes/crawls

    In the mixture of the next run:

    \b
    - dedup.minhash: {against: indexes/crawls}
    """
    from datapipe.quantities import counted, size
    from datapipe.snapshots.index.takedown import make_index
    from datapipe.snapshots.index.write import INDEX
    from datapipe.storage.root import Root

    was_there = Root(to.rstrip("/")).exists(INDEX)
    made = make_index(outputs, to)
    num_files = len({file.hash for file in made.files})
    row_bytes = sum(rows.output.bytes for rows in made.rows)
    stages = ", ".join(stage.name for stage in made.stages)
    whole = ". It was whole already: nothing was written" if was_there else ""
    show(f"{masked(to)}: {size(row_bytes)} of rows about the documents of {counted(num_files, 'file')}, for {stages}{whole}")


def takedown(
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT|INDEX", help="The output of a run, or an index that `datapipe index` made.", callback=no_mixture
        ),
    ],
    documents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOCUMENT...",
            help="SOURCE/PATH:POSITION as `inspect` prints it, the same as a JSON string, or the 32 hex digits of a key.",
        ),
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="A UTF-8 file or URL with one document a line; # begins a comment."),
    ] = None,
) -> None:
    """Take documents down from an output, or from an index.

    For an output, the command publishes a snapshot without the documents. Loaders put padding in their place, trainers move
    to the snapshot with loader.advance(), and every later snapshot leaves the documents out too. Their rows are deleted
    from the indexes of the output. Their tokens stay in the shards and in earlier snapshots;
    `datapipe export OUTPUT --format arrow --to NEW` writes the rows without them. The text stays in work/.

    For an index, the command deletes their rows, so later runs no longer compare with them. The outputs that the index was
    made of do not change.

    Documents that are not found are listed, and the exit status is 1. On an object store this covers only documents whose
    file is unknown, because a search for the others would read all shards. An index lacks documents that were dropped
    before a dedup stage, or taken down before.

    \b
    datapipe takedown runs/web web/part-0.jsonl:123
    datapipe takedown indexes/crawls --from requests.txt
    """
    from datapipe.records.names import SNAPSHOT
    from datapipe.snapshots.takedown import named_in
    from datapipe.storage.root import Root

    named = [*(documents or []), *named_in(from_file)]
    if not named:
        raise UserError("no documents. Expected DOCUMENT arguments, or a file with one document a line: --from FILE")
    root = Root(output.rstrip("/"))
    if root.exists(SNAPSHOT):
        _take_down_from_output(root, named)
    else:
        _take_down_from_index(output, named)


def _take_down_from_output(root: Root, named: list[str]) -> None:
    from datapipe.quantities import counted
    from datapipe.report.card.write import complete_about
    from datapipe.snapshots.takedown import take_down

    snapshot, done = take_down(root, named)
    note = complete_about(root, snapshot)
    for stage, num_rows in done.rows.items():
        show(f"{stage}: {counted(num_rows, 'row')} of the index deleted")
    before = f"; {done.num_before:,} were taken down before" if done.num_before else ""
    unchecked = "" if root.local is not None else ". Whether rows hold them was not checked, as this is an object store"
    show(f"{done.num_new:,} of {counted(done.num_documents, 'document')} taken down{before}{unchecked}")
    if note:
        show(note)
    if done.num_new:
        show(f"published snapshot {snapshot.fingerprint[:12]}. Trainers move with loader.advance()")
    for name, reason in done.unknown.items():
        show(f"  {name}: {reason}")
    if done.unknown:
        show("What a later run must leave out, too, belongs into the list that the mixture names: takedown: FILE")
        raise typer.Exit(1)


def _take_down_from_index(index: str, named: list[str]) -> None:
    from datapipe.quantities import counted
    from datapipe.snapshots.index.takedown import take_down

    taken_down = take_down(index, named)
    for stage, num_rows in taken_down.rows.items():
        show(f"{stage}: {counted(num_rows, 'row')} deleted")
    deleted = f"{taken_down.num_new:,} of {counted(taken_down.num_documents, 'document')} deleted"
    show(f"{deleted}; not in the index:" if taken_down.unknown else deleted)
    for name, reason in taken_down.unknown.items():
        show(f"  {name}: {reason}")
    if taken_down.unknown:
        raise typer.Exit(1)
