"""URLs of outputs on a service, what a client and a server send each other, and what a reader gets from servers that fail."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from datapipe.errors import CorruptionError, DatapipeError, SnapshotError, UserError
from datapipe.loader.remote import stream as stream_module
from datapipe.loader.remote.address import Address, is_service
from datapipe.loader.remote.protocol import (
    MOST_MESSAGE_CHARS,
    MOST_REQUEST_BYTES,
    OpenRequest,
    Refusal,
    Ticket,
    is_name,
)
from datapipe.loader.remote.replicas import Replicas
from datapipe.loader.remote.stream import StepStream
from datapipe.loader.remote.wire import read_batches, record_batch, refusal_row, schema_of
from datapipe.loader.share import Mesh

pytestmark = pytest.mark.medium


def test_an_address_names_servers_and_an_output(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("ca")
    (tmp_path / "token").write_text("secret\n")
    url = f"grpc+tls://a,b:1,[::1]:2/runs/web?ca={tmp_path}/ca.pem&token_file={tmp_path}/token&wait_s=1.5"
    address = Address.parse(url)
    assert address.locations == ("grpc+tls://a:8815", "grpc+tls://b:1", "grpc+tls://[::1]:2")
    assert (address.name, address.ca, address.token(), address.wait_s) == ("runs/web", b"ca", "secret", 1.5)
    assert "secret" not in repr(address)
    (tmp_path / "token").write_text("another")
    assert address.token() == "another"
    (tmp_path / "token").write_text("two words")
    with pytest.raises(UserError, match="expected one token"):
        address.token()


def test_only_the_schemes_of_a_service_are_one() -> None:
    assert all(map(is_service, ("grpc://a/x", "grpc+tls://a/x")))
    assert not any(is_service(url) for url in ("runs/x", "s3://a/x", "grpc", "grpcs://a/x", "file:///x"))


@pytest.mark.parametrize(
    "url",
    [
        *("grpc://a:b/x", "grpc://a:70000/x", "grpc:///x", "grpc://a,/x", "grpc://a/x?wait_s=soon", "grpc://a/x?wait_s=-1"),
        *("grpc://a/x?token=secret", "grpc://a/..", "grpc://t:secret@a/x"),
    ],
)
def test_a_url_that_is_wrong_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(UserError) as told:
        Address.parse(url)
    assert "secret" not in str(told.value)


TICKET: dict[str, Any] = {
    "output": "runs/web",
    "snapshot": "0" * 32,
    "seed": 3,
    "window": 0,
    "lineage": "{}",
    "mesh": {"data_rank": 0, "data_size": 1},
    "fields": ["input_ids"],
    "first": 5,
}


def test_a_ticket_is_read_as_it_was_written() -> None:
    mesh = Mesh(data_rank=3, data_size=8, layout="zigzag", context_size=2)
    ticket = Ticket(**{**TICKET, "mesh": mesh}, skip=[(3, 5)], mixture={"a": 1, "b": 0.5})
    assert Ticket.read(ticket.to_json()) == ticket


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("output", ["../web", "/web", "web/", "a" * 300]),
        ("snapshot", ["0" * 31 + "G"]),
        ("first", [-1, 1 << 48, "5"]),
        ("count", [0]),
        ("seed", [0.5]),
        ("mesh", [None, {"data_rank": 0}]),
        ("fields", [["x"] * 33, ["x" * 65]]),
        ("dtype", ["float64"]),
        ("pad_cu_seqlens", [-1]),
        ("lineage", [None]),
        ("v", [1]),
        ("path", ["/etc/passwd"]),
    ],
)
def test_a_ticket_of_another_form_is_refused_with_the_place(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UserError, match=f"^ticket: {field}"):
            Ticket.read(json.dumps({**TICKET, field: value}).encode())


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"null", b"[" * 8_000, b'{"first":', b"{}" + b" " * MOST_REQUEST_BYTES]
)
def test_what_is_no_ticket_is_refused(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^ticket"):
        Ticket.read(content)


def test_a_request_takes_the_options_of_a_loader() -> None:
    for mixture in ({"a": 1, "b": 0.5, "c": Fraction(1, 3)}, [(100, {"a": 1}), (None, {"b": np.float32(0.1)})]):
        request = OpenRequest(output="x", global_batch_size=1, mixture=mixture, skip=[(3, 5)], skip_documents=["a"])
        assert OpenRequest.read(request.to_json()) == request


def test_refusals_are_short_and_become_the_errors_of_a_local_loader() -> None:
    long = Refusal.of("user", "x" * 5_000)
    assert len(long.message) == MOST_MESSAGE_CHARS
    assert Refusal.found_in(long.to_json()) == long
    errors = {"user": UserError, "denied": UserError, "snapshot": SnapshotError, "corruption": CorruptionError}
    for kind, error in {**errors, "failed": DatapipeError}.items():
        assert type(Refusal.of(kind, "why").error()) is error  # type: ignore[arg-type]
    assert Refusal.found_in(b"{") is None


def test_names_are_parts_between_slashes() -> None:
    assert all(is_name(name) for name in ("a", "runs/web", "a.b-c_d/0"))
    assert not any(is_name(name) for name in ("", "/a", "a/", "a//b", "../a", "a/..", ".a", "a b", "ä", "a\n"))


WIRE_FIELDS = ("input_ids", "cu_seqlens", "document_keys", "max_seqlen", "step")


def wire_batch(step: int, rows: int, runs: int) -> dict[str, Any]:
    generator = np.random.default_rng(step)
    return {
        "input_ids": generator.integers(0, 1 << 20, (rows, 8)),
        "cu_seqlens": generator.integers(0, 99, runs).astype(np.int32),
        "document_keys": generator.integers(0, 255, (runs, 16)).astype(np.uint8),
        "max_seqlen": int(generator.integers(99)),
        "step": step,
    }


def there_and_back(batches: dict[int, dict[str, Any]]) -> dict[int, Any]:
    schema = schema_of(WIRE_FIELDS, "int64", MESH, 8)
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(record_batch(schema, list(batches), list(batches.values())))
        received = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
    return dict(read_batches(received, WIRE_FIELDS, MESH, 8))


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], strict=True)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=6))
def test_batches_of_any_sizes_come_back(sizes: list[tuple[int, int]]) -> None:
    batches = {7 + number: wire_batch(number, *size) for number, size in enumerate(sizes)}
    found = there_and_back(batches)
    assert list(found) == list(batches)
    for step, expected in batches.items():
        assert_equal(expected, found[step])


def test_neighbours_in_memory_are_sent_without_a_copy() -> None:
    rows = np.arange(64).reshape(8, 8)
    batches = [{"input_ids": rows[:3]}, {"input_ids": rows[3:]}]
    message = record_batch(schema_of(("input_ids",), "int64", MESH, 8), [0, 1], batches)
    assert message.column("input_ids").values.buffers()[1].address == rows.ctypes.data
    apart = [batches[1], batches[0]]
    message = record_batch(schema_of(("input_ids",), "int64", MESH, 8), [0, 1], apart)
    assert message.column("input_ids").values.to_pylist() == [*range(24, 64), *range(24)]


def test_a_refusal_ends_a_stream() -> None:
    schema = schema_of(WIRE_FIELDS, "int64", MESH, 8)
    refused = refusal_row(schema, Refusal.of("draining", "the server is about to stop."))
    [(step, told)] = read_batches(refused, WIRE_FIELDS, MESH, 8)
    assert (step, told) == (-1, Refusal(kind="draining", message="the server is about to stop."))


FIELDS, MESH = ("input_ids", "step"), Mesh(data_rank=0, data_size=1)
SCHEMA = schema_of(FIELDS, "int64", MESH, 4)


def batch(step: int) -> dict[str, Any]:
    return {"input_ids": np.full((2, 4), step), "step": step}


class Fake(flight.FlightServerBase):
    """A server of batches that tell their step.

    Attributes:
        asked: the first steps of its tickets.
        before: called before the message of a step; may wait, raise, or return a refusal to end with.
        refuses: the refusals of the next tickets.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.before: Callable[[int], Refusal | None] = lambda step: None
        self.refuses: list[Refusal] = []
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        first, count = json.loads(ticket.ticket)
        self.asked.append(first)
        if self.refuses:
            refusal = self.refuses.pop(0)
            raise flight.FlightServerError(refusal.message, extra_info=refusal.to_json())
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(SCHEMA, self._messages(first, count)))

    def _messages(self, first: int, count: int) -> Iterator[pa.RecordBatch]:
        for step in range(first, first + count):
            refusal = self.before(step)
            if refusal is not None:
                yield refusal_row(SCHEMA, refusal)
                return
            yield record_batch(SCHEMA, [step], [batch(step)])


class Setting:
    """Two servers, and a stream over both."""

    def __init__(self, stack: ExitStack, most_steps: int = 4) -> None:
        self.servers = [Fake(), Fake()]
        self.over = threading.Event()
        locations = tuple(f"grpc://127.0.0.1:{server.port}" for server in self.servers)
        self.replicas = Replicas(Address(locations=locations, name="x", wait_s=20.0), 0)
        self.stream = StepStream(
            self.replicas,
            lambda first, count: json.dumps([first, count]).encode(),
            lambda message: read_batches(message, FIELDS, MESH, 4),
            lambda step: step + 1,
            most_steps,
        )
        for server in self.servers:
            stack.callback(server.shutdown)
        stack.callback(self.replicas.close)
        stack.callback(self.stream.interrupt, True)
        stack.callback(self.over.set)

    def read(self, first: int, count: int) -> None:
        steps = range(first, first + count)
        assert [taken["step"] for taken in self.stream.read(steps)] == list(steps)


@pytest.fixture
def setting() -> Iterator[Setting]:
    with ExitStack() as stack:
        yield Setting(stack)


def test_steps_come_in_order_over_the_ends_of_streams(setting: Setting) -> None:
    for first in range(0, 20, 5):
        setting.read(first, 5)
    assert setting.servers[0].asked == [0, 4, 8, 12, 16]
    assert setting.servers[1].asked == []
    setting.read(100, 3)  # another place
    setting.read(3, 1)
    assert setting.servers[0].asked[-2:] == [100, 3]


def test_a_slow_server_is_overtaken_by_the_other_which_is_asked_first_from_then_on(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "HEDGE_S", 0.1)
    goes_on = threading.Event()
    setting.servers[0].before = lambda step: goes_on.wait(20) and None if step >= 2 else None
    setting.read(0, 2)
    setting.read(2, 3)
    assert setting.servers[1].asked[0] == 2
    assert setting.replicas.all[0].location.endswith(str(setting.servers[1].port))
    goes_on.set()
    setting.read(5, 10)
    assert setting.servers[0].asked == [0]


def test_where_both_are_slow_the_first_answer_wins(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "HEDGE_S", 0.1)
    second_is_asked = threading.Event()
    setting.servers[0].before = lambda step: second_is_asked.wait(20) and None
    setting.servers[1].before = lambda step: second_is_asked.set() or (setting.over.wait(20) and None)
    setting.read(0, 2)
    assert [len(server.asked) for server in setting.servers] == [1, 1]


@pytest.mark.parametrize("ends", [Refusal.of("draining", "the server is about to stop."), OSError("a disk")])
def test_a_server_that_drains_or_fails_in_a_stream_is_left_for_the_other(setting: Setting, ends: Any) -> None:
    def end(step: int) -> Refusal | None:
        if step >= 2 and isinstance(ends, OSError):
            raise ends
        return ends if step >= 2 else None

    setting.servers[0].before = end
    setting.read(0, 6)
    assert setting.servers[0].asked == [0]
    assert setting.servers[1].asked[0] == 2


@pytest.mark.parametrize("kind", ["busy", "snapshot"])
def test_what_another_server_may_do_is_asked_of_it(setting: Setting, kind: Any) -> None:
    setting.servers[0].refuses = [Refusal.of(kind, "not here.")]
    setting.read(0, 4)
    assert setting.servers[1].asked == [0]


def test_what_all_would_refuse_is_raised_and_so_is_damage_that_a_server_finds(setting: Setting) -> None:
    setting.servers[0].refuses = [Refusal.of("user", "no such field.")]
    with pytest.raises(UserError, match=r"no such field\."):
        setting.read(50, 1)
    setting.servers[0].before = lambda step: Refusal.of("corruption", "part-0.arrow: rows differ.") if step else None
    setting.read(0, 1)
    with pytest.raises(DatapipeError, match="rows differ"):
        setting.read(1, 1)


def test_a_reader_that_waits_ends_when_its_loader_is_closed(setting: Setting) -> None:
    is_waiting = threading.Event()
    for server in setting.servers:
        server.before = lambda step: is_waiting.set() or (setting.over.wait(20) and None)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(setting.read, 0, 1)
        assert is_waiting.wait(20)
        setting.stream.interrupt(True)
        with pytest.raises(DatapipeError, match="closed"):
            reader.result(20)
    setting.stream.interrupt(False)
    setting.over.set()
    for server in setting.servers:
        server.before = lambda step: None
    setting.read(7, 3)


def test_a_server_that_is_gone_is_left(setting: Setting) -> None:
    gone = setting.servers[0]
    gone.shutdown()
    setting.read(0, 9)
    [failed] = [replica for replica in setting.replicas.all if replica.failures]
    assert failed.location.endswith(str(gone.port))
    assert failed.error
