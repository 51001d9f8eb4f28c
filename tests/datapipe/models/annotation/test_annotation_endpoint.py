"""Endpoints, keys that are nowhere but in the request, completions, and when requests begin by a clock of the test."""

from __future__ import annotations

import asyncio
import json
from fractions import Fraction

import pytest

from datapipe.errors import UserError
from datapipe.language_model.endpoint import AttemptError, EndpointError, RefusedError, endpoint_of, parse_completion
from datapipe.models.annotation.asking import Pace, pause_s
from tests.support.annotation_jobs import FakeClock, annotated, job

KEY = "sk-abc.DEF_0123456789"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:8000/v1", "http://host:8000/v1/chat/completions"),
        ("https://host/v1/", "https://host/v1/chat/completions"),
        ("https://host/v1/chat/completions", "https://host/v1/chat/completions"),
        ("https://host/openai?api-version=1#x", "https://host/openai/chat/completions?api-version=1"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1/chat/completions"),
    ],
)
def test_endpoint_url_leads_to_chat_completions(url, expected):
    assert endpoint_of(url, "", {}, 1.0).url == expected


NO_URLS = ["host:8000/v1", "ftp://host/v1", "http:///v1", "", "http://user@/v1", "http://host:99999/v1", "http://[::1/v1"]


@pytest.mark.parametrize("url", [*NO_URLS, "http://ho st/v1"])
def test_endpoint_that_is_no_url_is_told(url):
    with pytest.raises(UserError):
        endpoint_of(url, "", {}, 1.0)


@pytest.mark.parametrize(
    ("key", "url"),
    [
        (None, "http://host/v1"),
        ("  \n", "http://host/v1"),
        ("two words", "http://host/v1"),
        ("schlüssel", "http://host/v1"),
        (KEY, "http://user:password@host/v1"),
    ],
)
def test_key_that_cannot_be_used_is_told_without_it(key, url):
    with pytest.raises(UserError) as raised:
        endpoint_of(url, "LLM", {} if key is None else {"LLM": key}, 1.0)
    assert "LLM" in str(raised.value) or "credentials" in str(raised.value)
    assert not [secret for secret in ("two words", "schlüssel", KEY, "password") if secret in str(raised.value)]


@pytest.mark.medium
def test_key_is_sent_and_nowhere_else(tmp_path, documents, server):
    """The server repeats the key in everything that it says."""
    server.answer = lambda message: f"Your key is {KEY}.\nScore: 3"
    server.api_key = KEY
    server.fail("status", status=429, body=f"bad key {KEY}".encode(), headers={"Retry-After": "6"}, times=8)
    endpoint = endpoint_of(server.url, "LLM", {"LLM": f"{KEY}\n"}, 5.0)
    said = repr(endpoint)
    said += annotated(job(documents, server.url, tmp_path / "out", endpoint=endpoint)).said
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
    server.answer = lambda message: f"The key {KEY} gives no score."
    wanted = job(documents, server.url, tmp_path / "other", endpoint=endpoint, max_unparsed=Fraction(1))
    said += annotated(wanted).said
    spelled = "".join(f"\\u{ord(character):04x}" for character in KEY)  # as JSON may have it
    server.fail("body", body=f'{{"choices": [{{"message": {{"content": "{spelled}"}}}}]}}'.encode())
    said += annotated(job(documents, server.url, tmp_path / "fourth", endpoint=endpoint, max_unparsed=Fraction(1))).said
    server.fail("status", status=401, body=json.dumps({"error": f"no such key: {KEY}"}).encode())
    with pytest.raises(RefusedError, match="no such key: ") as raised:
        annotated(job(documents, server.url, tmp_path / "third", endpoint=endpoint))
    said += str(raised.value)
    assert "HTTP 429: bad key" in said
    assert KEY not in said
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len([path for path in files if path.name == "answers.jsonl"]) == 4
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.medium
def test_key_that_is_a_word_of_answers_does_not_change_them(tmp_path, documents, server):
    server.answer = lambda message: "EMPTY choices: content.\nScore: 2"
    endpoint = endpoint_of(server.url, "LLM", {"LLM": "content"}, 5.0)
    annotated(job(documents, server.url, tmp_path / "out", endpoint=endpoint, num_documents=1))
    assert json.loads((tmp_path / "out" / "labelled.jsonl").read_text())["reason"] == "EMPTY choices: content."


@pytest.mark.medium
def test_secrets_of_the_query_and_keys_along_a_redirect_are_not_repeated(tmp_path, documents, server):
    server.fail("status", status=400, body=b"x" * 290 + b"code s3cr3t-c0de!")
    with pytest.raises(RefusedError) as raised:
        annotated(job(documents, f"{server.url}?code=s3cr3t-c0de!&v=1", tmp_path / "a", concurrency=1))
    assert "s3cr3t" not in str(raised.value)
    assert server.requests[0].path == "/v1/chat/completions?code=s3cr3t-c0de!&v=1"
    endpoint = endpoint_of(server.url, "LLM", {"LLM": KEY}, 5.0)
    server.fail("status", status=308, headers={"Location": f"{server.url}/chat/completions?key={KEY}"})
    with pytest.raises(RefusedError) as raised:
        annotated(job(documents, server.url, tmp_path / "b", endpoint=endpoint, concurrency=1))
    assert len(server.requests) == 2
    assert KEY not in str(raised.value)


def test_completion_is_parsed_from_its_first_choice():
    body = {
        "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}, {"message": {"content": "no"}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    }
    answer = parse_completion(json.dumps(body))
    assert (answer.content, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == ("Hello", "stop", 7, 2)


@pytest.mark.parametrize("usage", [None, [], "7", {"prompt_tokens": True}, {"prompt_tokens": -1}, {"prompt_tokens": 1 << 60}])
def test_completion_with_a_strange_usage_has_none(usage):
    body = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    assert parse_completion(json.dumps(body)).prompt_tokens is None


@pytest.mark.parametrize(
    "body",
    [
        *("", "null", "[]", "{", "<html>", "7", '"text"', '{"choices": null}', '{"choices": []}', '{"choices": [null]}'),
        '{"choices": [{}]}',
        '{"choices": [{"message": []}]}',
        '{"choices": [{"message": {}}]}',
        '{"choices": [{"message": {"content": ["part"]}}]}',
        '{"choices": [{"message": {"content": "x"}, "finish_reason": 3}]}',
        "[" * 100_000,
        '{"choices": ' + "9" * 10_000 + "}",
    ],
)
def test_anything_else_is_no_completion(body):
    with pytest.raises(ValueError, match="the answer is no"):
        parse_completion(body)


def test_pace_holds_all_requests_for_the_longest_pause():
    clock = FakeClock()
    pace = Pace(clock, 100.0, "http://host", print)

    async def all_requests() -> None:
        for seconds in (7.0, 3.0):
            await pace.pause(AttemptError("busy", "x", seconds), 1, "key")
        await asyncio.gather(pace.turn(), pace.turn())

    asyncio.run(all_requests())
    assert clock.time == 1007.0


def test_pauses_grow_differ_by_request_and_are_capped():
    error = AttemptError("failed", "x")
    pauses = [pause_s(error, number, "key") for number in range(1, 20)]
    assert pauses == [pause_s(error, number, "key") for number in range(1, 20)]
    assert all(min(0.25 * 2**number, 15) <= pause <= min(0.5 * 2**number, 30) for number, pause in enumerate(pauses))
    assert len({pause_s(error, 3, f"key {number}") for number in range(50)}) == 50
    assert pause_s(AttemptError("busy", "x", 4.5), 9, "key") == 4.5
    assert pause_s(AttemptError("busy", "x", 1e9), 1, "key") == 120.0


def test_patience_tells_of_silence_and_ends_it():
    clock, told = FakeClock(), []
    patience = Pace(clock, 100.0, "http://host", told.append)
    error = AttemptError("unreachable", "no route")
    patience.failed(error)
    patience.answered()
    assert told == []  # a moment is not worth a line
    for _ in range(10):
        patience.failed(error)
        clock.time += 10
    assert [f"for {left} s" in line and "no route" in line for left, line in zip((90, 60, 30), told, strict=True)] == [True] * 3
    with pytest.raises(EndpointError, match="100 s: no route"):
        patience.failed(error)
    patience.answered()
    assert len(told) == 4
    patience.failed(error)
