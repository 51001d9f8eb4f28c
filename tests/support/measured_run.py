"""A `datapipe` command in its own process group, and what the driver and its workers take.

    /proc of the driver and its descendants, ten times a second ─▶ CPU, calls and bytes of reading and writing
    the files below OUTPUT, in a twentieth of the time          ─▶ their peak
    the log of events, `--log-json`                             ─▶ the step at each time ─▶ what each step takes

Steps of a mixture with one source follow each other, but for those that add up small files, so a
difference between two samples belongs to one step, or to two or three. The kernel keeps the exact
sums of a process that has ended, and of its children, until it is waited for. Only a killed command
loses what its workers did after the last sample.

No process outlives the call. Its group is killed at the end, also after Ctrl-C and SIGTERM; the
kernel kills the driver with this process, and the workers with the driver.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from datapipe.records.names import WORK

_EVERY_S = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")
_PROGRAM = """
import ctypes, os
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != {parent}:  # it ended before
    os._exit(1)
from datapipe.cli.main import main
main()
"""
BETWEEN = "between steps"
"""What happens before the first step, after the last one, and while none runs."""


@dataclass(kw_only=True)
class Usage:
    """What a step took. `core_seconds`: CPU of workers; `driver_seconds`: CPU of the driver."""

    core_seconds: float = 0.0
    driver_seconds: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    reads: float = 0.0  # calls of the system

    def add(self, other: Usage, share: float = 1.0) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + share * value)

    def beyond(self, other: Usage) -> Usage:
        """What was added since an earlier sample: never less than nothing, as a process may end between two looks at it."""
        return Usage(**{name: max(0.0, value - getattr(other, name)) for name, value in vars(self).items()})


@dataclass(kw_only=True)
class MeasuredRun:
    """What commands over one output took, one after the other."""

    wall_seconds: float = 0.0
    spent: dict[tuple[str, ...], Usage] = field(default_factory=dict)  # by the steps that ran; (): between steps
    peak_driver_bytes: int = 0
    peak_work_bytes: int = 0
    peak_output_bytes: int = 0
    was_killed: bool = False

    @property
    def total(self) -> Usage:
        total = Usage()
        for usage in self.spent.values():
            total.add(usage)
        return total

    def by_step(self, weights: Mapping[str, float]) -> dict[str, Usage]:
        """What each step took; of steps at the same time in proportion to their weights."""
        steps: dict[str, Usage] = {}
        for running, usage in self.spent.items():
            whole = sum(weights.get(step, 0.0) for step in running)
            for step in running or (BETWEEN,):
                share = weights.get(step, 0.0) / whole if whole else 1 / max(1, len(running))
                steps.setdefault(step, Usage()).add(usage, share)
        return steps


class EventLog:
    """The log of a command as far as it is written: the tasks of each step, those committed, and the steps that run."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, path.stat().st_size if path.exists() else 0
        self.tasks: dict[str, int] = {}
        self.committed: Counter[str] = Counter()
        self.running: list[str] = []

    def read(self) -> None:
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._position)
            whole, _, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + bool(whole)
        for line in whole.splitlines():
            self._note(json.loads(line))

    def _note(self, event: Mapping[str, object]) -> None:
        step = str(event.get("step"))
        match event["event"]:
            case "step_started":
                self.tasks[step] = int(str(event["tasks"]))
                self.running.append(step)
            case "step_committed":
                self.tasks[step] = int(str(event["tasks"]))
                self.running = [each for each in self.running if each != step]
            case "task_committed":
                self.committed[step] += 1


def run_measured(
    arguments: Sequence[str],
    run: MeasuredRun,
    log: Path,
    output: Path | None = None,
    kills: Callable[[EventLog], bool] = lambda events: False,
    **environment: str,
) -> None:
    """Runs a command and adds what it takes to `run`. `log`: the file of events; what is printed goes beside it. `output`: the
    folder whose files are measured. `kills`: whether the command is killed now."""
    printed, events = log.with_suffix(".printed"), EventLog(log)
    command = [sys.executable, "-c", _PROGRAM.format(parent=os.getpid()), *arguments, "--log-json", str(log)]
    started = time.monotonic()
    with open(printed, "wb") as file, _started(command, stdout=file, stderr=file, env=os.environ | environment) as process:
        before, next_walk, is_killed = Usage(), 0.0, False
        while not is_killed and not _has_ended(process.pid):
            time.sleep(_EVERY_S)
            before = _sample(process.pid, events, run, before)
            if output is not None and time.monotonic() >= next_walk:
                next_walk = _measure_files(output, run)
            is_killed = kills(events)
        if not is_killed:
            _sample(process.pid, events, run, before)
    run.wall_seconds += time.monotonic() - started
    run.was_killed |= is_killed
    if not is_killed and process.returncode:
        raise AssertionError(f"{arguments} ended with {process.returncode}:\n{printed.read_text('utf-8', 'replace')[-4000:]}")


@contextmanager
def _started(command: Sequence[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process in its own group, which is killed at the end."""
    with _interrupted_by_signals():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)  # type: ignore[call-overload]
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as Ctrl-C does, so that it cleans up."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def _has_ended(process_id: int) -> bool:
    """Whether a child has ended. It stays in /proc until it is waited for."""
    return os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _sample(driver: int, events: EventLog, run: MeasuredRun, before: Usage) -> Usage:
    """All that was taken until now; adds what is new to the steps that ran before this call."""
    running = list(events.running)
    events.read()
    now = Usage()
    for process_id in (driver, *_descendants(driver)):
        with suppress(OSError, IndexError):  # it has just ended
            own_s, children_s = _cpu_seconds(process_id)
            is_driver = process_id == driver
            now.driver_seconds += own_s if is_driver else 0.0
            now.core_seconds += children_s + (0.0 if is_driver else own_s)
            facts = _facts(f"/proc/{process_id}/io")
            now.bytes_read += facts["rchar"]
            now.bytes_written += facts["wchar"]
            now.reads += facts["syscr"]
    with suppress(OSError):
        peak = _facts(f"/proc/{driver}/status").get("VmHWM", 0) * 1024  # none of a process that has ended
        run.peak_driver_bytes = max(run.peak_driver_bytes, peak)
    run.spent.setdefault(tuple(running or events.running), Usage()).add(now.beyond(before))
    return Usage(**{name: max(value, getattr(before, name)) for name, value in vars(now).items()})


def _descendants(process_id: int) -> Iterator[int]:
    for listed in Path(f"/proc/{process_id}/task").glob("*/children"):
        with suppress(OSError):  # the thread is gone
            for child in map(int, listed.read_text(encoding="ascii").split()):
                yield child
                yield from _descendants(child)


def _cpu_seconds(process_id: int) -> tuple[float, float]:
    """CPU of a process, and of its children that it has waited for."""
    fields = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    user, system, of_children, system_of_children = map(int, fields[11:15])
    return (user + system) / _TICKS, (of_children + system_of_children) / _TICKS


def _facts(path: str) -> dict[str, int]:
    """The numbers of a file of lines "name: 17 kB"."""
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    named = (line.split(":", 1) for line in lines)
    return {name: int(rest.split()[0]) for name, rest in named if rest.split() and rest.split()[0].isdigit()}


def _measure_files(output: Path, run: MeasuredRun) -> float:
    """Measures the files below the output. Returns when to do it again."""
    started = time.monotonic()
    inodes: dict[int, int] = {}
    work = 0
    for path, state in _files(output):
        inodes[state.st_ino] = state.st_size
        is_shard = state.st_nlink > 1  # published, and still linked below work/
        work += state.st_size if path.startswith(f"{output}/{WORK}/") and not is_shard else 0
    run.peak_work_bytes = max(run.peak_work_bytes, work)
    run.peak_output_bytes = max(run.peak_output_bytes, sum(inodes.values()))
    ended = time.monotonic()
    return ended + 20 * (ended - started)


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with suppress(FileNotFoundError):  # deleted meanwhile
                state = os.stat(path)
                if stat.S_ISREG(state.st_mode):
                    yield path, state
