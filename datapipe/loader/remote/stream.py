"""Steps from a service, one after another, whichever of its servers answers.

    read(steps) ─▶ a call: DoGet of the next `most_steps` steps ─▶ messages ─▶ batches
                     ├ no message for long: the same steps from a second server; the first wins
                     ├ the server fails, drains or is busy: the next step from another server
                     └ the stream has sent its steps: a new one

All servers answer a ticket with the same bytes, so any of them may win. Each call has a thread,
which waits for messages and keeps two at most; so a client that pauses makes the server wait.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.loader.batches import Batch
from datapipe.loader.remote.protocol import Refusal
from datapipe.loader.remote.replicas import Replica, Replicas, flight

STALL_S = 60.0  # A call without a message for so long is given up, even without another server
HEDGE_S = 1.0
"""A second server is asked after a wait of this length (Dean and Barroso, The Tail at Scale, 2013)."""

_MESSAGES_AHEAD = 2


class _Call:
    """A DoGet at one server. Its thread puts what comes into an inbox: (call, message), (call, error), (call, None)."""

    def __init__(self, replica: Replica, ticket: bytes, inbox: SimpleQueue[Any]) -> None:
        self.replica = replica
        self.has_answered, self.silent_s = False, 0.0
        self._ticket, self._inbox = ticket, inbox
        self._room = threading.Semaphore(_MESSAGES_AHEAD)
        self._reader: Any = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="datapipe-call", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._reader = self.replica.client().do_get(flight.Ticket(self._ticket), self.replica.options())
            while not self._is_over:
                message = self._reader.read_chunk().data
                self._inbox.put((self, message))
                self._room.acquire()
        except StopIteration:
            self._inbox.put((self, None))
        except BaseException as error:
            self._inbox.put((self, error))
        finally:
            if self._is_over and self._reader is not None:
                self._reader.cancel()
            self._reader = None

    def took(self) -> None:
        self._room.release()

    def cancel(self) -> None:
        """Ends the call. Its thread ends soon, or with the connection if the server hangs."""
        self._is_over = True
        reader = self._reader
        if reader is not None:
            reader.cancel()
        self._room.release()


class StepStream:
    """Batches of a loader by step: tickets for steps from a first one on, and their messages."""

    def __init__(
        self,
        replicas: Replicas,
        make_ticket: Callable[[int, int], bytes],
        read_message: Callable[[pa.RecordBatch], Iterable[tuple[int, Batch | Refusal]]],
        successor: Callable[[int], int | None],
        most_steps: int,
    ) -> None:
        self._replicas, self._make_ticket, self._read_message = replicas, make_ticket, read_message
        self._successor, self._most_steps = successor, most_steps
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._calls: list[_Call] = []
        self._ready: deque[tuple[int, Batch]] = deque()
        self._next: int | None = None
        self._is_stopped = False
        self._finalizer = weakref.finalize(self, _cancel, self._calls)

    def read(self, steps: Sequence[int]) -> list[Batch]:
        if self._next != steps[0]:
            self._restart(steps[0])
        while len(self._ready) < len(steps):
            self._receive()
        taken = [self._ready.popleft() for _ in steps]
        self._next = self._ready[0][0] if self._ready else self._successor(steps[-1])
        return [batch for _, batch in taken]

    def interrupt(self, is_stopped: bool) -> None:
        """True: ends all calls, and makes a thread that reads raise an error. False: reading may begin again."""
        self._is_stopped = is_stopped
        if is_stopped:
            self._inbox.put(None)
        else:
            self._restart(None)

    def _restart(self, step: int | None) -> None:
        _cancel(self._calls)
        self._inbox = SimpleQueue()
        self._ready.clear()
        self._next = step

    def _wanted(self) -> int:
        step = self._successor(self._ready[-1][0]) if self._ready else self._next
        if step is None:
            raise DatapipeError("a step past the end of the run was asked for.")
        return step

    def _receive(self) -> None:
        # how long to wait for a server, or for a message before a second server is asked, or the call given up
        if not self._calls and not self._begin():
            most_wait_s = self._replicas.wait()
        else:
            most_wait_s = STALL_S if len(self._calls) > 1 or len(self._replicas.all) == 1 else HEDGE_S
        try:
            got = self._inbox.get(timeout=most_wait_s)
        except Empty:
            self._hedge(most_wait_s)
            return
        if self._is_stopped:
            raise DatapipeError("the loader was closed.")
        if got is None or got[0] not in self._calls:
            return
        call, message = got
        if isinstance(message, BaseException):
            self._end(call)
            self._replicas.handle(call.replica, message, is_stream=True)
        elif message is None:
            self._end(call)
        else:
            self._take(call, message)

    def _take(self, call: _Call, message: pa.RecordBatch) -> None:
        for other in [other for other in self._calls if other is not call]:
            self._end(other)
            self._replicas.all.remove(call.replica)  # from now on it is asked first
            self._replicas.all.insert(0, call.replica)
        call.silent_s = 0.0
        if not call.has_answered:
            call.has_answered = True
            self._replicas.succeed(call.replica)
        for step, batch in self._read_message(message):
            if isinstance(batch, Refusal):
                self._end(call)
                if batch.kind not in ("busy", "draining"):
                    raise batch.error()
                call.replica.fail(batch.message)
                return
            if step != self._wanted():
                self._end(call)
                raise DatapipeError(f"the service sent step {step} instead of {self._wanted()}.")
            self._ready.append((step, batch))
        call.took()

    def _begin(self) -> bool:
        replica = self._replicas.choose([call.replica for call in self._calls])
        if replica is None:
            return False
        ticket = self._make_ticket(self._wanted(), self._most_steps)
        self._calls.append(_Call(replica, ticket, self._inbox))
        return True

    def _hedge(self, waited_s: float) -> None:
        """Asks a second server for the same steps, or gives up calls that were silent for long."""
        for call in self._calls:
            call.silent_s += waited_s
        if len(self._calls) == 1 and len(self._replicas.all) > 1 and self._begin():
            return
        for call in [call for call in self._calls if call.silent_s >= STALL_S]:
            call.replica.fail(f"no message for {call.silent_s:.0f} s")
            self._end(call)

    def _end(self, call: _Call) -> None:
        call.cancel()
        self._calls.remove(call)


def _cancel(calls: list[_Call]) -> None:
    for call in calls:
        call.cancel()
    calls.clear()
