"""Conditional writes, to a store that answers and to one that loses its answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from datapipe.errors import UserError
from datapipe.ledger import conditional
from datapipe.ledger.conditional import ConditionalStore, ConflictError
from datapipe.storage import Root
from tests.support.unreliable_store import Kind, UnreliableStore, unreliable

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_conditional_write_fails_unless_the_object_is_the_expected_one(query: str) -> None:
    root = Root(f"s3://outputs/expected{query}")
    objects = ConditionalStore(root)
    assert objects.read("a") is None
    first = objects.write("a", b"one", None)
    assert objects.write("a", b"one", None) == first  # sent again, since the answer was lost
    second = objects.write("a", b"two", first)
    for expected in (None, first):
        with pytest.raises(ConflictError):
            objects.write("a", b"three", expected)
    root.delete("a")
    with pytest.raises(ConflictError):
        objects.write("a", b"three", second)
    assert objects.read("a") is None


def test_first_write_creates_the_bucket_where_the_url_allows_it_and_tells_of_it_elsewhere(query: str) -> None:
    with pytest.raises(UserError, match="no-such-bucket"):
        ConditionalStore(Root(f"s3://no-such-bucket/out{query}")).write("lease", b"a", None)
    allowed = ConditionalStore(Root(f"s3://new-bucket/out{query}&allow_bucket_creation=true"))
    version = allowed.write("lease", b"a", None)
    assert allowed.read("lease") == (b"a", version)
    with pytest.raises(ConflictError):
        allowed.write("lease", b"b", None)


@pytest.fixture
def store(query: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnreliableStore]:
    monkeypatch.setattr(conditional, "_REQUEST_TIMEOUT_S", 1.0)
    with unreliable(query) as proxy:
        yield proxy


@pytest.mark.parametrize(("kind", "times"), [("lost", 1), ("lost", 5), ("silent", 1), ("status", 5)])
@pytest.mark.parametrize("is_new", [True, False])
def test_conditional_write_without_an_answer_is_looked_up(store: UnreliableStore, kind: Kind, times: int, is_new: bool) -> None:
    objects = ConditionalStore(Root(f"s3://outputs/{kind}-{times}-{is_new}{store.query}"))
    expected = None if is_new else objects.write("object", b"before", None)
    fault = store.fail(kind, method="PUT", path="object", times=times)
    version = objects.write("object", b"ours", expected)
    assert fault.hits > 0
    assert objects.read("object") == (b"ours", version)
    store.heal()
    assert objects.write("object", b"next", version) == objects.version("object")


def test_conditional_write_that_another_process_came_before_is_a_conflict(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/conflict{store.query}")
    objects = ConditionalStore(root)
    expected = objects.write("object", b"before", None)
    root.write_atomic("object", b"of another")
    store.fail("lost", method="PUT", path="object")
    with pytest.raises(ConflictError):
        objects.write("object", b"ours", expected)
    assert root.read_bytes("object") == b"of another"


def test_conditional_write_to_a_store_that_never_answers_ends(store: UnreliableStore) -> None:
    objects = ConditionalStore(Root(f"s3://outputs/never{store.query}"))
    store.fail("status", method="PUT", times=None)
    with pytest.raises(OSError, match="503"):
        objects.write("object", b"ours", None)
