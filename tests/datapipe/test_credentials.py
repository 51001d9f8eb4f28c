"""Credentials in URLs: what is masked, what stays, and how a masked URL gets them back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.credentials import is_masked, masked, masked_urls, remember, restored
from datapipe.errors import DatapipeError, UserError
from datapipe.loader.cache.download import DownloadError

SECRET = "zq81Secret"
ENDPOINT = "endpoint_override=http://127.0.0.1:5000&region=us-east-1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"s3://KEY:{SECRET}@bucket/a?{ENDPOINT}", f"s3://***@bucket/a?{ENDPOINT}"),
        (f"s3://KEY:{SECRET}/x+y@bucket/a", "s3://***@bucket/a"),  # not encoded as it should be
        (f"s3://KEY:{SECRET}/bucket", "s3://***@"),
        (f"s3://bucket/a?session_token={SECRET}&region=x", "s3://bucket/a?***"),
        (f"s3://bucket/a?endpoint_override=http://u:{SECRET}@host&region=x", None),
        (f"s3://bucket/a?endpoint_override=http%3A%2F%2Fu%3A{SECRET}%40host", "s3://bucket/a?***"),
        (f"https://u:{SECRET}@host:8080/a", "https://***@host:8080/a"),
        (f"s3://${{KEY}}:{SECRET}@bucket/a", "s3://***@bucket/a"),
        (f"https://user:p@{SECRET}@host/a", "https://***@host/a"),
        (f"https://host/a?X-Amz-Credential=k&X-Amz-Signature={SECRET}", "https://host/a?***"),
        (f"https://host/a?api_key={SECRET}", "https://host/a?***"),
        (f"https://host:{SECRET},b:8815/a", None),
        (f"grpc://a:8815,b:{SECRET}/runs", None),
        (f"grpc://a:8815,{SECRET}@b:8815/runs", None),
        (f"abfs://files:{SECRET}@account.dfs.core.windows.net/a", "abfs://***@account.dfs.core.windows.net/a"),
        (f"cannot open 's3://K:{SECRET}@b/a': gone; see (https://h/x?sig={SECRET}).", None),
        (f"--output=s3://K:{SECRET}@b", "--output=s3://***@b"),
    ],
)
def test_masked_text_holds_no_credentials(text, expected):
    assert SECRET not in masked_urls(text)
    assert masked_urls(masked_urls(text)) == masked_urls(text)
    assert expected in (None, masked_urls(text))


@pytest.mark.parametrize(
    "text",
    [
        f"s3://bucket/a/*.jsonl?{ENDPOINT}&max_attempts=2",
        "s3://bucket: no such bucket",
        "gs://anonymous@public/data/part-?.jsonl",
        "http://127.0.0.1:5000/a@b: refused",
        "hf://datasets/me/data@main/x.parquet",
        "s3://${KEY}:${SECRET}@bucket/a?session_token=${TOKEN}",
        "https://${TOKEN}@host/a",
        "Expected grpc://HOST:PORT,HOST:PORT/NAME, or grpc+tls:// with ?ca=FILE",
        "grpc+tls://a:8815,b:8815/runs/web",
        "no answer from grpc://10.0.0.1:8815,node-2.local:8815: refused",
        "/data/user:name@host/a?token=b",
        "file:///data/a:b@c",
    ],
)
def test_masked_text_without_credentials_is_unchanged(text):
    assert masked_urls(text) == text
    assert not is_masked(text)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'\"<>@/?#"), min_size=1))
def test_masked_url_keeps_nothing_of_any_password(password):
    assert masked_urls(f"s3://KEY:{password}@bucket/a") == "s3://***@bucket/a"
    assert masked_urls(f"https://user:{password}@host/a") == "https://***@host/a"


def test_masked_url_is_restored_from_the_pattern_of_its_host():
    patterns = ["s3://A:B@other/x", f"s3://KEY:{SECRET}@bucket/a/*.jsonl?{ENDPOINT}", "s3://C:D@bucket/b"]
    file = f"s3://KEY:{SECRET}@bucket/a/1.jsonl?{ENDPOINT}"
    stored = masked_urls(file)
    assert is_masked(stored)
    assert restored(stored, patterns) == file
    assert restored(stored, patterns[:1]) == stored
    assert restored("s3://bucket/a/1.jsonl", patterns) == "s3://bucket/a/1.jsonl"


def test_variable_is_masked_wherever_it_appears_where_its_name_or_its_url_says_that_it_is_secret():
    remember("by-its-name-92", "${STORE_TOKEN}", "${STORE_TOKEN}")
    remember("by-its-url-92", "${LOGIN}", "s3://user:${LOGIN}@bucket/a")
    remember("corpora-of-92", "${CORPUS}", "${CORPUS}/*.jsonl")
    text = "by-its-name-92, by-its-url-92 and corpora-of-92"
    assert masked(text) == "${STORE_TOKEN}, ${LOGIN} and corpora-of-92"


@pytest.mark.parametrize("kind", [DatapipeError, UserError, DownloadError])
def test_error_holds_no_credentials(kind):
    error = kind(f"cannot open s3://KEY:{SECRET}@bucket/a")
    assert str(error) == "cannot open s3://***@bucket/a"
    assert SECRET not in repr(error.args)


def test_credentials_of_a_url_are_masked_where_they_stand_alone_too():
    text = "Invalid URI 'hf://user:SECRET@datasets/x'. Expected namespace/name, got 'user:SECRET'"
    assert masked(text) == "Invalid URI 'hf://***@datasets/x'. Expected namespace/name, got '***'"
