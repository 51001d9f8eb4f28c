"""A proxy before an object store that counts requests by class: PUT, GET, HEAD, LIST, DELETE.

PUT has copies, and each request of an upload in parts. DELETE has uploads that are given up, and
deletes of many objects at once.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import parse_qsl, urlsplit

from tests.support.http_servers import Fault
from tests.support.unreliable_store import UnreliableStore


def request_class(method: str, path: str) -> str:
    """The class of a request, by its path with the query."""
    names = {name for name, _ in parse_qsl(urlsplit(path).query, keep_blank_values=True)}
    if method == "POST":
        return "DELETE" if "delete" in names else "PUT"
    if method == "GET" and not names.isdisjoint({"list-type", "uploads"}):
        return "LIST"
    return method


class CountingStore(UnreliableStore):
    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.requests: Counter[str] = Counter()

    def fault_of(self, method: str, path: str, authorization: str | None) -> Fault | None:
        with self.lock:
            self.requests[request_class(method, path)] += 1
        return None


@contextmanager
def counting(query: str) -> Iterator[CountingStore]:
    """A proxy before the store whose URLs end with `query`, for the time of a `with`."""
    store = CountingStore(urlsplit(dict(parse_qsl(query.removeprefix("?")))["endpoint_override"]).netloc)
    with closing(store):
        yield store
