"""`datapipe browse`: a page on loopback to look at the documents of an output."""

from __future__ import annotations

from typing import Annotated

import typer

from datapipe.cli.options import OutputFolder, end_by_signals
from datapipe.cli.sql import Memory, Spill, Threads


def browse(
    output: OutputFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; a free one by default.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
    memory: Memory = "1GiB",
    threads: Threads = 2,
    spill: Spill = "",
) -> None:
    """Look at the documents of an output in a browser.

    \b
    datapipe browse OUTPUT
    datapipe browse OUTPUT --port 8080 --no-open

    The address is printed first. The page is served on 127.0.0.1 alone, below a random token, and shows replacements instead of
    what the redactions of a source replace. To see it from another machine: ssh -L 8080:127.0.0.1:8080 HOST. Ctrl-C
    ends the command.
    """
    from datapipe.explore.database import Limits
    from datapipe.explore.endpoints import serve

    end_by_signals()
    limits = Limits(memory=memory, threads=threads, spill=spill)
    serve(output, port, opens=not no_open, say=lambda line: print(line, flush=True), limits=limits)
