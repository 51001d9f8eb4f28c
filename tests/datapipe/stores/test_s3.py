"""S3 by URL: access without credentials, and stores that ask to slow down."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow.fs as pafs
import pytest

from datapipe.errors import UserError
from datapipe.inputs.discovery import discover
from datapipe.outages import outage_of
from datapipe.shards.checksum import bytes_checksum, file_checksum
from datapipe.storage import Root, current_state, open_input, resolve
from stages.read.text import Text
from tests.support.object_store import object_store
from tests.support.unreliable_store import UnreliableStore, unreliable

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The query of a store with public/a.txt and public/b.txt."""
    with object_store("public") as query:
        store = pafs.FileSystem.from_uri(f"s3://public{query}")[0]
        for name in ("a.txt", "b.txt"):
            with store.open_output_stream(f"public/{name}") as stream:
                stream.write(name.encode() * 1000)
        yield query


@pytest.fixture
def store(bucket: str) -> Iterator[UnreliableStore]:
    with unreliable(bucket) as proxy:
        yield proxy


@pytest.mark.parametrize("has_credentials", [True, False])
def test_s3_anonymous_requests_are_not_signed(
    store: UnreliableStore, monkeypatch: pytest.MonkeyPatch, has_credentials: bool
) -> None:
    if not has_credentials:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
    url = f"s3://anonymous@public/a.txt{store.query}"
    with open_input(url) as stream:
        assert stream.read() == b"a.txt" * 1000
    assert current_state(url).num_bytes == 5000
    found = discover("web", [f"s3://anonymous@public/*.txt{store.query}"], lambda path: Text(), "stat", "here")
    assert [(file.path, file.url) for file, _ in found] == [
        (name, f"s3://anonymous@public/{name}{store.query}") for name in ("a.txt", "b.txt")
    ]
    assert store.authorizations == {None}


def test_s3_requests_with_credentials_are_signed(store: UnreliableStore) -> None:
    with open_input(f"s3://public/a.txt{store.query}") as stream:
        assert stream.read() == b"a.txt" * 1000
    assert None not in store.authorizations


def test_s3_anonymous_has_the_limits_of_the_url() -> None:
    filesystem, path = resolve("s3://anonymous@public/a?region=us-east-1&request_timeout=7")
    (options,) = filesystem.__reduce__()[1]
    assert (path, options["anonymous"], options["request_timeout"], options["access_key"]) == ("public/a", True, 7, None)
    with pytest.raises(UserError, match="exclude anonymous access"):
        resolve("s3://anonymous@public/a?region=us-east-1&tls_verify_certificates=0")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_s3_store_that_asks_to_slow_down_is_asked_again(store: UnreliableStore, method: str) -> None:
    fault = store.fail("status", status=503, times=3, method=method)
    with open_input(f"s3://anonymous@public/a.txt{store.query}") as stream:
        assert stream.read() == b"a.txt" * 1000
    assert fault.hits == 3


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_s3_store_that_stays_busy_is_an_outage_and_not_a_missing_file(store: UnreliableStore, method: str) -> None:
    store.fail("status", status=503, times=None, method=method)
    url = f"s3://anonymous@public/a.txt{store.query}&max_attempts=2"
    with pytest.raises(OSError, match="AWS Error") as raised, open_input(url) as stream:
        stream.read()
    assert outage_of(raised.value, url) is not None


@pytest.mark.parametrize(("num_bytes", "num_requests"), [(0, 0), (1, 1), (3_000_000, 1), (20_000_000, 3)])
def test_object_is_read_by_few_large_requests(store: UnreliableStore, num_bytes: int, num_requests: int) -> None:
    content = random.Random(num_bytes).randbytes(num_bytes)
    Root(f"s3://public/large{store.query}").write_atomic(f"of-{num_bytes}", content)
    root = Root(f"s3://public/large{store.query}")
    assert root.read_bytes(f"of-{num_bytes}") == content
    assert len(store.gets) <= max(1, num_requests)
    store.gets.clear()
    assert file_checksum(root, f"of-{num_bytes}") == (bytes_checksum(content), num_bytes)
    assert len(store.gets) <= num_requests + 1
