"""The outputs that are served, and what is kept of them between requests: nothing that a request needs, and nothing unbounded.

    name ─▶ ServedOutput ─▶ snapshot ─▶ inventory (split, seed, window) ─▶ order (lineage) ─▶ builder of a stream

Each level is a function of the one before and of a ticket, so what is forgotten is made again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from datapipe.errors import SnapshotError, UserError
from datapipe.loader.batches import BatchBuilder
from datapipe.loader.cache.cache import ReadAhead
from datapipe.loader.field_table import PER_TOKEN
from datapipe.loader.options import plan_cache, plan_restart, plan_run
from datapipe.loader.order.batch_order import BatchOrder, check_same_rows, resume_run
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.order.saved_lineage import read_lineage
from datapipe.loader.order.state import LoaderState, check_agrees, check_same_order, read_state, state_at
from datapipe.loader.reading import RowReader
from datapipe.loader.remote.protocol import (
    MOST_LINEAGE_BYTES,
    MOST_ROWS,
    Described,
    Opened,
    OpenRequest,
    OrderNames,
    Ticket,
    digest_of,
    is_name,
)
from datapipe.shards.manifest import Snapshot, find_snapshot, read_snapshot
from datapipe.storage import Root, is_remote

MOST_SNAPSHOTS, MOST_INVENTORIES, MOST_ORDERS = 8, 16, 128
MOST_LINEAGES_BYTES = 64 << 20

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


class Lineages:
    """Lineages that clients have sent, by digest, up to a number of bytes; the oldest are forgotten."""

    def __init__(self, most_bytes: int = MOST_LINEAGES_BYTES) -> None:
        self._most_bytes, self._num_bytes, self._lock = most_bytes, 0, threading.Lock()
        self._texts = OrderedDict[str, str]()

    def add(self, content: bytes) -> None:
        """Raises UserError for what is too long or no text."""
        if len(content) > MOST_LINEAGE_BYTES:
            raise UserError(f"lineage of {len(content):,} bytes: at most {MOST_LINEAGE_BYTES:,} are taken.")
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise UserError("lineage: not UTF-8.") from None
        self.keep(text)

    def keep(self, text: str) -> None:
        digest, size = digest_of(text), len(text)
        with self._lock:
            if digest in self._texts:
                self._texts.move_to_end(digest)
                return
            self._texts[digest] = text
            self._num_bytes += size
            while self._num_bytes > self._most_bytes:
                _, forgotten = self._texts.popitem(last=False)
                self._num_bytes -= len(forgotten)

    def find(self, digest: str) -> str | None:
        with self._lock:
            return self._texts.get(digest)


class ServedOutput:
    """One output.

    Args:
        name: by which clients ask for it.
        url: a path or URL.
        cache_bytes, cache_folder: of the cache for an output on an object store, as of a `Loader`.
    """

    def __init__(self, name: str, url: str, cache_bytes: int | None = None, cache_folder: str | None = None) -> None:
        self.name, self.root = name, Root(url)
        self._cache_options = cache_bytes, cache_folder
        self._snapshots = _Recent[Snapshot](MOST_SNAPSHOTS)
        self._readers = _Recent[tuple[RowReader, ReadAhead | None]](MOST_SNAPSHOTS)
        self._inventories = _Recent[Inventory](MOST_INVENTORIES)
        self._orders = _Recent[BatchOrder](MOST_ORDERS)

    def snapshot(self, fingerprint: str | None) -> Snapshot:
        """A snapshot; the newest for None. Raises SnapshotError."""
        if fingerprint is None:
            newest = read_snapshot(self.root)
            return self._snapshots.get(newest.fingerprint, lambda: newest)
        whole = fingerprint if len(fingerprint) == 32 else find_snapshot(self.root, fingerprint)
        return self._snapshots.get(whole, lambda: read_snapshot(self.root, whole))

    def check_ready(self) -> None:
        """Raises an exception where the newest snapshot cannot be read."""
        self.snapshot(None)

    def open(self, request: OpenRequest) -> tuple[BatchOrder, int]:
        """The order of a new or continued run, and its next step. Raises UserError or SnapshotError."""
        snapshot = self.snapshot(request.snapshot)
        given = {name: getattr(request, name) for name in OpenRequest.model_fields}
        fresh = plan_run(self.root, snapshot, request.global_batch_size, given)
        if request.state is None:
            return fresh, 0
        saved, lineage = read_state(request.state)
        check_rows(lineage)
        if request.is_exact:
            check_same_rows(lineage, fresh.inventory)
            return BatchOrder(fresh.inventory, lineage, fresh.drop_last), saved.step
        check_same_order(saved, state_at(0, fresh))
        restart = plan_restart(request.restart, request.migrate, tuple(snapshot.sources))
        return resume_run(lineage, saved.step, fresh, migrate=request.migrate, restart=restart), saved.step

    def order(self, names: OrderNames, lineage_json: str, digest: str) -> BatchOrder:
        """The order that a ticket names. Raises SnapshotError for a lineage that does not fit the snapshot."""
        key = (names.snapshot, names.split, names.seed, names.window, names.order)
        return self._orders.get((key, digest, names.drop_last), lambda: self._make_order(names, key, lineage_json))

    def _make_order(self, names: OrderNames, key: Hashable, lineage_json: str) -> BatchOrder:
        snapshot = self.snapshot(names.snapshot)
        inventory = self._inventories.get(
            key, lambda: Inventory(snapshot, names.split, names.seed, names.window, shuffle=names.order == "shuffled")
        )
        try:
            lineage = read_lineage(lineage_json)
            check_agrees(LoaderState(**_empty_state(names, snapshot, lineage_json, lineage.global_batch_size)), lineage)
        except ValueError as error:
            raise SnapshotError(f"the lineage of the ticket cannot be read ({error}).") from None
        check_rows(lineage)
        check_same_rows(lineage, inventory)
        return BatchOrder(inventory, lineage, names.drop_last)

    def builder(self, order: BatchOrder, ticket: Ticket) -> tuple[BatchBuilder, ReadAhead | None]:
        """What builds the batches of a ticket, and fetches its shards. Raises UserError for arguments that do not fit."""
        mesh, inventory = ticket.mesh, order.inventory
        mesh.check(inventory.snapshot.sequence_length)
        if ticket.data_size > MOST_ROWS:
            raise UserError(f"a world of {ticket.data_size:,} ranks: at most {MOST_ROWS:,} are served.")
        key = inventory.snapshot.fingerprint, inventory.split
        reader, read_ahead = self._readers.get(key, lambda: self._reader(inventory))
        dtype = np.dtype(ticket.dtype)
        options = (ticket.fields, ticket.labels, dtype, ticket.on_corrupt, ticket.pad)
        return BatchBuilder(order, reader, mesh, *options), read_ahead

    def _reader(self, inventory: Inventory) -> tuple[RowReader, ReadAhead | None]:
        cache = None if self.root.local is not None else plan_cache(self.root, inventory, *self._cache_options)
        copies = None if cache is None else cache.path_of
        reader = RowReader(self.root, inventory.snapshot, inventory.layout, copies)
        return reader, None if cache is None else ReadAhead(cache, reader)

    def describe(self, order: BatchOrder, step: int, **more: Any) -> Opened:
        snapshot = order.inventory.snapshot
        return Opened(
            snapshot=Described(
                fingerprint=snapshot.fingerprint,
                name=snapshot.name,
                sequence_length=snapshot.sequence_length,
                tokenizer=snapshot.tokenizer,
                sources=dict(snapshot.sources),
            ),
            state=state_at(step, order).as_dict(),
            sources=tuple(order.layout.sources),
            num_samples=order.sample_order.num_samples,
            **more,
        )


def check_rows(lineage: Any) -> None:
    """Raises UserError for batches of more rows than are served."""
    most = max(era.size for era in lineage.batches)
    if most > MOST_ROWS:
        raise UserError(f"global batches of {most:,} rows: at most {MOST_ROWS:,} are served.")


def batch_bytes(order: BatchOrder, ticket: Ticket) -> int:
    """The bytes that a batch of a ticket takes at most, while it is built."""
    rows = -(-max(era.size for era in order.lineage.batches) // ticket.data_size)
    arrays = 1 + sum(field in PER_TOKEN for field in ticket.fields)
    row_bytes = order.inventory.snapshot.sequence_length * np.dtype(ticket.dtype).itemsize * arrays
    return rows * row_bytes + 4 * (ticket.pad or 0)


def _empty_state(names: OrderNames, snapshot: Snapshot, lineage: str, size: int) -> dict[str, Any]:
    return {
        "step": 0,
        "global_batch_size": size,
        "split": names.split,
        "seed": names.seed,
        "window_shards": names.window,
        "sequence_length": snapshot.sequence_length,
        "tokenizer": snapshot.tokenizer.fingerprint,
        "snapshot": snapshot.fingerprint,
        "lineage": lineage,
    }


def named_outputs(given: Sequence[str]) -> Mapping[str, str]:
    """Names and URLs of outputs, as they are given: NAME=OUTPUT; or OUTPUT, whose name is a relative path, or its last part.

    Raises UserError for two of one name, and for a name that a URL cannot hold.
    """
    found: dict[str, str] = {}
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
        if name in found:
            raise UserError(f"two outputs are called '{name}'. Give them names: NAME=OUTPUT.")
        found[name] = url
    return found
