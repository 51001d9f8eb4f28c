"""Connections to the servers of a service, and the health of each.

A server that fails is paused, for longer each time. pyarrow cannot cancel a call before its first
answer, so a call to a server that hangs keeps a thread until the connection breaks.
"""

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyarrow import flight

from datapipe.errors import DatapipeError, UserError
from datapipe.loader.remote.address import Address
from datapipe.loader.remote.protocol import Refusal
from datapipe.machine.retries import RetryPolicy

ANSWER_S = 30.0  # For an action: opening a snapshot of 10^5 shards takes half a second
_CHANNEL = (
    ("grpc.use_local_subchannel_pool", 1),  # else loaders of a process share a connection, and what befalls it
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # the time that an attempt gets
    ("grpc.max_reconnect_backoff_ms", 2_000),  # by default 2 minutes, for which a server that is back would not be asked
)

_POLICY = RetryPolicy(first_s=0.05, longest_s=2.0)
_WARN_AFTER_S = 10.0

T = TypeVar("T")


class ServiceWarning(UserWarning):
    """A loader waits for a service."""


class _Forks:
    """Whether this process was forked from a process with connections: gRPC hangs in it."""

    def __init__(self) -> None:
        self.is_lost = self._will_be = False
        self.replicas: weakref.WeakSet[Replica] = weakref.WeakSet()
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)

    def _before_fork(self) -> None:
        self._will_be = self.is_lost or any(replica.connection is not None for replica in list(self.replicas))

    def _in_child(self) -> None:
        self.is_lost = self._will_be

    def check(self) -> None:
        if self.is_lost:
            raise UserError(
                "this process was forked while a loader of a service had connections, which do not survive a fork. Start the "
                "workers with multiprocessing_context='spawn', as datapipe.loader.torch.dataloader does; or close the loader "
                "before."
            )


_forks = _Forks()


class Replica:
    """A server, its `failures` in a row, and the end of its pause (`not_before`)."""

    def __init__(self, location: str, address: Address) -> None:
        self.location, self._address = location, address
        self.failures, self.error, self.not_before = 0, "", 0.0
        self.connection: flight.FlightClient | None = None
        self._lock = threading.Lock()
        _forks.replicas.add(self)

    def client(self) -> flight.FlightClient:
        with self._lock:
            if self.connection is None:
                self.connection = self.new_client()
            return self.connection

    def new_client(self) -> flight.FlightClient:
        """A new connection. Raises UserError in a process in which gRPC would hang."""
        _forks.check()
        roots = {} if self._address.ca is None else {"tls_root_certs": self._address.ca}
        return flight.FlightClient(self.location, generic_options=list(_CHANNEL), **roots)

    def options(self, timeout_s: float | None = None) -> flight.FlightCallOptions:
        token = self._address.token()
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)

    def fail(self, error: str) -> None:
        self.failures += 1
        self.error = error
        self.not_before = time.monotonic() + _POLICY.pause_s(self.failures)

    def close(self) -> None:
        with self._lock:
            client, self.connection = self.connection, None
        if client is not None:
            client.close()


class Replicas:
    """The servers of an address, asked from the number `first` on: so ranks spread over them."""

    def __init__(self, address: Address, first: int) -> None:
        self.address = address
        count = len(address.locations)
        self.all = [Replica(address.locations[(first + number) % count], address) for number in range(count)]
        self._failing_since: float | None = None
        self._has_warned = self._has_answered = False

    def choose(self, other_than: Sequence[Replica] = ()) -> Replica | None:
        """The server to ask now; None while all are paused."""
        now = time.monotonic()
        free = [replica for replica in self.all if replica not in other_than and replica.not_before <= now]
        return min(free, key=lambda replica: replica.failures, default=None)

    def succeed(self, replica: Replica) -> None:
        replica.failures, replica.error, replica.not_before = 0, "", 0.0
        self._failing_since, self._has_warned, self._has_answered = None, False, True

    def wait(self) -> float:
        """Seconds until a server may be asked again. Raises DatapipeError after `wait_s` without an answer; warns before."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        failing_s = now - self._failing_since
        if failing_s >= self.address.wait_s:
            raise DatapipeError(
                f"no server of '{self.address.name}' has answered for {failing_s:.0f} s. {self._reasons()}. "
                f"Start `datapipe serve` there, or correct the address; wait_s=SECONDS in the URL changes how long is waited."
            )
        if failing_s >= _WARN_AFTER_S and not self._has_warned:
            self._has_warned = True
            text = f"no server of '{self.address.name}' has answered for {failing_s:.0f} s; waiting. {self._reasons()}"
            warnings.warn(text, ServiceWarning, stacklevel=2)
        soonest = min(replica.not_before for replica in self.all)
        return min(max(soonest - now, 0.01), self.address.wait_s - failing_s + 0.01)

    def _reasons(self) -> str:
        reasons = "; ".join(f"{replica.location}: {replica.error or 'it hangs'}" for replica in self.all)
        is_plain = self.all[0].location.startswith("grpc://")
        return reasons + " (a server with TLS closes such connections: its URL begins with grpc+tls://)" * is_plain

    def ask(self, action: str, content: bytes, read: Callable[[bytes], T]) -> T:
        """The answer to an action, of the first server that gives one. Raises what it refuses."""
        while True:
            replica = self.choose()
            if replica is None:
                time.sleep(self.wait())
                continue
            try:
                with replica.new_client() as client:  # closed at once: a process that only opens loaders may be forked
                    results = list(client.do_action(flight.Action(action, content), replica.options(ANSWER_S)))
                answer = b"".join(result.body.to_pybytes() for result in results)
            except Exception as error:
                self.handle(replica, error)
                continue
            self.succeed(replica)
            return read(answer)

    def handle(self, replica: Replica, error: BaseException, *, is_stream: bool = False) -> None:
        """Counts a failed call. Raises an error that all servers would give; a stream's snapshot may be missing at one."""
        refusal = refusal_of(error)
        elsewhere = ("busy", "draining", *(["snapshot"] if is_stream and len(self.all) > 1 else []))
        if refusal is not None and refusal.kind not in elsewhere:
            raise refusal.error() from None
        if refusal is None and not isinstance(error, (flight.FlightError, OSError, EOFError)):
            raise error
        if isinstance(error, (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError)):
            raise UserError(f"{replica.location} refuses the token, or wants one: give token_file=FILE in the URL.") from None
        text = refusal.message if refusal is not None else _shortened(error)
        for part, advice in _MISTAKES.items():
            if not self._has_answered and part in text.lower():
                raise UserError(f"{replica.location}: {advice}")
        replica.fail(text)

    def close(self) -> None:
        for replica in self.all:
            replica.close()


_UNTRUSTED = "its certificate is not trusted, or is of another host. Give ca=FILE in the URL."
_MISTAKES = {
    "certificate verify failed": _UNTRUSTED,
    "is not in peer certificate": _UNTRUSTED,
    "wrong version number": "it serves without TLS. Expected a URL that begins with grpc://.",
}
"""Parts of gRPC's errors for mistakes in a URL. The error for a server with TLS and a URL without is a closed connection."""


def refusal_of(error: Any) -> Refusal | None:
    content = getattr(error, "extra_info", None)
    return Refusal.found_in(content) if isinstance(content, bytes) and content else None


def _shortened(error: BaseException) -> str:
    text = str(error).partition(". gRPC client debug context")[0].strip() or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"
