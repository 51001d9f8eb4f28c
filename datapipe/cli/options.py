"""Arguments and options that several commands share, and the parsing of their values."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from datapipe.errors import UserError

OutputFolder = Annotated[str, typer.Argument(metavar="OUTPUT", help="The output of a run: a path or URL.")]
MixtureFile = Annotated[Path, typer.Argument(metavar="MIXTURE.yaml", help="The mixture file; `datapipe init` writes one.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the mixture, as in --set pack.sequence_length=512"),
]
SnapshotName = Annotated[
    str | None, typer.Option("--snapshot", metavar="DIGITS", help="The first digits of its fingerprint; the newest by default.")
]
Output = Annotated[str | None, typer.Option(metavar="URL", help="Folder or URL to write to, instead of the mixture's output.")]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Read at most N documents of each source, for a quick trial.")
]


def size_of(option: str, value: str) -> int:
    """Bytes of a size such as "64MB". Raises UserError that names the option."""
    from datapipe.config.units import parse_size

    try:
        return parse_size(value)
    except ValueError as error:
        raise UserError(f"{option} {value}: {error}") from None


def end_by_signals() -> None:
    """From now on SIGTERM and SIGHUP end the command as Ctrl-C does, but for one that the caller ignores, as `nohup` does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def ignore_signals() -> None:
    """From now on no signal but SIGKILL changes how the command ends: its last words are said, and its status is known."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
