"""The outputs that are served, with bounded caches between requests. No request depends on the caches.

    name ─▶ ServedOutput ─▶ snapshot ─▶ inventory (split, seed, window) ─▶ order (lineage) ─▶ builder of a stream

Each level is a function of the level before and of a ticket, so an evicted value is made again.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from datapipe.errors import SnapshotError, UserError
from datapipe.loader.batches import BatchBuilder
from datapipe.loader.cache.cache import ReadAhead
from datapipe.loader.field_table import PER_TOKEN
from datapipe.loader.options import LoaderOptions
from datapipe.loader.order.batch_order import BatchOrder, check_same_rows
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.order.saved_lineage import read_lineage
from datapipe.loader.order.state import check_batches, read_state, state_at
from datapipe.loader.reading import RowReader
from datapipe.loader.remote.protocol import MOST_ROWS, Opened, OpenRequest, Ticket, is_name
from datapipe.loader.source import open_rows, plan_run, resumed
from datapipe.shards.manifest import Snapshot, read_tokens
from datapipe.shards.snapshot_folder import find_snapshot
from datapipe.storage.root import Root, is_remote

MOST_SNAPSHOTS, MOST_INVENTORIES, MOST_ORDERS = 8, 16, 128

T = TypeVar("T")


class _Recent(Generic[T]):
    """The values used last, by key. Two threads may make the same value at once; one of them is kept."""

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, OrderedDict[Hashable, T](), threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            value = self._values.setdefault(key, value)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


class ServedOutput:
    """One output. `options` has those of the cache, for an output on an object store."""

    def __init__(self, name: str, url: str, options: LoaderOptions | None = None) -> None:
        self.name, self.root, self._options = name, Root(url), options or LoaderOptions()
        self._snapshots = _Recent[Snapshot](MOST_SNAPSHOTS)
        self._readers = _Recent[tuple[RowReader, ReadAhead | None]](MOST_SNAPSHOTS)
        self._inventories = _Recent[Inventory](MOST_INVENTORIES)
        self._orders = _Recent[BatchOrder](MOST_ORDERS)

    def snapshot(self, fingerprint: str | None, length: int | None = None) -> Snapshot:
        """The rows of one length, by default the first, of a snapshot, the newest for None. Raises SnapshotError."""
        if fingerprint is None:
            newest = read_tokens(self.root, None, length)
            return self._snapshots.get((newest.fingerprint, length), lambda: newest)
        whole = fingerprint if len(fingerprint) == 32 else find_snapshot(self.root, fingerprint)
        return self._snapshots.get((whole, length), lambda: read_tokens(self.root, whole, length))

    def open(self, request: OpenRequest) -> tuple[BatchOrder, int]:
        fresh = plan_run(self.root, self.snapshot(request.snapshot, request.sequence_length), request)
        check_rows(fresh.lineage)
        if request.state is None:
            return fresh, 0
        saved, lineage = read_state(request.state)
        check_rows(lineage)
        return resumed(saved, lineage, fresh, request, is_exact=request.is_exact), saved.step

    def order(self, ticket: Ticket) -> BatchOrder:
        key = (ticket.snapshot, ticket.sequence_length, ticket.split, ticket.seed, ticket.window, ticket.shuffle)
        digest, drop_last = hashlib.sha256(ticket.lineage.encode()).digest(), ticket.drop_last is not False
        return self._orders.get((key, digest, drop_last), lambda: self._make_order(ticket, key, drop_last))

    def _make_order(self, ticket: Ticket, key: Hashable, drop_last: bool) -> BatchOrder:
        snapshot = self.snapshot(ticket.snapshot, ticket.sequence_length)
        inventory = self._inventories.get(
            key, lambda: Inventory(snapshot, ticket.split, ticket.seed, ticket.window, shuffle=ticket.shuffle)
        )
        try:
            lineage = read_lineage(ticket.lineage)
            check_batches(lineage, ticket.split)
        except ValueError as error:
            raise SnapshotError(f"the lineage of the ticket cannot be read ({error}).") from None
        check_rows(lineage)
        check_same_rows(lineage, inventory)
        return BatchOrder(inventory, lineage, drop_last)

    def builder(self, order: BatchOrder, ticket: Ticket) -> tuple[BatchBuilder, ReadAhead | None]:
        mesh, inventory = ticket.mesh, order.inventory
        mesh.check(inventory.snapshot.sequence_length)
        if mesh.data_size > MOST_ROWS:
            raise UserError(f"a world of {mesh.data_size:,} ranks: at most {MOST_ROWS:,} are served.")
        key = inventory.snapshot.fingerprint, inventory.snapshot.sequence_length, inventory.split
        reader, read_ahead = self._readers.get(key, lambda: open_rows(self.root, inventory, self._options)[1:])
        return BatchBuilder(order, reader, ticket), read_ahead

    def describe(self, order: BatchOrder, step: int) -> Opened:
        return Opened(
            snapshot=order.inventory.snapshot,
            state=state_at(step, order).as_dict(),
            sources=order.sources,
            num_samples=order.sample_order.num_samples,
        )


def check_rows(lineage: Any) -> None:
    most = max(era.size for era in lineage.batches)
    if most > MOST_ROWS:
        raise UserError(f"global batches of {most:,} rows: at most {MOST_ROWS:,} are served.")


def batch_bytes(order: BatchOrder, ticket: Ticket) -> int:
    """The bytes that a batch of a ticket takes at most, while it is built."""
    rows = -(-max(era.size for era in order.lineage.batches) // ticket.mesh.data_size)
    arrays = 1 + sum(field in PER_TOKEN for field in ticket.fields)
    row_bytes = order.inventory.snapshot.sequence_length * ticket.itemsize * arrays
    return rows * row_bytes + 4 * (ticket.pad_cu_seqlens or 0)


def named_outputs(given: Sequence[str]) -> Mapping[str, str]:
    """Names and URLs of outputs, given as NAME=OUTPUT; or as OUTPUT, whose name is a relative path, or its last part.
    Raises UserError for two of one name, and for a name that a URL cannot hold."""
    urls: dict[str, str] = {}
    for text in given:
        name, equals, url = text.partition("=")
        if not equals or not is_name(name):
            url = text
            plain = text.partition("?")[0].rstrip("/")
            is_relative = not is_remote(text) and not plain.startswith(("/", "."))
            name = plain if is_relative else plain.rpartition("/")[2]
        if not is_name(name):
            raise UserError(
                f"'{text}' gives no name for clients. Give one: NAME={url}, of letters, digits, dots, dashes and _."
            )
        if name in urls:
            raise UserError(f"two outputs are called '{name}'. Give them names: NAME=OUTPUT.")
        urls[name] = url
    return urls
