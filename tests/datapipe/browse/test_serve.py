"""`datapipe browse` as a process: what it loads, what it prints, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.browsed import Browsed
from tests.support.cli_processes import COMMAND
from tests.support.command_line import datapipe

_LOADED = """
import sys
from datapipe.browse.serve import open_server
from datapipe.browse.server import Request

server = open_server(sys.argv[1], 0, lambda *told: None)
server.endpoint(Request(path=("output",)))
server.endpoint(Request(path=("documents",), query={"source": "plain", "sort": "bytes"}))
server.server_close()
print(*(name for name in ("numba", "llvmlite", "ray", "torch", "tokenizers", "matplotlib") if name in sys.modules))
"""


@pytest.mark.medium
def test_the_page_starts_and_lists_without_the_compiler_and_other_large_packages(finished: Browsed) -> None:
    command = [sys.executable, "-c", _LOADED, str(finished.folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == ""


@pytest.mark.medium
def test_the_command_prints_the_address_first_and_ends_with_ctrl_c(finished: Browsed) -> None:
    command = [*COMMAND, "browse", str(finished.folder / "out"), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with urlopen(f"{address}api/output", timeout=120) as answer:
            assert b'"documents":67' in answer.read()
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=120)
    assert (process.returncode, rest) == (130, "")
    assert "Traceback" not in told


def test_a_folder_without_a_run_ends_in_one_sentence(tmp_path: Path) -> None:
    done = datapipe(["browse", str(tmp_path), "--no-open"])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no run has left anything here" in done.stderr
