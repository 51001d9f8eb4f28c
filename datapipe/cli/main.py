"""The command line: its commands, error messages and exit status.

| status | what happened | such as |
|---|---|---|
| 0 | done | |
| 1 | the command failed | the code of a stage, a crash, a stall, `max_quarantined`, `max_dropped` |
| | | a full disk, a disk or store that does not answer, damage of files that datapipe wrote, a defect |
| 2 | what the user gave is wrong | an option, a key of the mixture, the name of a field, a malformed URL |
| | | a file, index or tokenizer that does not exist, may not be read or does not fit |
| | | an output that another run is using: wait for it, also for a minute after it was killed on an object store |
| | | an input file that is damaged, or changes during the run |
| 130 | stopped by Ctrl-C, SIGTERM or SIGHUP | |

The class of an error decides, wherever it is found: UserError ends with 2, every other error with 1
(`errors.py`). Errors are plain lines on stderr, and the last one is the reason. Tracebacks go to a
file. A command is one function in a module of this package that calls the package that does the work.
"""

import sys
import tempfile
import traceback
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from datapipe.cli.explore import browse, inspect, sql
from datapipe.cli.index import index, takedown
from datapipe.cli.loader import loader_bench, serve, trace
from datapipe.cli.mixtures import SEARCH, fit, propose
from datapipe.cli.options import show
from datapipe.cli.output import export, report, verify
from datapipe.cli.run import bench, init, plan, run
from datapipe.cli.snapshots import clean, snapshots, status
from datapipe.cli.stages import schema, stages
from datapipe.cli.training import annotate, evaluate, tokenizer_train, train
from datapipe.credentials import masked
from datapipe.errors import DatapipeError, exit_status_of
from datapipe.machine.terminal import prepare_process
from datapipe.storage.outages import Outage, OutageError, outage_of, refusal_of

app = typer.Typer(
    name="datapipe",
    help="Turn raw corpora into training batches, from one mixture file: resumable, and the same bytes on any machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_UNLIMITED = 1000
COMMANDS = (
    *(init, run, status, plan, bench, report, inspect, browse, sql, verify, snapshots, clean),
    *(export, serve, trace, loader_bench, index, takedown, stages, schema),
)
CLASSIFIER_COMMANDS = (train, annotate, evaluate)
MIXTURES_COMMANDS = (propose, fit)


_NOT_LOADED = "failed to map segment from shared object"
"""Of the ImportError of a library that finds no room in memory."""


class _Command(TyperCommand):
    """A command of which the list of commands shows the whole first sentence, on two lines where one is too short. An
    interrupted command ends with a line, which Typer would leave out."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            _fail("stopped", exit_status_of(error), style="")

    def get_short_help_str(self, limit: int = 45) -> str:
        return super().get_short_help_str(_UNLIMITED)


for command in COMMANDS:
    app.command(cls=_Command)(command)

tokenizer_app = typer.Typer(help="Tokenizers without a mixture.", no_args_is_help=True, rich_markup_mode=None)
tokenizer_app.command("train", cls=_Command)(tokenizer_train)
app.add_typer(tokenizer_app, name="tokenizer")

classifier_app = typer.Typer(help="Classifiers of text.", no_args_is_help=True, rich_markup_mode=None)
for command in CLASSIFIER_COMMANDS:
    classifier_app.command(cls=_Command)(command)
app.add_typer(classifier_app, name="classifier")

mixtures_app = typer.Typer(help=SEARCH, short_help="The weights of a mixture.", no_args_is_help=True, rich_markup_mode=None)
for command in MIXTURES_COMMANDS:
    mixtures_app.command(cls=_Command)(command)
app.add_typer(mixtures_app, name="mixtures")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"datapipe {version('datapipe')}")
        raise typer.Exit


@app.callback()
def _every_command(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point. Turns errors into plain lines and an exit status."""
    prepare_process()
    try:
        app()
    except OutageError as error:
        _fail(_out_of_order(error.outage), exit_status_of(error))
    except DatapipeError as error:
        _fail(str(error), exit_status_of(error))
    except Exception as error:
        if (refusal := refusal_of(error)) is not None:
            _fail(f"{refusal}, and run the same command again", 2)
        _fail(_unexpected(error), 1)


def _fail(message: str, status: int, style: str = "red") -> NoReturn:
    show(f"datapipe: {masked(message)}", style, to_stderr=True)
    sys.exit(status)


def _out_of_order(outage: Outage) -> str:
    return f"{outage}. Run the same command again when that has changed"


def _unexpected(error: Exception) -> str:
    """A message for an unexpected error. The traceback goes to a file, but for an outage."""
    outage = outage_of(error, "")
    if outage is not None:
        return _out_of_order(outage)
    lacks_memory = isinstance(error, MemoryError) or _NOT_LOADED in str(error)
    refused = "Memory does not suffice" if lacks_memory else "The operating system refused it"
    cause = refused if lacks_memory or isinstance(error, OSError) else "This is a defect of datapipe"
    text = masked("".join(traceback.format_exception(error)))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="datapipe-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.write(text)
    except OSError:  # there is no folder for temporary files, or it is full
        return f"{text}{type(error).__name__}: {error}\n{cause}; the traceback is above"
    return f"{type(error).__name__}: {error}\n{cause}; the traceback is in {file.name}"
