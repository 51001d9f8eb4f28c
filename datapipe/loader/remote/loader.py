"""The loader of a service: `Loader` over a URL such as grpc+tls://a:8815,b:8815/runs/web.

    Loader(…) ─▶ action "open": snapshot, lineage, number of samples ─▶ Steps, and so position, length and state, are local
    for batch in loader ─▶ Prefetcher ─▶ StepStream ─▶ DoGet

Same arguments, states, fields and bytes as a loader of the files. Where the server is on this machine and the files can be read
here, it is a loader of the files. `cache_bytes` and `cache_folder` are the server's own.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.errors import SnapshotError, UserError
from datapipe.loader.document_parts import check_context
from datapipe.loader.field_table import GLOBAL, PER_TOKEN
from datapipe.loader.loader import Loader
from datapipe.loader.options import check_arguments, plan_batch, plan_mesh, plan_prefetch, plan_restart
from datapipe.loader.order.layout import Split
from datapipe.loader.order.state import LoaderState, read_state
from datapipe.loader.order.steps import Steps
from datapipe.loader.prefetch import Prefetcher
from datapipe.loader.remote.address import Address
from datapipe.loader.remote.protocol import MOST_INLINE_CHARS, Described, Opened, OpenRequest, Ticket, Where, digest_of
from datapipe.loader.remote.replicas import ANSWER_S, Replica, Replicas, flight
from datapipe.loader.remote.stream import StepStream
from datapipe.loader.remote.wire import Assembler, Batch, schema_of
from datapipe.loader.share import Mesh, warn_of_ragged_ranks
from datapipe.loader.stats import StepClock
from datapipe.shards.manifest import read_snapshot
from datapipe.storage import Root


@dataclass(frozen=True, kw_only=True)
class _Split:
    """What a state tells of the rows."""

    snapshot: Described
    split: Split
    seed: int
    window_shards: int
    shuffle: bool


class _RemoteOrder:
    """What `BatchOrder` knows of steps; rows are the server's."""

    def __init__(self, opened: Opened, drop_last: bool) -> None:
        saved, self.lineage = read_state(opened.state)
        split: Split = "train" if saved.split == "train" else "validation"
        self.saved: LoaderState = saved
        self.lineage_json, self.sources, self.drop_last = saved.lineage, opened.sources, drop_last
        self.inventory = _Split(
            snapshot=opened.snapshot,
            split=split,
            seed=saved.seed,
            window_shards=saved.window_shards,
            shuffle=saved.order == "shuffled",
        )
        drops = drop_last and split == "train"
        self.steps = Steps(self.lineage.batches, self.lineage.skips.steps, opened.num_samples, drop_last=drops)

    @property
    def num_steps(self) -> int | None:
        return self.steps.num_steps

    @cached_property
    def digest(self) -> str:
        return digest_of(self.lineage_json)

    def check_step(self, step: int) -> None:
        if step < 0 or (self.num_steps is not None and step >= self.num_steps):
            last = "" if self.num_steps is None else f" and the last one is {self.num_steps - 1}"
            raise UserError(f"step {step} is not in this run: its steps count from 0{last}.")


class _RemoteBuilder:
    """Batches of an order from the service."""

    def __init__(self, order: _RemoteOrder, replicas: Replicas, asks: Mapping[str, Any], mesh: Mesh, most_steps: int) -> None:
        self.batch_order, self._replicas, self._asks, self._mesh, self._most_steps = order, replicas, asks, mesh, most_steps

    def stream(self, stride: int, successor: Callable[[int], int | None], most_steps: int | None = None) -> StepStream:
        """A stream of every stride-th step."""
        return StepStream(
            self._replicas,
            lambda first, count: self._ticket(first, count, stride),
            self._assembler,
            self._send_lineage,
            successor,
            min(self._most_steps, most_steps or self._most_steps),
        )

    def build(self, step: int) -> Batch:
        stream = self.stream(1, lambda step: None, most_steps=1)
        try:
            return stream.read([step])[0]
        finally:
            stream.interrupt(is_stopped=True)

    def _ticket(self, first: int, count: int, stride: int, **more: Any) -> bytes:
        order = self.batch_order
        inline = order.lineage_json if len(order.lineage_json) <= MOST_INLINE_CHARS else ""
        ticket = Ticket(**self._asks, lineage=inline, digest=order.digest, first=first, count=count, stride=stride, **more)
        return ticket.to_json()

    def _assembler(self) -> Assembler:
        return Assembler(self._asks["fields"], self._mesh, self.batch_order.inventory.snapshot.sequence_length)

    def _send_lineage(self, replica: Replica) -> None:
        try:
            action = flight.Action("lineage", self.batch_order.lineage_json.encode())
            list(replica.client().do_action(action, replica.options(ANSWER_S)))
        except Exception as error:
            self._replicas.handle(replica, error)


class RemoteLoader(Loader):
    """A loader whose batches a service builds; made by `Loader(URL)`."""

    _builder: _RemoteBuilder  # type: ignore[assignment]  # a BatchBuilder, as far as an iteration asks for it

    def __init__(self, output: str, **options: Any) -> None:
        bound = inspect.signature(Loader.__init__).bind(self, output, **options)
        bound.apply_defaults()
        given = self._arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        check_arguments(given)
        self.mesh = given["mesh"] = plan_mesh(given)  # a copy in another process has the same rank
        given["rank"] = given["world_size"] = None
        self._size = plan_batch(given["global_batch_size"], given["batch_size"], self.mesh)
        if not GLOBAL.intersection(given["fields"]):
            warn_of_ragged_ranks(self.mesh, self._size)
        self._migrate = given["migrate"]
        self._tells_dropped = given["drop_last"] is None and (self.mesh.data_rank, self.mesh.context_rank) == (0, 0)
        self._drop_last = given["drop_last"] is not False
        self._is_local, self._read_ahead, self._cache = True, None, None

        self._replicas = Replicas(Address.parse(output), self.mesh.data_rank)
        opened = self._open(given["snapshot"], state=None)
        self.snapshot = opened.snapshot  # type: ignore[assignment]  # what a manifest tells without its shards
        self.mesh.check(self.snapshot.sequence_length)
        plan_restart(given["restart"], given["migrate"], tuple(self.snapshot.sources))
        schema_of(given["fields"], np.dtype(given["dtype"]).name, self.mesh, self.snapshot.sequence_length)
        check_context(self.mesh, given["fields"], given["labels"])
        self._start(opened)

        fields, dtype = given["fields"], np.dtype(given["dtype"])
        rows, per_token = self.mesh.rows(self._size), [field for field in fields if field in PER_TOKEN]
        row_bytes = self.snapshot.sequence_length * dtype.itemsize * len(per_token)
        planned = plan_prefetch((rows.stop - rows.start) * row_bytes)
        self._prefetch = planned if given["prefetch"] is None else given["prefetch"]
        self.clock = StepClock(per_token[0] if per_token else None)
        self.seek(0)
        self._is_positioned = False

    @property
    def sources(self) -> tuple[str, ...]:
        return self._builder.batch_order.sources

    def prefetcher(self, stride: int) -> Prefetcher:
        steps, depth = self._builder.batch_order.steps, self._prefetch

        def successor(step: int) -> int | None:
            after = steps.advance(step, stride)
            return after if steps.num_steps is None or after < steps.num_steps else None

        stream = self._builder.stream(stride, successor)
        ahead = Prefetcher(stream.read, depth, successor=successor, interrupt=stream.interrupt)
        self.clock.start(ahead)
        return ahead

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved, _ = read_state(state)
        with self.turns.lock:
            self._end_next()
            try:
                opened = self._open(self.snapshot.fingerprint, state)
            except SnapshotError as error:
                raise self._with_way_out(error, saved.snapshot) from error
            self._start(opened)
            self.seek(saved.step)

    def advance(self, snapshot: str | None = None) -> str:
        with self.turns.lock:
            opened = self._open(snapshot, self.state_dict(), migrate=True)
            if opened.snapshot.fingerprint != self.snapshot.fingerprint:
                step = self._step
                self._end_next()
                self.snapshot = opened.snapshot  # type: ignore[assignment]
                self._arguments = {**self._arguments, "snapshot": opened.snapshot.fingerprint}
                self._start(opened)
                self.seek(step)
        return opened.snapshot.fingerprint

    def most_runs(self, num_steps: int | None = None) -> int:
        raise UserError("most_runs reads the lengths of many rows. Count where the files are: Loader(OUTPUT).most_runs(…).")

    def close(self) -> None:
        """Ends what is built ahead, and the connections. The loader stays usable."""
        with self.turns.lock:
            self._end_next()
        self._replicas.close()

    def __setstate__(self, copied: dict[str, Any]) -> None:
        saved, _ = read_state(copied["state"])
        arguments = copied["arguments"]
        if holds_snapshot(arguments["output"], saved.snapshot):
            arguments = {**arguments, "snapshot": saved.snapshot}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the original has warned
            self.__init__(**arguments)
        self._start(self._open(self.snapshot.fingerprint, copied["state"], is_exact=True))
        self._step, self._is_positioned = saved.step, True

    def _open(
        self, snapshot: str | None, state: Mapping[str, Any] | None, *, migrate: bool = False, is_exact: bool = False
    ) -> Opened:
        """Asks the service for a new run, or for one that continues."""
        given = self._arguments
        request = OpenRequest(
            output=self._replicas.address.name,
            snapshot=snapshot,
            global_batch_size=self._size,
            **{name: given[name] for name in ("split", "seed", "window", "shuffle", "group_rows")},
            mixture=_plain(given["mixture"]),
            skip=[(int(start), int(stop)) for start, stop in given["skip"]],
            skip_documents=list(given["skip_documents"]),
            skip_shards=list(given["skip_shards"]),
            drop_last=self._drop_last,
            migrate=migrate or self._migrate,
            restart=_list(given["restart"]),
            state=None if state is None else dict(state),
            is_exact=is_exact,
        )
        return self._replicas.ask("open", request.to_json(), Opened.read)

    def _start(self, opened: Opened) -> None:
        """Continues in the order of an answer."""
        given, order = self._arguments, _RemoteOrder(opened, self._drop_last)
        asks = {
            "output": self._replicas.address.name,
            "snapshot": opened.snapshot.fingerprint,
            "split": order.inventory.split,
            "seed": order.saved.seed,
            "window": order.saved.window_shards,
            "order": order.saved.order,
            "drop_last": self._drop_last,
            **{name: getattr(self.mesh, name) for name in ("data_rank", "data_size", "context_rank", "context_size", "layout")},
            "fields": tuple(given["fields"]),
            **{name: given[name] for name in ("labels", "on_corrupt")},
            "dtype": np.dtype(given["dtype"]).name,
            "pad": given["pad_cu_seqlens"],
        }
        self._builder = _RemoteBuilder(order, self._replicas, asks, self.mesh, opened.most_steps)


def files_of(output: str) -> Path | None:
    """The folder of an output where its server is on this machine, the folder can be read, and batches can be built here."""
    if find_spec("numba") is None:
        return None
    replicas = Replicas(Address.parse(output), 0)
    try:
        where = replicas.ask("where", replicas.address.name.encode(), Where.read)
    finally:
        replicas.close()
    if not where.files:
        return None
    try:
        found = read_snapshot(Root(where.files))
    except (OSError, SnapshotError):  # of another machine behind a tunnel, or of another user
        return None
    return Path(where.files) if found.fingerprint == where.snapshot else None


def holds_snapshot(output: str, fingerprint: str) -> bool:
    """Whether a service has a snapshot."""
    replicas = Replicas(Address.parse(output), 0)
    try:
        request = OpenRequest(output=replicas.address.name, snapshot=fingerprint, global_batch_size=1)
        replicas.ask("open", request.to_json(), Opened.read)
    except SnapshotError:
        return False
    finally:
        replicas.close()
    return True


def _plain(mixture: Any) -> Any:
    """An argument `mixture` as JSON has it."""
    if mixture is None:
        return None
    if isinstance(mixture, Mapping):
        return {name: _number(weight) for name, weight in mixture.items()}
    return [(None if until is None else int(until), _plain(weights)) for until, weights in mixture]


def _number(weight: Any) -> int | float | str:
    return weight if type(weight) is int else float(weight) if isinstance(weight, float) else str(weight)


def _list(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
