"""Arguments and options that several commands share, and the parsing of their values."""

import dataclasses
import inspect
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import wraps
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, get_type_hints

import typer

from datapipe.credentials import masked
from datapipe.errors import UserError


def no_mixture(outputs: Any) -> Any:
    """The outputs that a command names. Raises UserError where one is a mixture, with the output of its run."""
    for url in [outputs] if isinstance(outputs, str) else outputs or ():
        if url.endswith((".yaml", ".yml")) and Path(url).is_file():
            from datapipe.config import load_mixture

            try:
                output = load_mixture(url, keep_unset=True).output
            except UserError:  # of a mixture with a mistake: the error has what is expected
                continue
            raise UserError(f"{url}: a mixture. Expected the output of its run: {output}")
    return outputs


OutputFolder = Annotated[str, typer.Argument(metavar="OUTPUT", help="The output of a run: a path or URL.", callback=no_mixture)]
MixtureFile = Annotated[Path, typer.Argument(metavar="MIXTURE.yaml", help="The mixture file; `datapipe init` writes one.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the mixture, as in --set pack.sequence_length=512"),
]
SnapshotName = Annotated[
    str | None,
    typer.Option(
        "--snapshot", metavar="DIGITS", help="The first digits of the fingerprint of a snapshot. Default: the newest snapshot."
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option("--sequence-length", min=1, metavar="N", help="For an output with several lengths: the rows of N tokens."),
]
Output = Annotated[str | None, typer.Option(metavar="URL", help="Folder or URL to write to, instead of the mixture's output.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there; warnings go to stderr.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Read at most N documents of each source, for a quick trial.")
]
TrustRecords = Annotated[
    bool, typer.Option("--trust-records", help="Keep finished tasks whose only difference is versions of libraries.")
]
Rebuild = Annotated[bool, typer.Option("--rebuild", help="Rebuild and reshuffle all rows, including those added by --follow.")]


def size_of(option: str, value: str) -> int:
    """Bytes of a size such as "64MB". Raises UserError that names the option."""
    from datapipe.config.fields import parse_size

    try:
        return parse_size(value)
    except ValueError as error:
        raise UserError(f"{option} {value}: {error}") from None


def taking(record: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command `(…, options)` an option for each field of a dataclass, whose record it gets.
    The metadata of a field are `names` and keywords of `typer.Option`. Values with the metavar SIZE
    are sizes; the command line shows the default `shown` for them."""
    types, fields = get_type_hints(record), dataclasses.fields(record)
    sizes = {
        field.name: (*field.metadata["names"], "--" + field.name.replace("_", "-"))[0]
        for field in fields
        if field.metadata.get("metavar") == "SIZE"
    }

    def parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
        named = dict(field.metadata)
        names, default = named.pop("names"), named.pop("shown", field.default)
        kind = Annotated[str | None if field.name in sizes else types[field.name], typer.Option(*names, **named)]
        return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(**given: Any) -> None:
            chosen = {field.name: given.pop(field.name) for field in fields}
            chosen |= {name: size_of(option, chosen[name]) for name, option in sizes.items() if chosen[name] is not None}
            command(**given, options=record(**chosen))

        own = inspect.signature(command, eval_str=True).parameters.values()
        several = [each for option in own for each in ([option] if option.name != "options" else map(parameter, fields))]
        listed = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in several]
        call.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in listed}
        return call

    return with_options


def share_of(option: str, value: str) -> Fraction:
    """A share such as "10%". Raises UserError that names the option."""
    from datapipe.config.fields import parse_share

    try:
        return parse_share(value)
    except ValueError as error:
        raise UserError(f"{option} {value}: {error}") from None


def show(text: str, style: str = "", *, to_stderr: bool = False) -> None:
    """Prints a text to stdout or stderr: on a terminal wrapped and in a style, elsewhere as it is."""
    from datapipe.report.layout import Screen, print_text

    print_text(text, Screen(stderr=to_stderr), style)


def print_json(data: Mapping[str, Any]) -> None:
    """Prints one JSON document. A number that JSON does not have, such as NaN, is null."""
    from pydantic_core import to_json

    print(to_json(data, indent=1, inf_nan_mode="null").decode())


def command_line() -> str:
    """This command, for a shell to run it again; without credentials."""
    return shlex.join(["datapipe", *map(masked, sys.argv[1:])])


def end_by_signals() -> None:
    """From now on SIGTERM and SIGHUP end the command as Ctrl-C does, but for one that the caller ignores, as `nohup` does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def in_background(work: Callable[[], None]) -> None:
    """Calls `work` in another thread and raises its error, so that Ctrl-C ends even a call of C++ that never checks for it."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=call, daemon=True)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def ignore_signals() -> None:
    """From now on no signal but SIGKILL changes how the command ends: its last line is printed, and its status is known."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
