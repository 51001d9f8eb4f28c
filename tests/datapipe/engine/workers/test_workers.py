"""Worker processes and their supervisors: ends and silence that are seen, nodes that are taken away, poor surroundings."""

import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from datapipe.config.execution import ExecutionSpec
from datapipe.engine.protocol import Attempt, Message
from datapipe.engine.workers import process as process_module
from datapipe.engine.workers import supervisor
from datapipe.engine.workers.process import BATCH_BYTES, WorkerProcess, allocated_bytes, is_stalled
from datapipe.engine.workers.supervisor import ReportActor, supervise
from datapipe.machine.activity import Activity
from datapipe.stage.documents import TARGET_BATCH_BYTES
from tests.support import runs
from tests.support.cli_processes import COMMAND, children, is_running, wait_until
from tests.support.empty_tasks import sample

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes and memory are found in /proc")


@pytest.fixture
def worker(tmp_path) -> Iterator[WorkerProcess]:
    made = WorkerProcess(str(tmp_path), {})
    yield made
    made.stop()


def _end(look: Callable[[], Attempt | None]) -> Attempt:
    ended: list[Attempt | None] = []
    wait_until(lambda: ended.append(look()) or ended[-1] is not None, "the end of the attempt")
    assert ended[-1] is not None
    return ended[-1]


class _Call:
    """What a worker takes for a task: loading it is a call."""

    label = "a task"

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def _silent(silent_s: float, idle_s: float, is_stopped: bool = False, **activity: Any) -> Message:
    about = {"attempt": "a", "task": "t", "activity": Activity(**activity)}
    return Message(**about, silent_s=silent_s, idle_s=idle_s, is_stopped=is_stopped)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (_silent(599, 599), False),
        (_silent(600, 600), True),
        (_silent(600, 0, num_bytes=BATCH_BYTES), True),  # a loop without end
        (_silent(600, 0, num_bytes=10 * BATCH_BYTES), False),  # one call over a bucket of rows
        (_silent(6000, 0, num_bytes=10 * BATCH_BYTES), True),
        (_silent(600, 600, num_bytes=10 * BATCH_BYTES), True),  # it does not even compute
        (_silent(9000, 9000, is_waiting=True), False),
        (_silent(600, 600, is_waiting=True, is_stopped=True), True),
    ],
)
def test_stall_is_silence_in_proportion_to_the_work_and_waiting_is_none(message, expected):
    assert is_stalled(message, 600.0) is expected
    assert BATCH_BYTES == TARGET_BATCH_BYTES


@pytest.mark.medium
@pytest.mark.parametrize(
    ("number", "kind", "cause"),
    [
        (signal.SIGSEGV, "crash", "SIGSEGV"),
        (signal.SIGRTMIN + 4, "crash", f"signal {signal.SIGRTMIN + 4}"),
        (signal.SIGTERM, "infrastructure", "SIGTERM"),
    ],
)
def test_worker_that_is_ended_by_a_signal_names_which(worker, number, kind, cause):
    worker.give(sample(), "one")
    os.kill(worker.process.pid, number)
    failure = _end(lambda: worker.next_attempt(1.0)).failure
    assert failure is not None
    assert (failure.kind, failure.cause) == (kind, cause)
    assert f"ended by {cause}. Its work: starting" in failure.message


@pytest.mark.medium
def test_worker_silence_does_not_grow_while_its_supervisor_stands_still(worker, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(process_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    os.kill(worker.process.pid, signal.SIGSTOP)
    worker.give(sample(), "one")
    worker.watch(ExecutionSpec())
    worker.watch(ExecutionSpec())  # from here on only time passes
    now[0] += 7200.0
    assert worker.watch(ExecutionSpec()) is None


@on_linux
@pytest.mark.medium
@pytest.mark.parametrize("of", ["the worker", pytest.param("a process that it started", marks=pytest.mark.slow)])
def test_worker_that_takes_more_memory_than_it_may_is_ended_and_reports_it(worker, of):
    greedy = "held = b'x' * (1 << 30); import signal; signal.pause()"
    call = _Call(exec, greedy) if of == "the worker" else _Call(subprocess.call, [sys.executable, "-c", greedy])
    worker.give(call, "one")
    failure = _end(lambda: worker.next_attempt(0.1) or worker.watch(ExecutionSpec(memory=768 << 20))).failure
    assert failure is not None
    assert (failure.kind, failure.cause) == ("memory", "memory")
    assert failure.memory_bytes > 768 << 20
    assert "execution.memory allows 805.3 MB. Its work: load the stages" in failure.message
    assert worker.process.poll() == -signal.SIGKILL


@on_linux
def test_pages_of_mapped_files_are_no_memory_that_a_process_took(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(32 << 20))
    before = allocated_bytes(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[::4096]) == 0
        assert 0 < allocated_bytes(os.getpid()) < before + (16 << 20)
    assert allocated_bytes(2**30) == 0


@on_linux
@pytest.mark.medium
def test_worker_reports_that_it_loads_the_stages_and_leaves_no_process_that_a_stage_has_started(worker):
    worker.give(_Call(subprocess.call, ["sh", "-c", "sleep 1000 & wait"]), "one")
    started: list[int] = []
    wait_until(lambda: worker.next_attempt(0.1) is not None or _grandchildren(worker.process.pid, started), "the processes")
    wait_until(lambda: _work_of(worker) == "load the stages", "the work")
    worker.stop()
    wait_until(lambda: not any(is_running(process_id) for process_id in started), f"the end of {started}")


def _work_of(worker: WorkerProcess) -> str:
    worker.watch(ExecutionSpec())
    return "" if worker.message is None or worker.message.activity is None else worker.message.activity.work


def _grandchildren(process_id: int, started: list[int]) -> bool:
    started[:] = children(process_id)
    below = [grandchild for child in started for grandchild in children(child)]
    started += below
    return bool(below)


@pytest.fixture
def no_worker_stays(monkeypatch):
    monkeypatch.setattr(supervisor, "_worker", None)
    yield
    supervisor._worker[1].stop()


class _Endless:
    """What a worker takes for a task: loading it never ends."""

    label = "a task"

    def __reduce__(self):
        return time.sleep, (1e6,)


@pytest.mark.medium
@pytest.mark.usefixtures("no_worker_stays")
def test_supervisor_whose_attempt_was_withdrawn_ends_it_and_stays_for_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "_REPORT_EVERY_S", 0.2)
    board, reports = ReportActor(), []

    def report(told) -> bool:
        reports.append(told)
        if len(reports) == 2:
            board.withdraw("one")
        return board.update("node", told)

    record, failure = supervise(_Endless(), str(tmp_path), "one", ExecutionSpec(), report)
    assert (record, failure.kind, len(reports)) == (None, "node", 2)
    assert board.latest(["one"]) == {"one": ("node", reports[1])}


@pytest.mark.medium
@pytest.mark.usefixtures("no_worker_stays")
def test_supervisor_that_gets_sigterm_gives_its_task_back_and_stays_for_the_next(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    processes = []
    for attempt in ("one", "two"):
        record, failure = supervise(
            _Endless(),
            str(tmp_path),
            attempt,
            ExecutionSpec(),
            lambda report: os.kill(report.process_id, signal.SIGTERM) is None,
        )
        processes.append((record, failure.kind, failure.message))
    assert processes == [(None, "node", "a task was given back: its supervisor got SIGTERM")] * 2
    assert signal.getsignal(signal.SIGTERM) == before


def _in_process(script: str, shell: str = "exec {command}", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a script in its own prepared process, started by `shell`."""
    script = f"from datapipe.machine.terminal import prepare_process; prepare_process()\n{script}"
    arguments = ["sh", "-c", shell.format(command='"$0" -c "$1"'), sys.executable, script]
    return subprocess.run(arguments, capture_output=True, check=False, env={**os.environ, **environment})


def test_closed_standard_streams_are_not_given_to_files(tmp_path):
    script = f"""
import os
with open({str(tmp_path / "file")!r}, "wb") as file:
    assert file.fileno() > 2, file.fileno()
    for descriptor in (1, 2):
        os.write(descriptor, b"what a library prints")
"""
    assert _in_process(script, "exec {command} <&- >&- 2>&-").returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_locale_without_unicode_does_not_stop_what_is_printed():
    locale = {"PYTHONIOENCODING": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    done = _in_process('print("read \\u2192 filter")', **locale)
    assert (done.returncode, done.stdout) == (0, b"read ? filter\n"), done.stderr


def test_limit_of_open_files_is_raised_as_far_as_it_may_be():
    hard = min(200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    script = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    done = _in_process(script, f"ulimit -Sn 50; ulimit -Hn {hard}; exec {{command}}")
    assert done.stdout.split() == [str(hard).encode()] * 2, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="folders are hidden by mounts")
def test_run_in_poor_surroundings_gives_the_bytes_of_any_run(tmp_path, corpus):
    """Another time zone, a locale of Turkish without its files, few open files, umask 077, a home that cannot be written, no
    /dev/shm, no temporary folder, stdin and stdout closed."""
    mixture, home = runs.write_mixture(tmp_path, corpus), tmp_path / "home"
    home.mkdir()
    folders = {"HOME": str(home), "TMPDIR": str(tmp_path / "absent")}
    locale = {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}
    # the kernels' cache stays where it is: compiling all of them anew takes minutes
    script = (
        f"mount -t tmpfs -o ro tmpfs {home} && mount -t tmpfs -o ro,size=4k tmpfs /dev/shm || exit 77; "
        f'umask 077; ulimit -n 64; exec "$0" "$@" <&- >&-'
    )
    arguments = ["run", str(mixture), "--workers", "2", "--output", str(tmp_path / "poor")]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, *COMMAND, *arguments],
        env={**os.environ, **folders, **locale},
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode == 77 or b"unshare" in done.stderr:
        pytest.skip("mounting is not permitted")
    assert done.returncode == 0, done.stderr.decode()
    rich = runs.run_mixture(mixture, make_engine=runs.InProcess)
    for path in (*rich.checksums, "snapshot.json"):
        assert (tmp_path / "poor" / path).read_bytes() == (tmp_path / "out" / path).read_bytes()
    assert (tmp_path / "poor/snapshot.json").stat().st_mode & 0o077 == 0
