"""Steps from servers that are slow, fail, drain or are busy: which server is asked, and what the reader gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from datapipe.errors import DatapipeError, UserError
from datapipe.loader.remote import stream as stream_module
from datapipe.loader.remote.address import Address
from datapipe.loader.remote.protocol import Refusal
from datapipe.loader.remote.replicas import Replica, Replicas
from datapipe.loader.remote.stream import StepStream
from datapipe.loader.remote.wire import Assembler, notice, record_batches, schema_of
from datapipe.loader.share import Mesh

pytestmark = pytest.mark.medium

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
                yield notice(SCHEMA, refusal)
                return
            yield from record_batches(SCHEMA, [step], [batch(step)], 1 << 20)


class Setting:
    """Two servers, and a stream over both."""

    def __init__(self, stack: ExitStack, most_steps: int = 4) -> None:
        self.servers = [Fake(), Fake()]
        self.sent: list[str] = []
        self.over = threading.Event()
        locations = tuple(f"grpc://127.0.0.1:{server.port}" for server in self.servers)
        self.replicas = Replicas(Address(locations=locations, name="x", wait_s=20.0), 0)
        self.stream = StepStream(
            self.replicas,
            lambda first, count: json.dumps([first, count]).encode(),
            lambda: Assembler(FIELDS, MESH, 4),
            self._send,
            lambda step: step + 1,
            most_steps,
        )
        for server in self.servers:
            stack.callback(server.shutdown)
        stack.callback(self.replicas.close)
        stack.callback(self.stream.interrupt, True)
        stack.callback(self.over.set)

    def _send(self, replica: Replica) -> None:
        self.sent.append(replica.location)

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
    monkeypatch.setattr(stream_module, "_FIRST_HEDGE_S", 0.1)
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
    monkeypatch.setattr(stream_module, "_FIRST_HEDGE_S", 0.1)
    second_is_asked = threading.Event()
    setting.servers[0].before = lambda step: second_is_asked.wait(20) and None
    setting.servers[1].before = lambda step: second_is_asked.set() or (setting.over.wait(20) and None)
    setting.read(0, 2)
    assert [len(server.asked) for server in setting.servers] == [1, 1]


@pytest.mark.parametrize("ends", [Refusal.of("draining", "the server is about to stop."), OSError("a disk")])
def test_a_server_that_drains_or_fails_in_a_stream_is_left_for_the_other(setting: Setting, ends: Any) -> None:
    def end(step: int) -> Refusal | None:
        if step < 2:
            return None
        if isinstance(ends, OSError):
            raise ends
        return ends

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


def test_a_server_that_does_not_know_the_lineage_gets_it(setting: Setting) -> None:
    setting.servers[0].refuses = [Refusal.of("lineage", "send it.")]
    setting.read(0, 2)
    assert setting.sent == [setting.replicas.all[0].location]
    assert setting.servers[0].asked == [0, 0]


def test_a_reader_that_waits_ends_when_its_loader_is_closed(setting: Setting) -> None:
    is_waiting = threading.Event()
    for server in setting.servers:
        server.before = lambda step: is_waiting.set() or (setting.over.wait(20) and None)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            setting.read(0, 1)
        except DatapipeError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert is_waiting.wait(20)
    setting.stream.interrupt(True)
    reader.join(20)
    assert [str(error) for error in errors] == ["the loader was closed."]
    setting.stream.interrupt(False)
    setting.over.set()
    for server in setting.servers:
        server.before = lambda step: None
    setting.read(7, 3)


def test_a_server_that_is_gone_is_left_and_one_that_is_back_is_asked_again(setting: Setting) -> None:
    gone = setting.servers[0]
    gone.shutdown()
    setting.read(0, 9)
    first = setting.replicas.all[0] if setting.replicas.all[0].failures else setting.replicas.all[1]
    assert first.location.endswith(str(gone.port))
    assert first.failures
    assert "connect" in first.error.lower() or "unavailable" in first.error.lower()
