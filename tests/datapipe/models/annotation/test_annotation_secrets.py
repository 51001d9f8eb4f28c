"""Keys that are nowhere but in the request."""

import json
from fractions import Fraction

import pytest

from datapipe.language_model.endpoint import RefusedError, endpoint_of
from tests.support.annotation_jobs import annotated, job

KEY = "sk-abc.DEF_0123456789"


@pytest.mark.medium
def test_key_is_sent_and_nowhere_else(tmp_path, documents, server):
    """The server repeats the key in everything that it sends."""
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
