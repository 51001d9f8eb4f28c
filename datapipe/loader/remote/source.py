"""Batches from a service: the source of `Loader` over a URL such as grpc+tls://a:8815,b:8815/runs/web.

Loader(…) ─▶ action "where": a folder of this machine, if it can be read ─▶ FileSource
Loader(…) ─▶ action "open": snapshot, lineage, number of samples ─▶ RunSteps: local position and state
for batch in loader ─▶ Prefetcher ─▶ StepStream ─▶ DoGet
"""

from __future__ import annotations

from copy import copy
from functools import partial
from importlib.util import find_spec
from typing import Any, Self

from datapipe.errors import SnapshotError, UserError
from datapipe.loader.batches import Batch
from datapipe.loader.context_slices import check_context
from datapipe.loader.options import LoaderOptions
from datapipe.loader.order.batch_order import RunSteps
from datapipe.loader.order.lineage import Lineage
from datapipe.loader.order.sample_order import OrderKey
from datapipe.loader.order.state import LoaderState, read_state
from datapipe.loader.prefetch import Prefetcher, Successor
from datapipe.loader.remote.address import Address
from datapipe.loader.remote.protocol import MOST_STEPS_OF_STREAM, Opened, OpenRequest, Ticket, Where
from datapipe.loader.remote.replicas import Replicas
from datapipe.loader.remote.stream import StepStream
from datapipe.loader.remote.wire import read_batches
from datapipe.loader.source import FileSource
from datapipe.shards.manifest import read_snapshot
from datapipe.storage.root import Root

_OF_TICKETS = ("split", "drop_last", "fields", "labels", "dtype", "on_corrupt", "pad_cu_seqlens")
"""The options that a ticket holds unchanged."""


def open_service(output: str, options: LoaderOptions) -> FileSource | ServiceSource:
    """The files of a service that are on this machine and can be read, or its servers."""
    files = _readable_files(output)
    return FileSource(files, options) if files else ServiceSource(output, options)


def _readable_files(output: str) -> str:
    if find_spec("numba") is None:
        return ""
    replicas = Replicas(Address.parse(output), 0)
    try:
        where = replicas.ask("where", replicas.address.name.encode(), Where.read)
    finally:
        replicas.close()
    if not where.files:
        return ""
    try:
        snapshot = read_snapshot(Root(where.files))
    except (OSError, SnapshotError):  # of another machine behind a tunnel, or of another user
        return ""
    return where.files if snapshot.fingerprint == where.snapshot else ""


class ServiceSource:
    """Batches that servers build, with the methods of a `FileSource`. The manifest comes without the shards."""

    num_threads, waits_for_network = 1, True

    def __init__(self, output: str, options: LoaderOptions) -> None:
        self.output, self._options, self._mesh = output, options, options.own_mesh
        check_context(self._mesh, options.fields, options.labels)
        self._replicas = Replicas(Address.parse(output), self._mesh.data_rank)
        self._start(self._open(options.snapshot))
        self._mesh.check(self.snapshot.sequence_length)

    def build(self, step: int) -> Batch:
        stream = self._stream(1, lambda step: None, most_steps=1)
        try:
            return stream.read([step])[0]
        finally:
            stream.interrupt(is_stopped=True)

    def prefetcher(self, depth: int, stride: int) -> Prefetcher:
        successor = partial(self.run.steps.following, stride=stride)
        stream = self._stream(stride, successor, MOST_STEPS_OF_STREAM)
        return Prefetcher(stream.read, depth, successor=successor, interrupt=stream.interrupt)

    def resume(self, saved: LoaderState, lineage: Lineage, *, is_exact: bool = False) -> None:
        self._start(self._open(self.snapshot.fingerprint, state=saved.as_dict(), is_exact=is_exact))

    def moved(self, snapshot: str | None, saved: LoaderState, lineage: Lineage) -> Self:
        opened = self._open(snapshot, state=saved.as_dict(), migrate=True)
        if opened.snapshot.fingerprint == self.snapshot.fingerprint:
            return self
        moved = copy(self)
        moved._start(opened)
        return moved

    def most_runs(self, step: int, num_steps: int | None) -> int:
        raise UserError("most_runs reads the lengths of many rows. Count with the files: Loader(OUTPUT).most_runs(…).")

    def close(self) -> None:
        self._replicas.close()

    def _open(self, snapshot: str | None, **more: Any) -> Opened:
        asked = {**dict(self._options), "output": self._replicas.address.name, "snapshot": snapshot, "cache_folder": None}
        return self._replicas.ask("open", OpenRequest(**{**asked, **more}).to_json(), Opened.read)

    def _start(self, opened: Opened) -> None:
        saved, lineage = read_state(opened.state)
        key = OrderKey(
            snapshot=opened.snapshot,
            split=self._options.split,
            seed=saved.seed,
            window_shards=saved.window_shards,
            shuffle=saved.order == "shuffled",
        )
        drop_last = self._options.drop_last is not False
        self.snapshot, self.run = opened.snapshot, RunSteps(key, lineage, opened.sources, opened.num_samples, drop_last)
        self._asked: dict[str, Any] = {
            **{name: getattr(self._options, name) for name in _OF_TICKETS},
            "output": self._replicas.address.name,
            "snapshot": opened.snapshot.fingerprint,
            "sequence_length": self._options.sequence_length,
            "seed": key.seed,
            "window": key.window_shards,
            "shuffle": key.shuffle,
            "mesh": self._mesh,
            "lineage": saved.lineage,
        }

    def _stream(self, stride: int, successor: Successor, most_steps: int) -> StepStream:
        asked, fields = self._asked, self._options.fields
        return StepStream(
            self._replicas,
            lambda first, count: Ticket(**asked, first=first, count=count, stride=stride).to_json(),
            lambda message: read_batches(message, fields, self._mesh, self.snapshot.sequence_length),
            successor,
            most_steps,
        )
