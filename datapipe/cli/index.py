"""`datapipe index` and `datapipe takedown`: the rows of earlier runs that later runs compare their documents with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datapipe.credentials import masked
from datapipe.errors import UserError


def index(
    outputs: Annotated[list[str], typer.Argument(metavar="OUTPUT...", help="Outputs of runs, or indexes: paths or URLs.")],
    to: Annotated[str, typer.Option("--to", metavar="INDEX", help="Folder of the new index: a path or URL, new or empty.")],
) -> None:
    """Store the rows of dedup stages, for later runs to compare.

    Later runs drop documents that the runs of the index have seen. A dedup stage can compare `against` the output of an earlier
    run directly, while that output has its work/ folder. An index is a separate folder, of one output or several. It holds
    hashes and signatures of every document that reached a dedup stage, including those that the stage dropped; for
    dedup.substring it holds passages of text.

    \b
    datapipe index runs/2023 runs/2024 --to indexes/crawls

    In the mixture of the next run:

    \b
    - dedup.minhash: {against: indexes/crawls}
    """
    from datapipe.index.takedown import make_index
    from datapipe.metrics import counted, size
    from datapipe.report.layout import say

    made = make_index(outputs, to)
    num_files = len({file.hash for file in made.files})
    row_bytes = sum(rows.output.bytes for rows in made.rows)
    stages = ", ".join(stage.name for stage in made.stages)
    say(f"{masked(to)}: {size(row_bytes)} of rows about the documents of {counted(num_files, 'file')}, for {stages}")


def takedown(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index that `datapipe index` made.")],
    documents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOCUMENT...", help="SOURCE/PATH:POSITION as `inspect` prints it, or the 32 hex digits of a key."
        ),
    ] = None,
    from_file: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="A file with one document a line.")] = None,
) -> None:
    """Delete documents from an index.

    Later runs no longer compare with them. The rows of these documents are deleted from the disk, not marked. Files without
    such rows, and the outputs that the index was made of, do not change. Documents without rows are listed, and the exit status
    is 1: the index has no such file, or the document was dropped before it reached a dedup stage, or taken down before.

    \b
    datapipe takedown indexes/crawls web/part-0.jsonl:123
    datapipe takedown indexes/crawls --from requests.txt
    """
    from datapipe.index.takedown import take_down
    from datapipe.metrics import counted
    from datapipe.report.layout import say

    named = [*(documents or []), *(_lines(from_file) if from_file else [])]
    if not named:
        raise UserError("no documents. Expected DOCUMENT arguments, or a file with one document a line: --from FILE")
    taken_down = take_down(index, named)
    for stage, num_rows in taken_down.rows.items():
        say(f"{stage}: {counted(num_rows, 'row')} deleted")
    deleted = f"{taken_down.num_deleted:,} of {counted(taken_down.num_documents, 'document')} deleted"
    say(f"{deleted}; not in the index:" if taken_down.unknown else deleted)
    for name, reason in taken_down.unknown.items():
        say(f"  {name}: {reason}")
    if taken_down.unknown:
        raise typer.Exit(1)


def _lines(path: Path) -> list[str]:
    """The documents that a file names, one a line. A comment begins with #."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"--from {path}: {error}. Expected a text file with one document a line.") from error
    lines = (line.partition(" #")[0].strip() for line in content.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
