"""`datapipe index` and `datapipe takedown`: what later runs compare their documents with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datapipe.errors import UserError


def index(
    outputs: Annotated[list[str], typer.Argument(metavar="OUTPUT...", help="Outputs of runs, or indexes: paths or URLs.")],
    to: Annotated[str, typer.Option("--to", metavar="INDEX", help="Folder of the new index: a path or URL, empty or new.")],
) -> None:
    """Keep what dedup stages know of the documents of finished runs, to hold later runs against it.

    A run can be held `against` the output of an earlier one as it is, as long as that has its work/ folder. An index is a
    folder of its own, also of several outputs together: the hashes and signatures of every document that came to a dedup stage,
    dropped ones too, and for dedup.substring the text in passages. In the mixture of the next run:

        - dedup.minhash: {against: INDEX}
    """
    from datapipe.index.takedown import make_index
    from datapipe.report.funnel import size

    made = make_index(outputs, to)
    num_files = len({one.hash for one in made.files})
    total = sum(one.output.bytes for one in made.rows)
    print(
        f"{to}: {size(total)} of rows about the documents of {num_files:,} files, for {', '.join(s.name for s in made.stages)}"
    )


def takedown(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index that `datapipe index` made.")],
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOCUMENT...", help="SOURCE/PATH:PLACE as `inspect` shows it, or the 32 hex digits of a key."),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A file that names one document a line.")
    ] = None,
) -> None:
    """Delete documents from an index: later runs no longer know that they were ever there.

    Only the index changes. Rows about these documents are deleted from the disk, not marked; the files that hold none are not
    touched. A document that was dropped before it came to a dedup stage has no rows.
    """
    from datapipe.index.takedown import take_down

    named = [*(documents or []), *(_lines(from_file) if from_file else [])]
    if not named:
        raise UserError("give the documents to take down, or a file of them with --from.")
    done = take_down(index, named)
    for stage, rows in done.rows.items():
        print(f"{stage}: {rows:,} rows deleted")
    known = len(set(named)) - len(done.unknown)
    print(f"{known:,} of {len(set(named)):,} documents were there" + ("; these were not:" if done.unknown else ""))
    for name in done.unknown:
        print(f"  {name}")


def _lines(path: Path) -> list[str]:
    """The documents that a file names, one a line; after # a comment."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"--from {path}: {error}. Expected a text file that names one document a line.") from error
    lines = (line.partition(" #")[0].strip() for line in content.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
