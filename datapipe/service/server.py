"""The Flight server: a ticket in, a stream of record batches out. It keeps nothing for a client between requests.

    DoGet(ticket) ─▶ limits ─▶ token ─▶ order ─▶ slot ─▶ RowStream: build, send, build … ─▶ slot given back

Every error leaves here as a `Refusal`: gRPC would send a traceback, and lose a long text. Internal errors are logged.
"""

from __future__ import annotations

import threading
import time
import traceback
import weakref
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pyarrow import flight

from datapipe.errors import CorruptionError, DatapipeError, SnapshotError, UserError
from datapipe.loader.batches import BatchBuilder
from datapipe.loader.cache.cache import ReadAhead
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.prefetch import bytes_of
from datapipe.loader.remote.protocol import MESSAGE_BYTES, Kind, OpenRequest, Refusal, Ticket, Where
from datapipe.loader.remote.wire import record_batch, refusal_row, schema_of
from datapipe.service.access import Access, Client, RefusedError, Slots, host_of, is_loopback
from datapipe.service.options import ServeOptions
from datapipe.service.outputs import ServedOutput, batch_bytes

Emit = Callable[..., None]

_MIDDLEWARE = "access"
_MOST_NAME = 256

_HELD = 3
"""Messages, or batches that are larger, of which a stream holds the memory: one is built, two are sent."""


_KINDS = ("user", "snapshot", "corruption", "denied", "busy", "draining", "failed")


class ServiceFigures(CollectorRegistry):
    """Counts since the server began. Any thread may count."""

    def __init__(self, running: Callable[[], Counts[str]]) -> None:
        super().__init__(auto_describe=False)
        self._running = running
        self.streams = self._counter("streams", "Streams that began.")
        self.steps = self._counter("steps", "Batches built.", "output")
        self.bytes = self._counter("bytes", "Bytes of the batches built.", "output")
        self.seconds = self._counter("build_cpu_seconds", "CPU of building batches.", "output")
        self.refusals = self._counter("refusals", "Requests and streams that were refused.", "kind")
        for kind in _KINDS:
            self.refusals.labels(kind)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"datapipe_service_{name}", text, registry=self).set_function(value)

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        yield CounterMetricFamily("datapipe_service_cpu_seconds", "CPU of the server's process.", value=time.process_time())
        running = GaugeMetricFamily("datapipe_service_running_streams", "Streams that run.", labels=["client"])
        for client, count in self._running().items():
            running.add_metric([client], count)
        yield running

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"datapipe_service_{name}", text, labels, registry=self)


class _Asks(flight.ServerMiddleware):
    def __init__(self, authorization: str) -> None:
        self.authorization = authorization


class _Headers(flight.ServerMiddlewareFactory):
    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[Any]]) -> _Asks:
        values = headers.get("authorization") or [""]
        value = values[0]
        return _Asks(value if isinstance(value, str) else value.decode("latin-1"))


class RowStream:
    """An iterator over the messages of one DoGet. It gives its slot back when it ends, and when it is dropped."""

    def __init__(
        self,
        service: Service,
        client: Client,
        ticket: Ticket,
        builder: BatchBuilder,
        read_ahead: ReadAhead | None,
        schema: pa.Schema,
        held_bytes: int,
    ) -> None:
        self.schema, self._service, name = schema, service, object()
        announce = None if read_ahead is None else partial(read_ahead.announce, stream=name)
        self._messages = _messages(service, client, ticket, builder, schema, announce)
        leave = None if read_ahead is None else partial(read_ahead.leave, name)
        self._end = weakref.finalize(self, _end_stream, service.slots, client.name, held_bytes, leave)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._messages)
        except StopIteration:
            self._end()
            raise
        except Exception as error:
            self._messages = iter(())
            return refusal_row(self.schema, self._service.refusal_of(error))


def _end_stream(slots: Slots, client_name: str, held_bytes: int, leave: Callable[[], None] | None) -> None:
    slots.give_back(client_name, held_bytes)
    if leave is not None:
        leave()


def _messages(
    service: Service,
    client: Client,
    ticket: Ticket,
    builder: BatchBuilder,
    schema: pa.Schema,
    announce: Callable[[BatchOrder, int], None] | None,
) -> Iterator[pa.RecordBatch]:
    """The messages of a stream. Refers to no `RowStream`, which must end when gRPC drops it, not at the next collection."""
    steps, figures = builder.batch_order.steps, service.figures
    step, left, size = steps.next(ticket.first), ticket.count, 1
    while left and (steps.num_steps is None or step < steps.num_steps):
        service.check_open()
        if not service.access.still_allows(client, ticket.output):
            raise RefusedError(Refusal.of("denied", "the token may not read this output any more."))
        wanted: list[int] = []
        while len(wanted) < min(size, left) and (steps.num_steps is None or step < steps.num_steps):
            wanted.append(step)
            step = steps.advance(step, ticket.stride)
        if announce is not None:
            announce(builder.batch_order, wanted[0])
        started = time.thread_time()
        batches = builder.build_many(wanted)
        message = record_batch(schema, wanted, batches)
        num_bytes = sum(map(bytes_of, batches))
        figures.seconds.labels(ticket.output).inc(time.thread_time() - started)
        figures.steps.labels(ticket.output).inc(len(wanted))
        figures.bytes.labels(ticket.output).inc(num_bytes)
        time.sleep(service.access.pause_s(client, num_bytes))
        yield message
        left -= len(wanted)
        of_message = max(1, MESSAGE_BYTES * len(wanted) // max(1, num_bytes))
        size = min(2 * size, of_message)


class Service(flight.FlightServerBase):
    """The server of some outputs. It listens once it is made.

    Args:
        location: such as grpc://127.0.0.1:0.
        emit: gets an event and facts, for the log. Threads call it in turn.
        tls: certificates and keys, in PEM.
    """

    def __init__(
        self,
        location: str,
        outputs: Mapping[str, ServedOutput],
        options: ServeOptions,
        emit: Emit,
        tls: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.outputs, self.options, self._emit, self._lock = outputs, options, emit, threading.Lock()
        self.access = Access(options.tokens, options.client_streams, lambda problem: self.emit("problem", message=problem))
        self.slots = Slots(options.streams, options.memory_bytes)
        self.figures = ServiceFigures(self.slots.by_client.copy)
        self.is_draining = False
        super().__init__(location, tls_certificates=list(tls) or None, middleware={_MIDDLEWARE: _Headers()})

    def emit(self, event: str, **facts: Any) -> None:
        with self._lock:
            self._emit(event, **facts)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        with self._refusing():
            stream = self._stream(self._client(context), ticket.ticket)
            return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(stream.schema, stream))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        with self._refusing():
            content = action.body.to_pybytes() if action.body is not None else b""
            client = self._client(context)
            if action.type == "open":
                return [self._open(client, content)]
            if action.type == "where":
                return [self._where(client, content, context)]
            raise UserError(f"no action '{action.type[:64]}'. Expected open or where.")

    def _client(self, context: flight.ServerCallContext) -> Client:
        headers = context.get_middleware(_MIDDLEWARE)
        return self.access.client(headers.authorization if headers is not None else "", host_of(context.peer()))

    def _output(self, client: Client, name: str) -> ServedOutput:
        client.check_output(name)
        if name not in self.outputs:
            raise UserError(
                f"no output '{name}' is served here. `datapipe serve` was given {', '.join(sorted(self.outputs))[:300]}."
            )
        return self.outputs[name]

    def check_open(self) -> None:
        if self.is_draining:
            raise RefusedError(Refusal.of("draining", "the server is about to stop."))

    def _stream(self, client: Client, content: bytes) -> RowStream:
        self.check_open()
        ticket = Ticket.read(content)
        output = self._output(client, ticket.output)
        order = output.order(ticket)
        num_bytes = batch_bytes(order, ticket)
        if num_bytes > self.options.batch_bytes:
            raise UserError(
                f"a batch of this rank takes {num_bytes:,} bytes, and at most {self.options.batch_bytes:,} are served. Use "
                f"smaller batches or more ranks, or raise --batch-bytes of the server."
            )
        builder, read_ahead = output.builder(order, ticket)
        schema = schema_of(ticket.fields, ticket.dtype, ticket.mesh, order.inventory.snapshot.sequence_length)
        held_bytes = _HELD * max(num_bytes, MESSAGE_BYTES)
        self.slots.take(client, held_bytes)
        try:
            stream = RowStream(self, client, ticket, builder, read_ahead, schema, held_bytes)
        except BaseException:
            self.slots.give_back(client.name, held_bytes)
            raise
        self.figures.streams.inc()
        return stream

    def _open(self, client: Client, content: bytes) -> bytes:
        self.check_open()
        request = OpenRequest.read(content)
        output = self._output(client, request.output)
        order, step = output.open(request)
        return output.describe(order, step).to_json()

    def _where(self, client: Client, content: bytes, context: flight.ServerCallContext) -> bytes:
        output = self._output(client, content[:_MOST_NAME].decode("utf-8", "replace"))
        local = output.root.local if self.options.shares_files and is_loopback(host_of(context.peer())) else None
        return Where(snapshot=output.snapshot(None).fingerprint, files=str(local or "")).to_json()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            refusal = self.refusal_of(error)
        else:
            return
        kind = flight.FlightUnavailableError if refusal.kind in ("busy", "draining") else flight.FlightServerError
        kind = flight.FlightUnauthenticatedError if refusal.kind == "denied" else kind
        raise kind(refusal.message, extra_info=refusal.to_json())

    def refusal_of(self, error: Exception) -> Refusal:
        """The answer to a client for an error. Counts it; logs an error that is not the client's."""
        refusal = self._refusal_of(error)
        self.figures.refusals.labels(refusal.kind).inc()
        if refusal.kind in ("failed", "corruption"):
            text = "".join(traceback.format_exception(error))
            self.emit("failed", kind=refusal.kind, message=str(error), traceback=text)
        return refusal

    def _refusal_of(self, error: Exception) -> Refusal:
        if isinstance(error, RefusedError):
            return error.refusal
        kind: Kind = "user"
        if isinstance(error, SnapshotError):
            kind = "snapshot"
        elif isinstance(error, CorruptionError):
            kind = "corruption"
        elif not isinstance(error, UserError):
            what = f"{type(error).__name__}: see its log" if not isinstance(error, DatapipeError) else "see its log"
            return Refusal.of("failed", f"the server could not build the batch ({what}).")
        return Refusal.of(kind, self._without_paths(str(error)))

    def _without_paths(self, text: str) -> str:
        for output in self.outputs.values():
            for path in (output.root.url, output.root.url.partition("?")[0], str(output.root.local or "")):
                if path:
                    text = text.replace(path, output.name)
        return text
