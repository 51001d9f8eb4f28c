"""`datapipe status --watch` of runs that go on, end, and cannot be read for a while."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from datapipe.watching.watch import watch


def _status(state: str = "running", committed: int = 0, **facts: Any) -> dict[str, Any]:
    step = {"step": "web/read", "title": "web: read", "state": "running", "tasks": 4, "committed": committed}
    who = {"state": state, "outcome": state, "process": "7 on here", "holder": "7 on here", "started": 0.0}
    counts = {"steps": [step], "documents": {}, "num_running": 0, "slots": 2, "queued": 0, "seconds_left": 65.0}
    rest = {"running": [], "waiting": [], "failures": {}, "last_failure": "", "said": [], "is_least": False}
    return {**who, **counts, **rest, **facts}


def _watched(*looks: dict[str, Any] | OSError, terminal: bool = False) -> tuple[int, str]:
    """The exit status, and what was printed."""
    stream, waiting = io.StringIO(), iter(looks)

    def read() -> dict[str, Any]:
        look = next(waiting)
        if isinstance(look, OSError):
            raise look
        return look

    status = watch(read, "out", 2.0, Console(file=stream, force_terminal=terminal, width=100), lambda seconds: None)
    assert next(waiting, None) is None
    return status, stream.getvalue()


def test_on_a_pipe_a_line_is_printed_when_something_changed_and_the_exit_status_is_that_of_the_run() -> None:
    failing = _status(committed=1, failures={"task": 2}, seconds_left=None)
    looks = (_status(), _status(seconds_left=60.0), _status(committed=1), failing, _status("stopped", exit_status=130))
    status, printed = _watched(*looks)
    assert status == 130
    assert printed.splitlines() == [
        "out: 0 of 1 step done; web: read 0/4; about 1:05 left",
        "out: 0 of 1 step done; web: read 1/4; about 1:05 left",
        "out: 0 of 1 step done; web: read 1/4; 2 failed attempts",
        "out: stopped. Run the same command again to go on",
    ]


def test_on_a_terminal_the_screen_is_shown_to_its_end() -> None:
    status, printed = _watched(_status(), _status("finished", exit_status=0), terminal=True)
    assert status == 0
    assert "0 running in 2 slots; 0 tasks in the queue" in printed
    assert "out: finished" in printed


def test_a_run_that_ends_between_two_files_is_not_killed_and_one_that_nobody_holds_is() -> None:
    finished = _status("finished", exit_status=0)
    assert _watched(_status(), _status("killed"), finished) == (
        0,
        "out: 0 of 1 step done; web: read 0/4; about 1:05 left\nout: finished\n",
    )
    status, printed = _watched(_status("killed"), _status("killed"))
    assert status == 3
    assert "killed: process 7 on here is gone without a word" in printed


def test_a_store_that_does_not_answer_is_told_and_asked_again() -> None:
    status, printed = _watched(TimeoutError("timed out"), _status("failed", exit_status=1))
    assert status == 1
    assert printed.splitlines() == ["out: cannot be read now: timed out", "out: failed: failed"]
