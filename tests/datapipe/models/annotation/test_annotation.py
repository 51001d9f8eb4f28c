"""Whole annotations against a chat server that fails as servers do: what is asked, what is written, and what ends them."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from datapipe.errors import CorruptionError, DatapipeError, UserError
from datapipe.language_model.asking import _MOST_BUSY, _MOST_FAILED
from datapipe.language_model.endpoint import RefusedError, endpoint_of
from datapipe.language_model.rate_limiter import RateLimiter
from datapipe.language_model.spending import Prices, Spending, Tokens
from datapipe.models.annotation.annotate import Progress
from datapipe.models.annotation.outcomes import Counts, Questions
from tests.support.annotation_jobs import RUBRIC, FakeClock, annotated, by_length, files, job, rows
from tests.support.chat_server import ChatServer, chat_server
from tests.support.cli_processes import wait_until


@pytest.mark.medium
def test_annotation_labels_a_sample_and_asks_each_text_once(tmp_path, documents, server):
    server.answer = by_length
    done = annotated(job(documents, server.url, tmp_path / "out"))
    labelled = rows(tmp_path / "out")
    assert len(labelled) == len({row["text"] for row in labelled}) == len(server.requests) == 12
    for row in labelled:
        message = RUBRIC.messages(row["text"])[0]["content"]
        assert row["score"] == len(message) % 6
        assert row["reason"] == f"It has {len(message)} characters."
        assert row["model"] == "a-model"
        assert row["id"].startswith("web/")
    assert {request.message for request in server.requests} == {RUBRIC.messages(row["text"])[0]["content"] for row in labelled}
    assert done.counts.scores.total() == 12
    assert "12 documents in the sample, 0 answered already, 12 to ask" in done.said


@pytest.mark.medium
def test_annotation_has_the_same_bytes_from_the_cache_and_with_any_timing(tmp_path, documents, server):
    server.answer = by_length
    first = job(documents, server.url, tmp_path / "first")
    annotated(first)
    expected = files(tmp_path / "first")
    annotated(first)
    assert files(tmp_path / "first") == expected
    assert len(server.requests) == 12
    server.fail("status", status=500, times=4)  # so that answers come in another order
    annotated(job(documents, server.url, tmp_path / "second", concurrency=1))
    assert files(tmp_path / "second") == expected


@pytest.mark.medium
def test_annotation_of_a_larger_sample_asks_for_the_new_documents_alone(tmp_path, documents, server):
    annotated(job(documents, server.url, tmp_path / "out"))
    done = annotated(job(documents, server.url, tmp_path / "out", num_documents=20))
    assert len(server.requests) == 20
    assert "12 answered already, 8 to ask" in done.said
    annotated(job(documents, server.url, tmp_path / "other", num_documents=15, cache=tmp_path / "out" / "cache"))
    assert len(server.requests) == 20


@pytest.mark.medium
def test_dry_run_estimates_and_asks_nothing(tmp_path, documents, server):
    prices = Prices(prompt=1000.0, completion=2000.0)
    wanted = job(documents, server.url, tmp_path / "out", prices=prices, is_dry_run=True)
    done = annotated(wanted)
    assert server.requests == []
    assert "labelled.jsonl" not in files(tmp_path / "out")
    assert f"and {12 * RUBRIC.max_tokens:,} to write at most: cost" in done.said
    annotated(job(documents, server.url, tmp_path / "out", prices=prices))
    told = int(done.said.split("about ")[1].split(" tokens")[0].replace(",", ""))
    sent = sum(len(request.message.encode()) for request in server.requests)
    assert sent / 4 <= told <= sent / 4 + 12 * 10


@pytest.mark.medium
@pytest.mark.parametrize(
    ("answer", "finish_reason", "reason"),
    [("Ich kann das nicht bewerten.", "stop", "no_score"), ("Score: 3", "length", "cut_off"), (" \n", "stop", "empty")],
)
def test_answers_without_a_score_are_kept_apart_and_not_asked_again(tmp_path, documents, server, answer, finish_reason, reason):
    server.answer, server.finish_reason = (lambda message: answer), finish_reason
    wanted = job(documents, server.url, tmp_path / "out", max_unparsed=Fraction(1))
    for _ in range(2):
        done = annotated(wanted)
        assert done.counts.unparsed == {reason: 12}
        assert f"{reason} 12" in done.said
        unparsed = rows(tmp_path / "out", "unparsed.jsonl")
        assert [(row["reason"], row["answer"]) for row in unparsed] == [(reason, answer)] * 12
        assert rows(tmp_path / "out") == []
        assert len(server.requests) == 12


@pytest.mark.medium
def test_another_model_template_or_option_is_asked_again(tmp_path, documents, server):
    rubrics = [RUBRIC, *(RUBRIC.model_copy(update=change) for change in ({"template": "{text}"}, {"temperature": 0.1}))]
    asked = [Questions(rubric=rubric, model="a-model") for rubric in rubrics] + [Questions(rubric=RUBRIC, model="b-model")]
    for number, questions in enumerate(asked, 1):
        annotated(job(documents, server.url, tmp_path / "out", questions=questions))
        assert len(server.requests) == 12 * number


@pytest.mark.medium
def test_corrected_pattern_reads_the_answers_again_without_asking(tmp_path, documents, server):
    server.answer = lambda message: "**Rating: 4**"
    with pytest.raises(DatapipeError, match="Rating: 4"):
        annotated(job(documents, server.url, tmp_path / "out"))
    corrected = RUBRIC.model_copy(update={"answer": r"^\*\*Rating: (?P<score>.*)\*\*$"})
    done = annotated(job(documents, server.url, tmp_path / "out", questions=Questions(rubric=corrected, model="a-model")))
    assert done.counts.scores == {4.0: 12}
    assert len(server.requests) == 12


@pytest.mark.medium
def test_too_many_answers_without_a_score_end_the_command_early(tmp_path, documents, server):
    server.answer = lambda message: "Hm."
    with pytest.raises(DatapipeError, match="have no score"):
        annotated(job(documents, server.url, tmp_path / "out", num_documents=38, concurrency=1))
    assert len(server.requests) == 20
    assert "labelled.jsonl" not in files(tmp_path / "out")


@pytest.mark.medium
def test_output_that_is_not_of_an_annotation_is_refused(tmp_path, documents, server):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for name in ("mine", "mine/thesis.txt"):
        with pytest.raises(UserError, match=r"thesis\.txt"):
            annotated(job(documents, server.url, tmp_path / name))
    assert server.requests == []


@pytest.mark.medium
@pytest.mark.parametrize("option", ["output", "cache"])
def test_folder_of_an_object_store_is_refused(tmp_path, documents, server, option):
    with pytest.raises(UserError, match=f"--{option} s3:/bucket/a"):
        annotated(replace(job(documents, server.url, tmp_path / "out"), **{option: Path("s3://bucket/a")}))


PASSING = [
    ("status", {"status": 429, "headers": {"Retry-After": "3"}}),
    ("status", {"status": 500, "body": b"<html>oops</html>"}),
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
    ("body", {"body": b"{}", "headers": {"Content-Encoding": "gzip"}}),
    ("body", {"body": b'{"choices": [{"message": {"content": "' + b"x" * (2 << 20) + b'\\nScore: 5"}}]}'}),
    ("body", {"body": b"\xff\xfe{\x00"}),
]


@pytest.mark.medium
@pytest.mark.parametrize("number", range(3))
def test_failures_that_pass_are_tried_again(tmp_path, documents, server, number):
    """Five failures at a time, of five documents; each one hits a request."""
    server.answer = by_length
    for kind, options in PASSING[number::3]:
        server.fail(kind, **options)
    done = annotated(job(documents, server.url, tmp_path / "out", num_documents=5))
    assert done.counts.scores.total() == 5
    assert len(server.requests) == 10


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["stall", "trickle"])
def test_request_ends_after_its_timeout(tmp_path, documents, server, kind):
    server.fail(kind)
    endpoint = endpoint_of(server.url, "", {}, 0.2)
    done = annotated(job(documents, server.url, tmp_path / "out", num_documents=2, endpoint=endpoint))
    assert done.counts.scores.total() == 2
    assert len(server.requests) == 3


@pytest.mark.medium
def test_document_on_which_the_server_fails_each_time_is_named_or_left_out(tmp_path, documents, server):
    annotated(job(documents, server.url, tmp_path / "out", num_documents=2))
    poisoned = rows(tmp_path / "out")[0]
    server.fail("hang up", text=poisoned["text"][:80], times=None)
    wanted = job(documents, server.url, tmp_path / "other", num_documents=6)
    with pytest.raises(DatapipeError, match=f"attempts for {poisoned['id']} failed"):
        annotated(wanted)
    assert "labelled.jsonl" not in files(tmp_path / "other")
    num_asked = len(server.requests)
    done = annotated(job(documents, server.url, tmp_path / "other", num_documents=6, skip_failed=True))
    assert (done.counts.scores.total(), done.counts.unparsed) == (5, {"failed": 1})
    asked = [request for request in server.requests[num_asked:] if poisoned["text"][:80] in request.message]
    assert _MOST_FAILED <= len(asked) <= 12
    assert [row["id"] for row in rows(tmp_path / "other", "unparsed.jsonl")] == [poisoned["id"]]


@pytest.mark.medium
def test_document_that_is_always_too_many_tokens_is_given_up(tmp_path, documents, server):
    server.fail("status", status=429, headers={"Retry-After": "10"}, times=None)
    with pytest.raises(DatapipeError, match=f"{_MOST_BUSY} attempts"):
        annotated(job(documents, server.url, tmp_path / "out", num_documents=1))
    assert len(server.requests) == _MOST_BUSY


@pytest.mark.medium
def test_server_that_is_gone_is_reported_and_waited_for_up_to_a_limit(tmp_path, documents):
    with chat_server() as gone:
        url = gone.url
    clock = FakeClock()
    wanted = job(documents, url, tmp_path / "out", clock=clock, max_wait_s=120.0)
    with pytest.raises(DatapipeError, match=url):
        annotated(wanted)
    assert 1120 <= clock.time < 1160


@pytest.mark.medium
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


@pytest.mark.medium
@pytest.mark.parametrize(
    ("status", "fact"),
    [(401, "--api-key-env"), (403, "--api-key-env"), (404, "model"), (400, "max_chars"), (402, ""), (307, "127.0.0.1:1/other")],
)
def test_refusal_is_reported_once_and_ends_the_command(tmp_path, documents, server, status, fact):
    body = b'{"error": {"message": "what the\\nserver says"}}'
    server.fail("status", status=status, body=body, headers={"Location": "http://127.0.0.1:1/other"}, times=None)
    with pytest.raises(RefusedError) as raised:
        annotated(job(documents, server.url, tmp_path / "out", concurrency=1))
    assert fact in str(raised.value)
    assert status == 307 or f"HTTP {status}: what the server says" in str(raised.value)
    assert len(server.requests) == 1


@pytest.mark.medium
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


@pytest.mark.medium
def test_answers_under_way_are_kept_when_another_document_ends_the_command(tmp_path, documents, server):
    server.fail("status", status=400)
    with opened_once(server, lambda: len(server.requests) == 4), pytest.raises(RefusedError):
        annotated(job(documents, server.url, tmp_path / "out", concurrency=4))
    num_requests = len(server.requests)
    done = annotated(job(documents, server.url, tmp_path / "out", concurrency=4))
    assert f"{num_requests - 1} answered already" in done.said
    assert len(server.requests) == num_requests + 12 - (num_requests - 1)


@pytest.mark.medium
def test_answer_that_cannot_be_read_back_ends_the_command(tmp_path, documents, server, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: write(file, bytes(content).replace(b"Plain", b"Plane"), at))
    with pytest.raises(CorruptionError):
        annotated(job(documents, server.url, tmp_path / "out", concurrency=1))
    assert len(server.requests) == 1


@pytest.mark.medium
def test_no_more_requests_are_under_way_than_allowed(tmp_path, documents, server):
    with opened_once(server, lambda: server.most_at_once == 3):
        annotated(job(documents, server.url, tmp_path / "out", concurrency=3))
    assert server.most_at_once == 3


@pytest.mark.medium
def test_retry_after_holds_all_requests_and_is_capped(tmp_path, documents, server):
    for asked, waited in (("7", 7.0), ("86400", 120.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)):
        clock = FakeClock()
        server.clock = clock.now
        server.requests.clear()
        server.fail("status", status=429, headers={"Retry-After": asked})
        annotated(job(documents, server.url, tmp_path / asked, clock=clock, concurrency=1, max_wait_s=1e6))
        assert [request.at - 1000 for request in server.requests] == [0.0] + [waited] * 12


@pytest.mark.medium
def test_spending_stops_before_its_limit_and_goes_on_with_a_higher_one(tmp_path, documents, server):
    prices = Prices(prompt=10.0, completion=100.0)
    with pytest.raises(DatapipeError, match="stopped at --max-cost"):
        annotated(job(documents, server.url, tmp_path / "out", prices=prices, concurrency=4, max_cost=0.01))
    assert 0 < len(server.requests) < 12
    annotated(job(documents, server.url, tmp_path / "out", prices=prices, max_cost=1.0))
    assert len(server.requests) == 12


@pytest.mark.medium
def test_tokens_are_estimated_where_the_server_does_not_count(tmp_path, documents, server):
    server.usage = False
    annotated(job(documents, server.url, tmp_path / "out"))
    tokens = json.loads((tmp_path / "out" / "annotation.json").read_text())["tokens"]
    sent = sum(len(request.message.encode()) for request in server.requests)
    assert sent / 4 <= tokens["prompt"] <= sent / 4 + 12 * 10
    assert tokens["completion"] == 12 * 6  # "Plain words.\nScore: 3"


def test_progress_reports_rate_time_left_tokens_and_the_cost_to_come():
    clock, counts, spending = FakeClock(), Counts(), Spending(Prices(prompt=1.0, completion=3.0), None)
    counts.scores[2.0] = 20  # of an earlier command
    limiter = RateLimiter(clock, 100.0, "http://host", print)
    progress = Progress(limiter, 100, counts, spending)
    assert all(fact in progress.line() for fact in ("20 of 100", "0.0/s", "unknown")) and "cost" not in progress.line()
    clock.time += 10
    counts.scores[3.0] += 35
    counts.unparsed["no_score"] += 5
    limiter.num_failed = 1
    spending.end(Tokens(), Tokens(prompt=400_000, completion=200_000))
    facts = ["60 of 100", "55 scored", "5 without", "4.0/s", "0:10 left", "600,000 tokens", "1.00 of about 2.00", "1 attempt"]
    assert [fact for fact in facts if fact not in progress.line()] == []
