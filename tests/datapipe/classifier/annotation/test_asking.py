"""Asking against a chat server that fails as servers do, and the limits that are kept."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from itertools import pairwise

import pytest

from datapipe.classifier.annotation.asking import _MOST_BUSY, _MOST_FAILED
from datapipe.classifier.annotation.endpoint import EndpointError, RefusedError, endpoint_of
from datapipe.classifier.annotation.spending import LimitError, Prices
from datapipe.errors import CorruptionError
from tests.support.annotation_jobs import FakeClock, annotated, by_length, files, job, rows
from tests.support.chat_server import ChatServer, chat_server
from tests.support.cli_processes import wait_until

pytestmark = pytest.mark.medium


PASSING = [
    ("status", {"status": 429, "headers": {"Retry-After": "3"}}),
    ("status", {"status": 500, "body": b"<html>oops</html>"}),
    ("status", {"status": 503}),
    ("status", {"status": 408}),
    ("hang up", {}),
    ("cut", {}),
    ("half close", {}),
    ("raw", {"body": b"\x16\x03\x01 no HTTP\r\n\r\n"}),
    ("raw", {"body": b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n{}"}),
    ("raw", {"body": b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{}"}),
    ("raw", {"body": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}),
    ("raw", {"body": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000}),
    ("body", {"body": b"<html>Please log in</html>", "headers": {"Content-Type": "text/html"}}),
    ("body", {"body": b'{"choices": [{"message": {"content": "Score: 3'}),
    ("body", {"body": b"{}", "headers": {"Content-Encoding": "gzip"}}),
    ("body", {"body": b'{"choices": [{"message": {"content": "' + b"x" * (2 << 20) + b'\\nScore: 5"}}]}'}),
    ("body", {"body": b"[" * 200_000}),
    ("body", {"body": b"9" * 200_000}),
    ("body", {"body": b'{"choices": []}'}),
    ("body", {"body": b'{"choices": {"0": 1}}'}),
    ("body", {"body": b'{"choices": [{"message": {"content": 3}}]}'}),
    ("body", {"body": b'{"error": {"message": "no capacity"}}'}),
    ("body", {"body": b"null"}),
    ("body", {"body": b""}),
    ("body", {"body": b"\xff\xfe{\x00"}),
]


@pytest.mark.parametrize("number", range(5))
def test_failures_that_pass_are_tried_again(tmp_path, documents, server, number):
    """Five failures at a time, of five documents; each one hits a request."""
    server.answer = by_length
    for kind, options in PASSING[number::5]:
        server.fail(kind, **options)
    done = annotated(job(documents, server.url, tmp_path / "out", num_documents=5))
    assert done.counts.scores.total() == 5
    assert len(server.requests) == 10


def test_strange_but_valid_completions_are_taken(tmp_path, documents, server):
    bodies = [
        b'{"choices": [{"message": {"content": "Score: 3"}}]}',
        b'{"choices": [{"message": {"content": "\\ud83d Score: 3"}, "finish_reason": null}], "usage": {"prompt_tokens": -1}}',
        b'{"choices": [{"message": {"content": null}, "finish_reason": "tool_calls"}], "usage": []}',
    ]
    for body in bodies:
        server.fail("body", body=body)
    done = annotated(job(documents, server.url, tmp_path / "out", num_documents=3, concurrency=1, max_unparsed=Fraction(1)))
    assert (done.counts.scores, done.counts.unparsed) == ({3.0: 1}, {"no_score": 1, "empty": 1})


@pytest.mark.parametrize("kind", ["stall", "trickle"])
def test_request_ends_after_its_timeout(tmp_path, documents, server, kind):
    server.fail(kind)
    endpoint = endpoint_of(server.url, "", {}, 0.2)
    done = annotated(job(documents, server.url, tmp_path / "out", num_documents=2, endpoint=endpoint))
    assert done.counts.scores.total() == 2
    assert len(server.requests) == 3


def test_document_on_which_the_server_fails_each_time_is_named_or_left_out(tmp_path, documents, server):
    annotated(job(documents, server.url, tmp_path / "out", num_documents=2))
    poisoned = rows(tmp_path / "out")[0]
    server.fail("hang up", text=poisoned["text"][:80], times=None)
    wanted = job(documents, server.url, tmp_path / "other", num_documents=6)
    with pytest.raises(EndpointError, match=f"attempts for the document {poisoned['id']} failed"):
        annotated(wanted)
    assert "labelled.jsonl" not in files(tmp_path / "other")
    num_asked = len(server.requests)
    done = annotated(job(documents, server.url, tmp_path / "other", num_documents=6, skip_failed=True))
    assert (done.counts.scores.total(), done.counts.unparsed) == (5, {"failed": 1})
    asked = [request for request in server.requests[num_asked:] if poisoned["text"][:80] in request.message]
    assert _MOST_FAILED <= len(asked) <= 12
    assert [row["id"] for row in rows(tmp_path / "other", "unparsed.jsonl")] == [poisoned["id"]]


def test_document_that_is_always_too_many_tokens_is_given_up(tmp_path, documents, server):
    server.fail("status", status=429, headers={"Retry-After": "10"}, times=None)
    with pytest.raises(EndpointError, match=f"{_MOST_BUSY} attempts"):
        annotated(job(documents, server.url, tmp_path / "out", num_documents=1))
    assert len(server.requests) == _MOST_BUSY


def test_server_that_is_gone_is_told_and_waited_for_up_to_a_limit(tmp_path, documents):
    with chat_server() as gone:
        url = gone.url
    clock = FakeClock()
    wanted = job(documents, url, tmp_path / "out", clock=clock, max_wait_s=120.0)
    with pytest.raises(EndpointError, match=url):
        annotated(wanted)
    assert 1120 <= clock.time < 1160


def test_server_that_ends_and_starts_again_costs_no_answer(tmp_path, documents):
    """The server ends with its fifth answer, and another one has its port 90 seconds later."""
    with ExitStack() as later, ExitStack() as first:
        server = first.enter_context(chat_server())
        servers = [server]
        ending = threading.Thread(target=first.close)

        class Restart(FakeClock):
            async def sleep(self, seconds: float) -> None:
                await super().sleep(seconds)
                if self.time >= 1090 and len(servers) == 1:
                    ending.join()
                    servers.append(later.enter_context(chat_server(server.port)))

        def end(message: str) -> str:
            if len(server.requests) == 5:
                server.ended.set()
                ending.start()
            return by_length(message)

        server.answer = end
        done = annotated(job(documents, server.url, tmp_path / "out", clock=Restart(), concurrency=1))
        assert done.counts.scores.total() == 12
        assert sum(len(each.requests) for each in servers) == 12
        assert f"no answer from {server.url}" in done.said
        assert "answers again" in done.said


@pytest.mark.parametrize(
    ("status", "fact"),
    [(401, "--api-key-env"), (403, "--api-key-env"), (404, "model"), (400, "max_chars"), (402, ""), (307, "127.0.0.1:1/other")],
)
def test_refusal_is_told_once_and_ends_the_command(tmp_path, documents, server, status, fact):
    body = b'{"error": {"message": "what the\\nserver says"}}'
    server.fail("status", status=status, body=body, headers={"Location": "http://127.0.0.1:1/other"}, times=None)
    with pytest.raises(RefusedError) as raised:
        annotated(job(documents, server.url, tmp_path / "out", concurrency=1))
    assert fact in str(raised.value)
    assert status == 307 or f"HTTP {status}: what the server says" in str(raised.value)
    assert len(server.requests) == 1


def test_document_that_is_refused_for_its_text_is_left_out_on_demand(tmp_path, documents, server):
    server.fail("status", status=400, body=b'{"error": "maximum context length"}')
    done = annotated(job(documents, server.url, tmp_path / "out", num_documents=6, skip_failed=True, concurrency=1))
    assert (done.counts.scores.total(), done.counts.unparsed) == (5, {"refused": 1})
    assert "maximum context length" in rows(tmp_path / "out", "unparsed.jsonl")[0]["answer"]


@contextmanager
def opened_once(server: ChatServer, condition: Callable[[], bool]) -> Iterator[None]:
    """Holds all answers until a condition is true."""
    server.gate = gate = threading.Event()
    opener = threading.Thread(target=lambda: (wait_until(condition, "the requests"), gate.set()))
    opener.start()
    try:
        yield
    finally:
        opener.join()


def test_answers_under_way_are_kept_when_another_document_ends_the_command(tmp_path, documents, server):
    server.fail("status", status=400)
    with opened_once(server, lambda: len(server.requests) == 4), pytest.raises(RefusedError):
        annotated(job(documents, server.url, tmp_path / "out", concurrency=4))
    num_requests = len(server.requests)
    done = annotated(job(documents, server.url, tmp_path / "out", concurrency=4))
    assert f"{num_requests - 1} answered already" in done.said
    assert len(server.requests) == num_requests + 12 - (num_requests - 1)


def test_answer_that_cannot_be_read_back_ends_the_command(tmp_path, documents, server, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: write(file, bytes(content).replace(b"Plain", b"Plane"), at))
    with pytest.raises(CorruptionError):
        annotated(job(documents, server.url, tmp_path / "out", concurrency=1))
    assert len(server.requests) == 1


# ------------------------------------------------------------------------------------------------ limits


def test_no_more_requests_are_under_way_than_allowed(tmp_path, documents, server):
    with opened_once(server, lambda: server.most_at_once == 3):
        annotated(job(documents, server.url, tmp_path / "out", concurrency=3))
    assert server.most_at_once == 3


@pytest.mark.parametrize(("limit", "gap"), [({"requests_per_minute": 30}, 2.0), ({"tokens_per_minute": 90}, 10.0)])
def test_requests_keep_the_limits_of_a_minute(tmp_path, documents, server, limit, gap):
    """Each request takes 15 tokens."""
    clock = FakeClock()
    server.clock = clock.now
    annotated(job(documents, server.url, tmp_path / "out", clock=clock, concurrency=1, **limit))
    arrived = [request.at for request in server.requests]
    assert [second - first for first, second in pairwise(arrived)] == pytest.approx([gap] * 11)


def test_retry_after_holds_all_requests_and_is_capped(tmp_path, documents, server):
    for asked, waited in (("7", 7.0), ("86400", 120.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)):
        clock = FakeClock()
        server.clock = clock.now
        server.requests.clear()
        server.fail("status", status=429, headers={"Retry-After": asked})
        annotated(job(documents, server.url, tmp_path / asked, clock=clock, concurrency=1, max_wait_s=1e6))
        assert [request.at - 1000 for request in server.requests] == [0.0] + [waited] * 12


def test_retry_after_holds_the_requests_of_other_workers(tmp_path, documents, server):
    """The first request is refused for 50 seconds. The second one is answered at once, and its worker has further documents."""

    class Patient(FakeClock):
        async def sleep(self, seconds: float) -> None:
            while len(server.requests) < 2:  # both workers began before the first answer
                await asyncio.sleep(0)
            for _ in range(20_000):  # turns of the event loop in which the other worker could send a request
                await asyncio.sleep(0)
            await super().sleep(seconds)

    clock = Patient()
    server.clock = clock.now
    server.fail("status", status=429, headers={"Retry-After": "50"})
    annotated(job(documents, server.url, tmp_path / "out", clock=clock, concurrency=2))
    at = [request.at - 1000 for request in server.requests]
    assert at[:2] == [0.0, 0.0]
    assert len(at) == 13
    assert at[2] == 50.0
    assert min(at[2:]) >= 50.0  # later where a connection failed and was tried again


def test_spending_stops_before_its_limit_and_goes_on_with_a_higher_one(tmp_path, documents, server):
    prices = Prices(prompt=10.0, completion=100.0)
    for limit in ({"max_tokens": 300}, {"max_cost": 0.01}):
        folder = tmp_path / next(iter(limit))
        server.requests.clear()
        with pytest.raises(LimitError):
            annotated(job(documents, server.url, folder, prices=prices, concurrency=4, **limit))
        assert 0 < len(server.requests) < 12
        assert 15 * len(server.requests) <= 300
        annotated(job(documents, server.url, folder, prices=prices, max_tokens=3000, max_cost=1.0))
        assert len(server.requests) == 12


def test_tokens_are_estimated_where_the_server_does_not_count(tmp_path, documents, server):
    server.usage = False
    annotated(job(documents, server.url, tmp_path / "out"))
    tokens = json.loads((tmp_path / "out" / "annotation.json").read_text())["tokens"]
    sent = sum(len(request.message.encode()) for request in server.requests)
    assert sent / 4 <= tokens["prompt"] <= sent / 4 + 12 * 10
    assert tokens["completion"] == 12 * 6  # "Plain words.\nScore: 3"
