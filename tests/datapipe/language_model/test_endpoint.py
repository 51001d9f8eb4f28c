"""Endpoints, keys that cannot be used, and completions."""

import json

import pytest

from datapipe.errors import UserError
from datapipe.language_model.endpoint import endpoint_of, parse_completion

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
def test_endpoint_that_is_no_url_is_reported(url):
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
def test_key_that_cannot_be_used_is_reported_without_it(key, url):
    with pytest.raises(UserError) as raised:
        endpoint_of(url, "LLM", {} if key is None else {"LLM": key}, 1.0)
    assert "LLM" in str(raised.value) or "credentials" in str(raised.value)
    assert not [secret for secret in ("two words", "schlüssel", KEY, "password") if secret in str(raised.value)]


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
