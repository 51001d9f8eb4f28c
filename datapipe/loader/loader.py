"""The loader of one rank: an iterator over batches whose only state is its next step.

    Loader("runs/x", global_batch_size=32, rank=0, world_size=4)
        __iter__          batch(step), batch(step + 1), … from the next step on, built ahead by threads
        __next__          one batch, for loops without `for`; both move the same position
        batch(step)       any batch, at any time, in constant time
        state_dict()      the next step and the history of the run; counts the batches handed out, or those before a step

Opening a loader reads snapshot.json and nothing else. A shard is opened when its first row is read, and threads start at the
first batch, so a loader may be opened before a fork.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from datapipe.credentials import masked
from datapipe.errors import SnapshotError
from datapipe.kernels.compiling import compile_at_once
from datapipe.loader.batches import Batch, BatchBuilder, OnCorrupt
from datapipe.loader.cache.cache import ReadAhead
from datapipe.loader.chunk import Labels
from datapipe.loader.field_table import GLOBAL, PER_TOKEN
from datapipe.loader.iteration import Iteration
from datapipe.loader.options import (
    check_arguments,
    plan_batch,
    plan_cache,
    plan_mesh,
    plan_prefetch,
    plan_restart,
    plan_run,
)
from datapipe.loader.order.batch_order import BatchOrder, check_same_rows, resume_run
from datapipe.loader.order.layout import Split
from datapipe.loader.order.recipe import Override
from datapipe.loader.order.state import LoaderState, check_same_order, read_state, state_at
from datapipe.loader.reading import RowReader
from datapipe.loader.remote.address import is_service
from datapipe.loader.share import Mesh, warn_of_ragged_ranks
from datapipe.loader.stats import StepClock
from datapipe.loader.turns import Turns
from datapipe.shards.manifest import Snapshot, has_snapshot, read_snapshot
from datapipe.storage import Root

KERNELS = (
    "datapipe.kernels.tokens.batch:shifted_labels_int64",
    "datapipe.kernels.tokens.gather:copy_rows_int64",
    "datapipe.kernels.tokens.gather:count_chunks",
    "datapipe.kernels.tokens.gather:find_cut",
    "datapipe.kernels.tokens.gather:find_rows",
    "datapipe.kernels.tokens.gather:gather_lengths",
    "datapipe.kernels.tokens.permute:shuffle_table",
    "datapipe.kernels.tokens.quota:assign",
    "datapipe.kernels.tokens.windows:find_addresses",
)
"""What every loader with the usual fields calls; others are compiled when they are first called."""


class Loader(Iteration):
    """Streams the batches of one rank; see `field_table.py` for the fields.

    A loader keeps its position: every `for` over it continues where the last one stopped, after a break or an exception too,
    and so does `next(loader)`. A training loader stays at its end. A validation loader starts over with each `for`, since every
    pass over it is the same, unless a state or `seek` has just set its position. `len(loader)` is the number of batches of a
    whole run, wherever the loader is; a run without end has none. A copy by `pickle` or `copy.deepcopy` is at the same position
    of the same history, and opens files of its own. Several threads may take batches: each batch is handed out once.

    The arguments hold from the loader's position on. A state that was saved with another batch size, or with fewer skips, is
    accepted, and the change is written into the lineage of the states that follow. A state of another mixture or of other data
    is refused unless `migrate` is set. `datapipe/loader/README.md` explains states and changes.

    Args:
        output: the output of a run, a path or URL; or its URL on a service, such as grpc+tls://a:8815,b:8815/runs/web, whose
            servers build the batches (`datapipe serve`).
        snapshot: the fingerprint of a snapshot, or its first digits; by default the newest. `datapipe snapshots` lists them.
        global_batch_size: rows over all ranks. Give exactly one of `global_batch_size` and `batch_size`.
        batch_size: rows of each rank; the global batch has `batch_size` rows for every rank, `batch_size * world_size` in all.
        rank: number of this trainer, from 0.
        world_size: number of trainers that share each global batch. By default both are those of `torch.distributed` where it
            has begun, else RANK and WORLD_SIZE of the environment, as torchrun sets them, else 0 and 1. See `world.py`.
        mesh: instead of rank and world size, where several ranks read the same rows, or parts of them.
        split: "train"; or "validation", which gives every held-out sequence once, in order, with a smaller last batch.
        fields: fields of each batch.
        labels: "shifted" (the next token), or "unshifted" for models that shift labels themselves, as Hugging Face's do.
        dtype: int64 or int32, of the fields with one number per token.
        seed: of the permutations, from 0 to 2^64 - 1; the snapshot's by default.
        window: shards of a source whose rows are mixed at a time, 0 for all; the snapshot's by default. See
            `order/source_order.py`.
        shuffle: False: the rows of each source in the order of its shards, epoch after epoch; the sources are mixed as always.
        group_rows: rows that come one after another from one source. 1: sources are mixed row by row. The global batch size:
            every batch is of one source. The rows of a rank: every rank's part of a batch is. See `order/groups.py`.
        mixture: weights instead of the snapshot's: {source: weight}, or phases [(token at which the phase ends, weights), …].
            The last phase ends at None.
        skip: ranges (start, stop) of steps that are not handed out, stop not included. All other steps keep their batches.
        skip_documents: documents whose tokens become padding, each as SOURCE/PATH:POSITION or as the 32 hex digits of its key.
        skip_shards: paths of shards, as in the snapshot, whose rows are replaced by other rows of their source. A path without
            the digest of the content names the shard, too.
        migrate: accept states of another mixture, or of a snapshot with other sources. Each source continues after the samples
            drawn so far.
        restart: with `migrate`, sources that hold other rows than before and start over.
        on_corrupt: "raise" an error for rows that are damaged in storage; or "replace" them by other rows of their source,
            with a warning that names the shard. Every rank chooses the same rows while the damage lasts. The replacement is
            not part of the state; `skip_shards` leaves a shard out for good and is.
        pad_cu_seqlens: runs (documents, and the padding of rows) that `cu_seqlens` always has room for, so that it has the same
            length in every batch, and `max_seqlen` the same value: for CUDA graphs and torch.compile. See `most_runs`.
        drop_last: what becomes of rows at the end of a run that make no whole batch. False: a smaller last batch, shared by the
            ranks as every batch is, so that a rank may have none. True: left out. By default: left out with a warning. A
            validation always keeps them, and refuses True.
        cache_bytes: size of the local cache for snapshots on object stores, which fetches whole shards before they are needed;
            0 for none. By default 16 GiB, and at most half of the free disk space.
        cache_folder: folder of that cache; $XDG_CACHE_HOME/datapipe/shards by default. Ranks and runs on one machine share it.
        prefetch: batches built ahead; 0 builds in the caller. By default as many as fit into 8 MiB, between 4 and 32. One
            thread builds them from a local disk; from an object store, where threads wait for requests, up to 16 do.
    """

    _files: Path | None = None
    """Of an output on a service, where they are read here."""

    def __new__(cls, output: str | Path = "", **options: Any) -> Self:
        loader = object.__new__(cls)
        loader.turns = Turns()
        if cls is Loader and is_service(str(output)):
            from datapipe.loader.remote.loader import RemoteLoader, files_of

            loader._files = files_of(str(output))
            if loader._files is None:
                return RemoteLoader.__new__(RemoteLoader)  # type: ignore[return-value]  # a subclass
        return loader

    def __init__(
        self,
        output: str | Path,
        *,
        snapshot: str | None = None,
        global_batch_size: int | None = None,
        batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Mesh | None = None,
        split: Split = "train",
        fields: Sequence[str] = ("input_ids", "labels"),
        labels: Labels = "shifted",
        dtype: npt.DTypeLike = np.int64,
        seed: int | None = None,
        window: int | None = None,
        shuffle: bool = True,
        group_rows: int = 1,
        mixture: Override | None = None,
        skip: Sequence[tuple[int, int]] = (),
        skip_documents: Sequence[str] = (),
        skip_shards: Sequence[str] = (),
        migrate: bool = False,
        restart: Sequence[str] = (),
        on_corrupt: OnCorrupt = "raise",
        pad_cu_seqlens: int | None = None,
        drop_last: bool | None = None,
        cache_bytes: int | None = None,
        cache_folder: str | Path | None = None,
        prefetch: int | None = None,
    ) -> None:
        output = self._files or output
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        check_arguments(self._arguments)
        compile_at_once(KERNELS)
        self.mesh = self._arguments["mesh"] = plan_mesh(self._arguments)  # a copy in another process has the same rank
        self._arguments["rank"] = self._arguments["world_size"] = None
        size = plan_batch(global_batch_size, batch_size, self.mesh)
        if not GLOBAL.intersection(fields):  # which scale the loss
            warn_of_ragged_ranks(self.mesh, size)
        root = Root(str(output))
        self.snapshot: Snapshot = read_snapshot(root, snapshot)
        self.mesh.check(self.snapshot.sequence_length)
        self._migrate = migrate
        self._restart = plan_restart(restart, migrate, tuple(self.snapshot.sources))
        self._tells_dropped = drop_last is None and (self.mesh.data_rank, self.mesh.context_rank) == (0, 0)

        self._fresh = plan_run(root, self.snapshot, size, self._arguments)
        inventory = self._fresh.inventory

        self._is_local = root.local is not None
        self._cache = None if self._is_local else plan_cache(root, inventory, cache_bytes, cache_folder)
        copies = None if self._cache is None else self._cache.path_of
        self._reader = RowReader(root, self.snapshot, inventory.layout, copies)
        self._read_ahead = None if self._cache is None else ReadAhead(self._cache, self._reader)
        options = (fields, labels, np.dtype(dtype), on_corrupt, pad_cu_seqlens)
        self._builder = BatchBuilder(self._fresh, self._reader, self.mesh, *options)
        rows, per_token = self.mesh.rows(size), [field for field in fields if field in PER_TOKEN]
        row_bytes = self.snapshot.sequence_length * np.dtype(dtype).itemsize * len(per_token)
        self._prefetch = plan_prefetch((rows.stop - rows.start) * row_bytes) if prefetch is None else prefetch
        self.clock = StepClock(per_token[0] if per_token else None)

        self.seek(0)
        self._is_positioned = False

    @property
    def sources(self) -> tuple[str, ...]:
        """Source names; the field `sources` holds indices into them."""
        return self.batch_order.layout.sources

    def batch(self, step: int) -> Batch:
        """This rank's batch at `step`: a function of the snapshot, the lineage and the arguments, not of earlier reads."""
        self.batch_order.check_step(step)
        return self._builder.build(step)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state after the batches handed out, ready for JSON.

        Args:
            step: the next step to train, for a trainer that has taken batches ahead: `batch["step"] + 1` of the last batch that
                it trained on (with "step" among the fields). The state then counts the batches before it.
        """
        return self._state(step).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the batches that `state` counts, on any rank of any world.

        Raises SnapshotError, with the reason, for a state of another seed, split, window or tokenizer; for one past the end
        of the run; and, unless the loader was opened with `migrate`, for a state of other data or another mixture.
        """
        saved, lineage = read_state(state)
        try:
            check_same_order(saved, self._state())
            resumed = resume_run(lineage, saved.step, self._fresh, migrate=self._migrate, restart=self._restart)
        except SnapshotError as error:
            raise self._with_way_out(error, saved.snapshot) from error
        with self.turns.lock:
            self._builder = self._builder.on(resumed)
            self._end_next()
            self.seek(saved.step)

    def advance(self, snapshot: str | None = None) -> str:
        """Moves to a later snapshot of the output at the next step, also in an iteration; returns its fingerprint.

        Sources may have grown, and weights have changed. What was handed out before stays as it was; the state holds the move.
        All ranks must move to one snapshot at one step: one of them calls `advance()`, and the others get what it returned.
        Raises SnapshotError, and stays where it is, where rows that were drawn are gone.

        Args:
            snapshot: as for the loader; None for the newest.
        """
        found = read_snapshot(Root(str(self._arguments["output"])), snapshot).fingerprint
        with self.turns.lock:
            if found != self.snapshot.fingerprint:
                self._move_to(found)
        return found

    def _move_to(self, fingerprint: str) -> None:
        """Becomes a loader of another snapshot, at the same position."""
        arguments, state = {**self._arguments, "snapshot": fingerprint}, self.state_dict()
        moved = type(self)(**{**arguments, "migrate": True})
        moved.load_state_dict(state)
        self.close()
        moved._arguments, moved._migrate, moved.clock, moved.turns = arguments, self._migrate, self.clock, self.turns
        self.__dict__ = moved.__dict__

    def most_runs(self, num_steps: int | None = None) -> int:
        """A `pad_cu_seqlens` for the next `num_steps` batches of all ranks, by default all that are left; reads lengths."""
        return self._builder.most_runs(self._step, num_steps)

    def __getstate__(self) -> dict[str, Any]:
        """The arguments, the position and the history, with which a copy opens the files itself."""
        return {"arguments": self._arguments, "state": self.state_dict()}

    def __setstate__(self, copied: dict[str, Any]) -> None:
        saved, lineage = read_state(copied["state"])
        arguments = copied["arguments"]
        if Loader.holds_snapshot(str(arguments["output"]), saved.snapshot):  # a run may have published a newer one
            arguments = {**arguments, "snapshot": saved.snapshot}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the original has warned
            self.__init__(**arguments)
        check_same_rows(lineage, self._fresh.inventory)
        self._builder = self._builder.on(BatchOrder(self._fresh.inventory, lineage, self._fresh.drop_last))
        self._step, self._is_positioned = saved.step, True

    @staticmethod
    def holds_snapshot(output: str, fingerprint: str) -> bool:
        """Whether an output has a snapshot."""
        if is_service(output):
            from datapipe.loader.remote.loader import holds_snapshot

            return holds_snapshot(output, fingerprint)
        return has_snapshot(Root(output), fingerprint)

    def _with_way_out(self, error: SnapshotError, fingerprint: str) -> SnapshotError:
        """`error` about a state, with the call that opens the snapshot which the state was saved with."""
        output = str(self._arguments["output"])
        if fingerprint == self.snapshot.fingerprint:
            return error
        if Loader.holds_snapshot(output, fingerprint):
            shown = json.dumps(masked(output), ensure_ascii=False)
            return SnapshotError(
                f"{error} The output still has the snapshot of the state, and goes on with it: "
                f'Loader({shown}, snapshot="{fingerprint[:12]}", …), and the other arguments as before.'
            )
        return SnapshotError(f"{error} The output has no snapshot {fingerprint[:12]}: `datapipe snapshots` lists what it has.")

    def close(self) -> None:
        """Closes open shards, and stops fetching others and building ahead for `next`. The loader stays usable."""
        with self.turns.lock:
            self._end_next()
        self._reader.close()
        if self._cache is not None:
            self._cache.close()

    def _state(self, step: int | None = None) -> LoaderState:
        with self.turns.lock:
            return state_at(self._step if step is None else self.handed_out(step), self.batch_order)
