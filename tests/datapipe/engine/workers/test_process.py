"""One worker process and its supervisor: what is seen of its end and of its silence."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from datapipe.activity import Activity
from datapipe.engine.protocol import Message
from datapipe.engine.workers import process as process_module
from datapipe.engine.workers.limits import NO_LIMITS, Limits, allocated_bytes
from datapipe.engine.workers.process import BATCH_BYTES, WorkerProcess, is_stalled
from datapipe.plan.work import SampleTask
from datapipe.stage.documents import TARGET_BATCH_BYTES
from tests.support.cli_processes import children, is_running, wait_until

TASK = SampleTask(
    step="s/sample", fingerprint="0" * 64, seed=0, before="", documents=(), fraction=1.0, validation=0.0, pattern="gpt2"
)


def _silent(silent_s: float, idle_s: float, is_stopped: bool = False, **activity) -> Message:
    return Message(
        attempt="a", task="t", activity=Activity(**activity), silent_s=silent_s, idle_s=idle_s, is_stopped=is_stopped
    )


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


def test_stall_limit_is_that_of_a_batch():
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
def test_worker_that_is_ended_by_a_signal_says_which(tmp_path, number, kind, cause):
    worker = WorkerProcess(str(tmp_path), {})
    worker.give(TASK, "one")
    os.kill(worker.process.pid, number)
    ended = []
    wait_until(lambda: ended.append(worker.next_attempt(1.0)) or ended[-1] is not None, "the end of the attempt")
    assert (ended[-1].failure.kind, ended[-1].failure.cause) == (kind, cause)
    assert f"ended by {cause}. It was at: starting" in ended[-1].failure.message


@pytest.mark.slow
def test_worker_that_is_stopped_is_seen_so_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "LONGEST_STEP_S", 1.0)
    worker = WorkerProcess(str(tmp_path), {})
    wait_until(lambda: worker.next_attempt(0.1) is None and worker.is_ready, "the start of the worker")
    os.kill(worker.process.pid, signal.SIGSTOP)
    worker.give(TASK, "one")
    ended = []
    wait_until(lambda: ended.append(worker.watch(Limits(stall_s=1.5))) or ended[-1] is not None, "the end of the attempt")
    assert ended[-1].failure.kind == "infrastructure"
    assert "stopped (SIGSTOP)" in ended[-1].failure.message
    assert worker.process.poll() == -signal.SIGKILL


@pytest.mark.medium
def test_worker_silence_does_not_grow_while_its_supervisor_stands_still(tmp_path, monkeypatch):
    worker = WorkerProcess(str(tmp_path), {})
    os.kill(worker.process.pid, signal.SIGSTOP)
    worker.give(TASK, "one")
    worker.watch(NO_LIMITS)
    worker.watch(NO_LIMITS)  # from here on only time passes
    worker._looked_at -= 7200.0
    assert worker.watch(NO_LIMITS) is None
    worker.stop()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only the kernel of Linux ends a process with its parent")
def test_worker_that_is_stopped_goes_when_its_supervisor_is_killed(tmp_path):
    script = textwrap.dedent(
        f"""
        from datapipe.engine.workers.process import WorkerProcess
        worker = WorkerProcess({str(tmp_path)!r}, {{}})
        while not worker.is_ready:
            worker.next_attempt(60)
        print(worker.process.pid, flush=True)
        import signal; signal.pause()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        worker = int(supervisor.stdout.readline())
        os.kill(worker, signal.SIGSTOP)
        supervisor.kill()
        supervisor.wait()
    wait_until(lambda: not is_running(worker), "the end of the worker")


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="memory is told by /proc")
@pytest.mark.parametrize("of", ["the worker", "a process that it started"])
def test_worker_that_takes_more_memory_than_it_may_is_ended_and_says_so(tmp_path, of):
    worker = WorkerProcess(str(tmp_path), {})
    greedy = "held = b'x' * (1 << 30); import time; time.sleep(1e6)"
    call = _Call(exec, greedy) if of == "the worker" else _Call(subprocess.call, [sys.executable, "-c", greedy])
    worker.give(call, "one")
    limits, ended = Limits(memory_bytes=768 << 20), []
    wait_until(lambda: worker.next_attempt(0.1) or ended.append(worker.watch(limits)) or ended[-1] is not None, "the end")
    assert (ended[-1].failure.kind, ended[-1].failure.cause) == ("memory", "memory")
    assert ended[-1].failure.memory_bytes > 768 << 20
    assert "execution.memory allows 805.3 MB. It was at: load the stages" in ended[-1].failure.message
    assert worker.process.poll() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="memory is told by /proc")
def test_pages_of_mapped_files_are_no_memory_that_a_process_took(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(32 << 20))
    before = allocated_bytes(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[::4096]) == 0
        assert 0 < allocated_bytes(os.getpid()) < before + (16 << 20)
    assert allocated_bytes(2**30) == 0


class _Call:
    """What a worker takes for a task: loading it is a call."""

    label = "a task"

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.medium
def test_worker_that_never_ends_loading_the_stages_says_so(tmp_path):
    worker = WorkerProcess(str(tmp_path), {})
    worker.give(_Call(time.sleep, 1e6), "one")
    wait_until(lambda: worker.next_attempt(0.1) is not None or _work_of(worker) == "load the stages", "the work")
    worker.stop()


def _work_of(worker: WorkerProcess) -> str:
    worker.watch(NO_LIMITS)
    return "" if worker.message is None or worker.message.activity is None else worker.message.activity.work


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="processes of a stage are found in /proc")
def test_worker_that_is_ended_leaves_no_process_that_a_stage_has_started(tmp_path):
    worker = WorkerProcess(str(tmp_path), {})
    shell = ["sh", "-c", "sleep 1000 & wait"]
    worker.give(_Call(subprocess.call, shell), "one")
    started: list[int] = []
    wait_until(lambda: worker.next_attempt(0.1) is not None or _grandchildren(worker.process.pid, started), "the processes")
    worker.stop()
    wait_until(lambda: not any(is_running(process_id) for process_id in started), f"the end of {started}")


def _grandchildren(process_id: int, started: list[int]) -> bool:
    started[:] = children(process_id)
    below = [grandchild for child in started for grandchild in children(child)]
    started += below
    return bool(below)
