"""A server: it listens, becomes ready, and drains before it ends.

Running ── Service (Flight) ── StatusServer
   └ SIGTERM ─▶ drain: no new requests; streams end at a step, and their clients continue elsewhere
"""

import errno
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from types import FrameType

from prometheus_client import Gauge
from prometheus_client.registry import Collector

from datapipe.errors import UserError
from datapipe.loader.field_table import FIELDS
from datapipe.loader.loader import Loader
from datapipe.loader.options import LoaderOptions
from datapipe.machine.http_server import HttpAnswer, MetricsServer
from datapipe.service.access import is_loopback
from datapipe.service.options import ServeOptions
from datapipe.service.outputs import ServedOutput, named_outputs
from datapipe.service.server import Emit, Service

_LAST_S = 5.0
_OUTPUTS_S = 10.0  # the time for which the answer is kept whether all outputs are there
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Running:
    """A server that runs. `outputs` are as the user gave them: NAME=OUTPUT, or OUTPUT."""

    def __init__(self, outputs: Sequence[str], options: ServeOptions, emit: Emit = lambda event, **facts: None) -> None:
        _check(options)
        self.options, self._pems = options, _certificates(options)
        cache = LoaderOptions(cache_bytes=options.cache_bytes, cache_folder=options.cache_folder)
        self.outputs = {name: ServedOutput(name, url, cache) for name, url in named_outputs(outputs).items()}
        self._missing: Mapping[str, str] = {}
        self._probe_at = 0.0
        for output in self.outputs.values():
            _warm(output)
        if options.port:
            _check_free(options.host, options.port)
        self.service = Service(self._location(options.port), self.outputs, options, emit, self._pems)
        self.port: int = self.service.port
        self.figures, self._emit, self._slots = self.service.figures, self.service.emit, self.service.slots
        self.status: StatusServer | None = None
        if options.status_port is not None:
            ready = Gauge("datapipe_service_ready", "Whether requests are answered.", registry=self.figures)
            ready.set_function(lambda: not self.why_not_ready())
            try:
                self.status = StatusServer(options.host, options.status_port, self.figures, self.why_not_ready).start()
            except UserError:
                self.close()
                raise

    @property
    def location(self) -> str:
        return self._location(self.port)

    def _location(self, port: int) -> str:
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"{'grpc+tls' if self._pems else 'grpc'}://{host}:{port}"

    def why_not_ready(self) -> str:
        if self.service.is_draining:
            return "the server is about to stop"
        if time.monotonic() >= self._probe_at:
            missing = {name: why for name, output in self.outputs.items() if (why := _why_missing(output))}
            if missing != self._missing:
                self._emit("outputs", missing=missing)
            self._missing, self._probe_at = missing, time.monotonic() + _OUTPUTS_S
        return "; ".join(f"{name}: {why}" for name, why in self._missing.items())

    def drain(self) -> None:
        """Takes no more requests, and waits until the running streams have ended, for `drain_s` at most."""
        self.service.is_draining = True
        self._emit("draining", streams=self._slots.num_streams)
        deadline = time.monotonic() + self.options.drain_s
        while self._slots.num_streams and time.monotonic() < deadline:
            time.sleep(0.05)
        self._emit("drained", streams=self._slots.num_streams)

    def close(self) -> None:
        self.service.is_draining = True
        shutdown = threading.Thread(target=self.service.shutdown, name="datapipe-shutdown", daemon=True)
        shutdown.start()  # it returns after the last request
        deadline = time.monotonic() + _LAST_S
        while shutdown.is_alive() and time.monotonic() < deadline:
            _end_connections(self.port)
            shutdown.join(0.1)
        if self.status is not None:
            self.status.close()
        self._emit("stopped")


def _why_missing(output: ServedOutput) -> str:
    try:
        return "" if output.root.exists("snapshot.json") else "its snapshot is gone"
    except OSError:
        return "its disk or store does not answer"


def _end_connections(port: int) -> None:
    """Shuts down connections at a port: gRPC waits for clients that do not read, for ever."""
    with suppress(OSError):  # of a system without /proc
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as copy:
                        is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
                        if is_tcp and copy.getsockname()[1] == port:
                            copy.getpeername()  # OSError for the socket that listens
                            copy.shutdown(socket.SHUT_RDWR)


def serve(outputs: Sequence[str], options: ServeOptions, print_line: Callable[[str], None], emit: Emit) -> None:
    """Serves until SIGTERM, SIGINT or SIGHUP, then drains; a second signal ends it at once."""
    stop = threading.Event()
    with _signals(stop):
        running = Running(outputs, options, emit)
        try:
            for name in running.outputs:
                print_line(f"serving {running.location}/{name}")
            if running.status is not None:
                print_line(f"status  http://{options.host}:{running.status.port}/readyz")
            emit("ready", location=running.location, outputs=sorted(running.outputs))
            _notify("READY=1")
            while not stop.wait(0.5):
                pass
            _notify("STOPPING=1")
            stop.clear()
            draining = threading.Thread(target=running.drain, daemon=True)
            draining.start()
            while draining.is_alive() and not stop.wait(0.05):
                pass
        finally:
            running.close()


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    def set_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, set_stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _notify(state: str) -> None:
    """Notifies systemd (`Type=notify`)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.connect("\0" + address[1:] if address.startswith("@") else address)
            sending.sendall(state.encode())


def _check(options: ServeOptions) -> None:
    if (options.certificate is None) != (options.key is None):
        raise UserError("--tls-cert and --tls-key: give both files, or none.")
    if options.tokens is not None and options.certificate is None and not is_loopback(options.host):
        raise UserError(
            f"--tokens without TLS on {options.host}: anyone on the way could read the tokens. Give --tls-cert and "
            f"--tls-key, or listen on 127.0.0.1."
        )


def _check_free(host: str, port: int) -> None:
    """Raises UserError for a port in use: the error of Flight gives no reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            why = "another process listens there" if taken else str(error)
            raise UserError(f"--host {host} --port {port}: {why}. Give another one; --port 0 takes a free port.") from error


def _certificates(options: ServeOptions) -> list[tuple[bytes, bytes]]:
    if options.certificate is None or options.key is None:
        return []
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.certificate, options.key)
        return [(options.certificate.read_bytes(), options.key.read_bytes())]
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or getattr(error, "reason", "") or type(error).__name__
        raise UserError(
            f"--tls-cert {options.certificate} --tls-key {options.key}: {why}. Expected a certificate and its key in PEM."
        ) from error


def _warm(output: ServedOutput) -> None:
    """Reads the newest snapshot and builds a batch, so that a ready server answers at once."""
    output.snapshot(None)
    loader = Loader(output.root.url, global_batch_size=1, rank=0, world_size=1, fields=tuple(FIELDS), cache_bytes=0)
    if loader.num_steps != 0:
        loader.batch(0)
    loader.close()


class StatusServer(MetricsServer):
    """GET /healthz: 200 while the process answers. /readyz: 200 while requests are answered; else 503, and why. /metrics."""

    def __init__(self, host: str, port: int, collector: Collector, why_not_ready: Callable[[], str]) -> None:
        super().__init__(host, port, f"--status-port {port}", collector)
        self._why_not_ready = why_not_ready

    def answer(self, target: str, body: bytes | None) -> HttpAnswer:
        path = target.partition("?")[0]
        if path == "/healthz":
            return HttpAnswer(content=b"ok\n")
        if path == "/readyz":
            why = self._why_not_ready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
            return HttpAnswer(content=f"{why or 'ready'}\n".encode(), status=status)
        return super().answer(target, body)
