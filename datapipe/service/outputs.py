"""The outputs that are served, with bounded caches between requests. No request depends on the caches.

    name ─▶ ServedOutput ─▶ snapshot ─▶ inventory (split, seed, window) ─▶ order (lineage) ─▶ builder of a stream

Each level is a function of the level before and of a ticket, so an evicted value is made again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from datapipe.errors import SnapshotError, UserError
from datapipe.loader.batches import BatchBuilder
from datapipe.loader.cache.cache import ReadAhead
from datapipe.loader.field_table import PER_TOKEN
from datapipe.loader.options import LoaderOptions
from datapipe.loader.order.batch_order import BatchOrder, check_same_rows
from datapipe.loader.order.layout import Split, plan_layout
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.order.saved_lineage import read_lineage
from datapipe.loader.order.state import check_batches, read_state, state_at
from datapipe.loader.reading import RowReader
from datapipe.loader.remote.protocol import MOST_ROWS, Opened, OpenRequest, Ticket, is_name
from datapipe.loader.source import open_rows, plan_run, resumed
from datapipe.shards.manifest import Snapshot, read_snapshot, read_tokens
from datapipe.shards.snapshot_folder import find_snapshot
from datapipe.storage.root import Root, is_remote

MOST_SNAPSHOTS, MOST_INVENTORIES, MOST_ORDERS = 8, 16, 128

T = TypeVar("T")


def _kept(most: int, make: Callable[..., T]) -> Callable[..., T]:
    """`make`, with the values used last. Threads that make a value at once get the same one: the second call finds it."""
    values = lru_cache(most)(make)

    def get(*key: Any) -> T:
        values(*key)
        return values(*key)

    return get


class ServedOutput:
    """One output. `options` has those of the cache, for an output on an object store."""

    def __init__(self, name: str, url: str, options: LoaderOptions | None = None) -> None:
        self.name, self.root, self._options = name, Root(url), options or LoaderOptions()
        self._snapshots = _kept(MOST_SNAPSHOTS, self._read_snapshot)
        self._readers = _kept(MOST_SNAPSHOTS, self._open_rows)
        self._inventories = _kept(MOST_INVENTORIES, self._make_inventory)
        self._orders = _kept(MOST_ORDERS, self._make_order)

    def snapshot(self, fingerprint: str | None, length: int | None = None) -> Snapshot:
        """The rows of one length, by default the first, of a snapshot, the newest for None. Raises SnapshotError."""
        if fingerprint is None:
            fingerprint = read_tokens(self.root, None, length).fingerprint
        whole = fingerprint if len(fingerprint) == 32 else find_snapshot(self.root, fingerprint)
        return self._snapshots(whole, length)

    def _read_snapshot(self, fingerprint: str, length: int | None) -> Snapshot:
        newest = None
        with suppress(SnapshotError):  # snapshot.json is damaged: the copy of the one that is asked for may be whole
            newest = read_snapshot(self.root)
        if newest is not None and newest.fingerprint == fingerprint and newest.has_tokens:
            return newest.of_length(length)
        return read_tokens(self.root, fingerprint, length)

    def open(self, request: OpenRequest) -> tuple[BatchOrder, int]:
        fresh = plan_run(self.root, self.snapshot(request.snapshot, request.sequence_length), request)
        check_rows(fresh.lineage)
        if request.state is None:
            return fresh, 0
        saved, lineage = read_state(request.state)
        check_rows(lineage)
        return resumed(saved, lineage, fresh, request, is_exact=request.is_exact), saved.step

    def order(self, ticket: Ticket) -> BatchOrder:
        rows = (ticket.snapshot, ticket.sequence_length, ticket.split, ticket.seed, ticket.window, ticket.shuffle)
        return self._orders(rows, ticket.lineage, ticket.drop_last is not False)

    def _make_inventory(
        self, fingerprint: str, length: int | None, split: Split, seed: int, window: int, shuffle: bool
    ) -> Inventory:
        return Inventory(self.snapshot(fingerprint, length), split, seed, window, shuffle=shuffle)

    def _make_order(self, rows: tuple[Any, ...], text: str, drop_last: bool) -> BatchOrder:
        inventory = self._inventories(*rows)
        try:
            lineage = read_lineage(text)
            check_batches(lineage, inventory.split)
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
        snapshot = inventory.snapshot
        reader, read_ahead = self._readers(snapshot.fingerprint, snapshot.sequence_length, inventory.split)
        return BatchBuilder(order, reader, ticket), read_ahead

    def _open_rows(self, fingerprint: str, length: int, split: Split) -> tuple[RowReader, ReadAhead | None]:
        snapshot = self.snapshot(fingerprint, length)
        return open_rows(self.root, snapshot, plan_layout(snapshot, split), self._options)[1:]

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
