"""A worker as its supervisor sees it: a process, its task, its activity, and why it ended.

    supervisor ══ socket ══ worker (`worker.py`)      tasks, and the ends of attempts
               ◀── block ──                           the activity, in shared memory (`activity.py`)
               ◀── trace ──                           the stacks of its threads when it crashes or is ended

The supervisor is the driver for local workers, and a Ray task on a node of a cluster. It alone sees how a process ended.

A worker is *silent* while it reports nothing, and *idle* while it also uses no CPU. An attempt ends as a stall when its worker
is idle for `stall_s`, or silent for `stall_s` per `BATCH_BYTES` of its work: a batch of documents has at most so many, a
bucket of rows or the sample of a tokenizer is one call over many times as many. Waiting for another process is never a stall.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

from datapipe.config.execution import ExecutionSpec
from datapipe.dataclass import replace
from datapipe.engine.protocol import Attempt, Failure, Message
from datapipe.errors import DatapipeError
from datapipe.machine.activity import BLOCK_BYTES, Activity, ActivityBlock, shared_file
from datapipe.machine.memory import kilobytes
from datapipe.quantities import size
from datapipe.steps.kind import Task


def allocated_bytes(process_id: int) -> int:
    """Memory that a process and its descendants have allocated; 0 where unknown."""
    files = [f"/proc/{each}/status" for each in (process_id, *_descendants(process_id))]
    return sum(kilobytes(file, name) << 10 for file in files for name in ("RssAnon", "RssShmem"))


BATCH_BYTES = 4 << 20  # Work that may take `stall_s`; `stage.documents.TARGET_BATCH_BYTES`
_NODE = socket.gethostname()

_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
"""Signals by which others end a process. SIGKILL is also that of the kernel where memory is full (`_num_oom_kills`)."""

LONGEST_STEP_S = 5.0
"""The most that one update adds to a silence: the driver itself may have been stopped."""

_TRACE_BYTES = 32 << 10
_TRACE_S = 2.0  # how long a stalled worker may take to write its stacks
_LONGEST_START_S = 120.0
"""A worker that imports its libraries may be silent for so long at least, on a busy machine."""

_LONGEST_END_S = 10.0  # how long a killed process may take to end. It may wait for a dead disk.


class WorkerProcess:
    """One process and its task, for the output at `url`; `environment` is added to ours."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        block, self._trace = shared_file(BLOCK_BYTES), shared_file()
        with theirs:
            descriptors = theirs.fileno(), block, self._trace
            self.process = subprocess.Popen(
                # -P: the working directory may hold another datapipe, such as a checkout, than the driver runs
                [sys.executable, "-P", "-c", f"from datapipe.engine.workers.worker import main; main{descriptors}"],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._block = ActivityBlock(block)
        os.close(block)
        self.connection = Connection(ours.detach())
        self.connection.send((sys.path, url))
        self.attempt: Attempt | None = None  # at its task
        self.message: Message | None = None
        self.is_ready = False  # it has imported its libraries
        self._oom_kills = 0  # of the machine, when it got its task
        self._seen: tuple[int, float] = (-1, 0.0)  # messages, and CPU seconds
        self._updated_at = time.monotonic()
        self._trace_text = ""

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def give(self, task: Task, attempt: str) -> None:
        self._updated_at = time.monotonic()
        self.attempt = Attempt(task=task, attempt=attempt, node=_NODE)
        self.message = Message(attempt=attempt, task=task.label, node=_NODE)
        self._oom_kills = _num_oom_kills()
        try:
            self.connection.send((pickle.dumps(task), attempt))
        except OSError:
            return  # it is gone; `receive` will find out

    def receive(self) -> Attempt | None:
        """The end of its attempt; None where the worker is gone without a task."""
        try:
            if not self.connection.poll():  # its process is gone, and it has left nothing
                raise EOFError
            if not self.is_ready:
                self.is_ready = self.connection.recv() == "ready"
                return None
            record, failure = self.connection.recv()
        except (EOFError, OSError):
            return self._lost()
        assert self.attempt is not None
        ended = replace(self.attempt, record=record, failure=failure)
        self.attempt = self.message = None
        return ended

    def next_attempt(self, timeout_s: float) -> Attempt | None:
        wait([self.connection], timeout_s)
        # A worker that forked leaves its socket open in the child when it dies, so the process is checked as well.
        return self.receive() if self.connection.poll() or not self.is_alive else None

    def _lost(self) -> Attempt | None:
        attempt, message, published = self.attempt, self.message, self._block.read()
        status = self.stop()
        if attempt is None or message is None:
            return None
        if published is not None:
            message = replace(message, activity=published[1])
        if status > 0 and not self.is_ready:
            raise DatapipeError(
                f"a worker could not start: it exited with status {status}, and its output is above. "
                f"Check that `{sys.executable} -P -c 'import datapipe.steps.run_task'` works."
            ) from None
        is_oom = status == -signal.SIGKILL and _num_oom_kills() > self._oom_kills
        return replace(attempt, failure=_failure_of_end(status, message, self._trace_text, is_oom=is_oom))

    def watch(self, limits: ExecutionSpec) -> Attempt | None:
        """Updates `message`. Ends an attempt and process that stalls or takes too much memory."""
        if self.attempt is None or self.message is None:
            return None
        now = time.monotonic()
        step_s, self._updated_at = min(now - self._updated_at, LONGEST_STEP_S), now
        self.message = self._updated(self.message, step_s)
        failure = self._excess(self.message, limits.memory) or self._stall(self.message, limits.stall_s)
        if failure is None:
            return None
        attempt = self.attempt
        self.stop()
        return replace(attempt, failure=replace(failure, details=self._trace_text))

    def _stall(self, message: Message, stall_s: float) -> Failure | None:
        if not is_stalled(message, stall_s if self.is_ready else max(stall_s, _LONGEST_START_S)):
            return None
        self._write_trace()
        return Failure(
            kind="infrastructure" if message.is_stopped else "stall",
            message=f"a worker reported nothing for {message.silent_s:,.0f} s and was ended. Its work: {state_of(message)}",
            activity=message.activity or Activity(),
            memory_bytes=message.memory_bytes,
        )

    def _excess(self, message: Message, limit: int | None) -> Failure | None:
        if limit is None or (allocated := allocated_bytes(self.process.pid)) <= limit:
            return None
        return Failure(
            kind="memory",
            message=f"a worker took {size(allocated)} of memory, and execution.memory allows {size(limit)}. "
            f"Its work: {message.activity or 'starting'}",
            cause="memory",
            activity=message.activity or Activity(),
            memory_bytes=allocated,
        )

    def _updated(self, message: Message, step_s: float) -> Message:
        count, activity = self._block.read() or (self._seen[0], message.activity)
        is_stopped, cpu_s, memory_bytes = _process_state(self.process.pid)
        is_new, has_worked = count != self._seen[0], cpu_s != self._seen[1]
        self._seen = count, cpu_s
        return replace(
            message,
            activity=activity,
            silent_s=0.0 if is_new else message.silent_s + step_s,
            idle_s=0.0 if is_new or has_worked else message.idle_s + step_s,
            memory_bytes=memory_bytes,
            is_stopped=is_stopped,
        )

    def _write_trace(self) -> None:
        if self.is_ready and self.message is not None and not self.message.is_stopped:
            self.process.send_signal(signal.SIGUSR2)
            deadline = time.monotonic() + _TRACE_S
            while os.fstat(self._trace).st_size == 0 and time.monotonic() < deadline and self.is_alive:
                time.sleep(0.01)

    def stop(self) -> int:
        if self.connection.closed:
            return self.process.poll() or 0
        if self.is_alive:  # while the connection is open: the worker ends itself when it is closed, and its children stay
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGSTOP)  # it starts no other child meanwhile
            children = _descendants(self.process.pid)
            self.process.kill()
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        self.connection.close()
        try:
            status = self.process.wait(_LONGEST_END_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        self._trace_text = os.pread(self._trace, _TRACE_BYTES, 0).decode("utf-8", "replace")
        os.close(self._trace)
        self._block.close()
        self.attempt = self.message = None
        return status


def is_stalled(message: Message, stall_s: float) -> bool:
    activity = message.activity or Activity()
    if activity.is_waiting and not message.is_stopped:
        return False
    return message.idle_s >= stall_s or message.silent_s >= stall_s * max(1.0, activity.num_bytes / BATCH_BYTES)


def state_of(message: Message) -> str:
    """The work of an attempt, in words: "filter.length on 80 documents, from a.jsonl:7; 1.2 GB of memory"."""
    activity = message.activity or "starting"
    memory = f"; {message.memory_bytes / 1e9:.1f} GB of memory" if message.memory_bytes else ""
    stopped = "; its process is stopped (SIGSTOP)" if message.is_stopped else ""
    return f"{activity}{memory}{stopped}"


def _failure_of_end(status: int, message: Message, trace: str, *, is_oom: bool) -> Failure:
    """`is_oom`: the kernel has killed a process for memory meanwhile."""
    named = {int(number): number.name for number in signal.Signals}  # without most real-time signals
    cause = named.get(-status, f"signal {-status}") if status < 0 else f"exit status {status}"
    text = f"a worker was ended by {cause}. Its work: {state_of(message)}"
    if cause == "SIGKILL":
        killed = "The kernel has killed a process for memory meanwhile, as the machine or the container had no more"
        advice = "If it happens again, run fewer --workers, or lower execution.split_bytes or execution.bucket_bytes"
        text += f". {killed if is_oom else 'It may have run out of memory'}. {advice}"
    return Failure(
        kind="infrastructure" if cause in _FROM_OUTSIDE else "crash",
        message=text,
        details=trace,
        cause="OOM" if is_oom else cause,
        activity=message.activity or Activity(),
        memory_bytes=message.memory_bytes,
    )


def _num_oom_kills() -> int:
    """Processes that the kernel has killed for memory since its start; 0 where unknown."""
    try:
        content = Path("/proc/vmstat").read_bytes()
    except OSError:
        return 0
    _, separator, rest = content.partition(b"\noom_kill ")
    return int(rest.partition(b"\n")[0]) if separator else 0


def _descendants(process_id: int) -> list[int]:
    descendants: list[int] = []
    for listed in Path(f"/proc/{process_id}/task").glob("*/children"):
        with suppress(OSError):  # the thread is gone
            for child in map(int, listed.read_text(encoding="ascii").split()):
                descendants += [child, *_descendants(child)]
    return descendants


def _process_state(process_id: int) -> tuple[bool, float, int]:
    """Whether a process is stopped, its CPU seconds and memory. Without /proc it computes."""
    fields = stat_of(process_id)
    if not fields:
        return False, time.monotonic(), 0
    state, *numbers = fields
    ticks = int(numbers[10]) + int(numbers[11])  # utime and stime
    return state in "tT", ticks / os.sysconf("SC_CLK_TCK"), int(numbers[20]) * os.sysconf("SC_PAGE_SIZE")


def stat_of(process_id: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty where the process is gone, or the system has no /proc."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
