"""Runs the `datapipe` command in this process, which saves starting an interpreter for commands that only read.

A command that runs a mixture or a user's code, and one that is killed, runs in its own process (`cli_processes.py`).
"""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from unittest.mock import patch

import typer

from datapipe.cli.main import main

_get_command = cache(typer.main.get_command)
"""Reads the signatures of all commands once, not in each call."""


def datapipe(arguments: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `datapipe ARGUMENTS` in `cwd`. Returns its exit status and output."""
    output, errors = io.StringIO(), io.StringIO()
    on_terminate = signal.getsignal(signal.SIGTERM)
    status = 0
    try:
        with (
            chdir(cwd or os.getcwd()),
            patch.object(sys, "argv", ["datapipe", *arguments]),
            patch.object(typer.main, "get_command", _get_command),
            redirect_stdout(output),
            redirect_stderr(errors),
        ):
            main()
    except SystemExit as ended:
        status = int(ended.code or 0)
    finally:
        signal.signal(signal.SIGTERM, on_terminate)
    return subprocess.CompletedProcess(["datapipe", *arguments], status, output.getvalue(), errors.getvalue())
