"""Every screen on a terminal of any width: no line is wider, nothing controls the terminal, and the numbers are there whole.

SCREENS, help of every command    run in this process, on a terminal that is pretended, at 40 to 120 columns
report, progress, plan            drawn from made-up runs with names of any length, with hostile ones among them
"""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from datapipe.cli.main import CLASSIFIER_COMMANDS, MIXTURES_COMMANDS, app
from datapipe.engine.events import Committed, Planned, Progress
from datapipe.engine.protocol import Attempt, Message
from datapipe.engine.watching.state import RunState
from datapipe.engine.watching.terminal import Terminal
from datapipe.machine.activity import Activity
from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.records.outputs import Content, Record
from datapipe.report.report import Report
from datapipe.report.screen import print_full, print_problem, print_screen, print_warnings
from datapipe.steps.kind import Plan, Step
from datapipe.steps.map import MapTask
from datapipe.steps.pack import PackTask
from datapipe.steps.pipeline import lay_out
from tests.support.command_line import datapipe
from tests.support.finished import composed, deduplicated, documents, grown, lengths, plain  # noqa: F401
from tests.support.reports import report

WIDTHS = (40, 53, 60, 120)
_COMMANDS = [
    [command.name or getattr(command.callback, "__name__", "").replace("_", "-")] for command in app.registered_commands
]
_GROUPS = [
    ["tokenizer"],
    ["tokenizer", "train"],
    ["classifier"],
    *(["classifier", each.__name__] for each in CLASSIFIER_COMMANDS),
    ["mixtures"],
    *(["mixtures", each.__name__] for each in MIXTURES_COMMANDS),
]
_STYLE = re.compile(r"\x1b\[[\d;]*m")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_COPIED = re.compile(r"  datapipe |    --|    from |    for |        batch|  held out: ")
"""Beginnings of lines that people copy: commands and Python."""

_HOSTILE = "<b>[red]\x1b[2J\u202eevil\x07"
_LONG = "a-source-with-a-name-as-long-as-they-become-in-real-life"


def _on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, arguments: list[str], cwd: Path | None = None) -> str:
    """What a command prints on a terminal of so many columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = datapipe(arguments, cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def check(printed: str, columns: int) -> str:
    """Checks the lines of a screen, and returns it without colours. Lines to copy stay whole, as do words."""
    shown = _STYLE.sub("", printed)
    assert not _CONTROL.search(shown), _CONTROL.findall(shown)
    lines = [line for line in shown.splitlines() if not _COPIED.match(line)]
    wide = [line for line in lines if cell_len(line.rstrip()) > columns and len(line.split()) > 1]
    assert not wide, f"wider than {columns}: {wide[0]}"
    return shown


@pytest.mark.parametrize("command", [[], *_COMMANDS, *_GROUPS], ids=" ".join)
def test_help_fits_and_is_not_cut(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ""
    for columns in WIDTHS[1:]:  # click's own lines need 50
        shown = check(_on_terminal(monkeypatch, columns, [*command, "--help"]), columns)
        assert columns < 60 or not any(line.endswith("...") for line in shown.partition("\n\n")[2].splitlines())
    assert command or all(line.endswith(".") for line in shown.partition("Commands:\n")[2].splitlines())


SCREENS = [
    "report plain/out",
    "report plain/out --full",
    "report lengths/out --full",
    "report documents/out --full",
    "report deduplicated/out --full",
    "report grown/out --full",
    "report composed/out --full",
    "report plain/out documents/out",
    "plan plain/mixture.yaml",
    "plan plain/mixture.yaml --set pack.sequence_length=32",
    "plan grown/whole/mixture.yaml --output nowhere",
    "inspect plain/out --dropped all -n 2",
    "inspect deduplicated/out --quarantined -n 9",
    "inspect deduplicated/out --clusters dedup.minhash",
    "inspect deduplicated/out --clusters all --least-alike --members 9",
    "inspect deduplicated/out --sweep filter.gopher_repetition.top_2_gram",
    'sql deduplicated/out from"clusters"',
    "snapshots grown/out",
    "snapshots composed/out",
    "clean grown/out --dry-run",
    "verify grown/out",
    "trace plain/out --step 3 --global-batch-size 4",
    "stages",
    "stages filter.gopher_repetition",
]


@pytest.mark.medium
@pytest.mark.parametrize("command", SCREENS)
def test_screen_of_a_command_fits(
    command: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in set(re.findall(r"(\w+)/", command)) - {"whole"}:
        (tmp_path / name).symlink_to(request.getfixturevalue(name))
    for columns in (40, 120):
        check(_on_terminal(monkeypatch, columns, command.split(), tmp_path), columns)


def _drawn(draw: Callable[[Console], None], columns: int) -> str:
    stream = io.StringIO()
    draw(Console(file=stream, width=columns, force_terminal=True, color_system="truecolor"))
    return check(stream.getvalue(), columns)


def _reports() -> list[Report]:
    warnings = [
        {"kind": f"kind_{number % 3}", "source": None, "text": f"source {number} {_HOSTILE} " * 5} for number in range(9)
    ]
    many = [f"{_LONG}-{number:02}" for number in range(12)]
    failed = report(["web"], status="failed", problem=f"the disk s3://KEY:SECRET@bucket/{'folder/' * 20} is full {_HOSTILE}")
    long_rules = report([_LONG, "web"], [f"rule_{number}" * (number + 1) for number in range(7)], warnings=warnings)
    hostile = report(["web", _HOSTILE], [_HOSTILE], _HOSTILE, name=_HOSTILE)
    for entry in (*hostile.sources.values(), hostile.total):
        entry.documents.quarantine_reasons[f"my:Stage: {_HOSTILE}"] = 2
        entry.counts[f"my:Stage:{_HOSTILE}"] = 3
    return [report(), report(many, warnings=warnings), failed, long_rules, hostile]


def test_reason_with_control_characters_is_whole_on_the_screen() -> None:
    full = _drawn(lambda console: print_full(_reports()[-1], console), 200)
    for label in ("filter.some:", "my:Stage: ", "my:Stage:"):
        assert f"{label}<b>[red]\\u001b[2J\\u202eevil\\u0007 " in full


@pytest.mark.medium
@pytest.mark.parametrize("number", range(5))
def test_screens_of_any_report_fit_and_have_their_numbers(number: int) -> None:
    content = _reports()[number]
    total, num_sources = content.total.documents, len(content.sources)
    for columns in WIDTHS:
        screen = _drawn(lambda console: print_screen(content, f"s3://bucket/{_LONG}", console, ("news " * 30,)), columns)
        full = _drawn(lambda console: print_full(content, console), columns)
        warned = _drawn(lambda console: print_warnings(content.warnings, console, ""), columns)
        problem = _drawn(lambda console: print_problem(content, console), columns)
        assert "SECRET" not in screen + full + problem
        assert warned.count("warning: ") == len(content.warnings)
        assert f"{total.read:,} documents" in " ".join(screen.split()) or f"of {total.read:,} document" in screen
        for entry in content.sources.values():
            read, tokens = f"{entry.documents.read:,}", f"{entry.tokens:,}"
            assert full.count(read) >= 1 and full.count(tokens) >= 1
            assert num_sources > 10 or content.status == "failed" or read in screen


@pytest.mark.parametrize("columns", WIDTHS)
def test_display_of_progress_has_a_line_for_each_step_and_worker(columns: int) -> None:
    metrics = TaskMetrics(document_counts=DocumentCounts(read=10, read_bytes=1000, kept=7))
    record = Record("web/read", "0", Content({}, metrics))
    tasks = tuple(MapTask(step="web/read", fingerprint=str(number), seed=0) for number in range(2000))
    label = f"apply dedup.exact → redact.pii → {_LONG}"
    steps = [Step(id="web/read", work=MapTask, label=label, source="web", tasks=tasks)]
    steps.append(Step(id="web/pack", work=PackTask, label="pack", source="web"))
    activity = Activity(work=f"filter.{_LONG * 3}", place="long/" * 60, key=bytes(range(16)), num_docs=80)
    state = RunState()
    terminal = Terminal(Console(file=io.StringIO(), force_terminal=True, width=columns), state)
    state.observe(Planned(plan=Plan(pipeline=lay_out({"web": []}), steps=steps), costs={}))
    attempt = Attempt(task=tasks[0], attempt="a", record=record)
    state.observe(Committed(attempts=[attempt], lags_s=[0.1], seconds=0.1))
    state.observe(Progress(messages=[Message(attempt="a", task="web/read", activity=activity, silent_s=60.0)], slots=1))
    lines = ["".join(part.text for part in line) for line in terminal.console.render_lines(terminal.display())]
    check("\n".join(lines), columns)
    assert lines[0].startswith("0 of 2 steps done"[: columns - 1])
    assert len(lines) == 4
    assert "1/2,000" in lines[1]
