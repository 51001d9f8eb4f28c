"""The loader of one rank: an iterator over batches whose only state is where it stands.

    Loader("runs/x", global_batch_size=32, rank=0, world_size=4)
        __iter__          from where it stands: batch(step), batch(step + 1), …, built ahead by threads
        batch(step)       any batch, at any time, in constant time
        state_dict()      where it stands and how the run came there; counts batches handed out

Opening reads snapshot.json and nothing else; shards are opened when their first row is read, and threads start at the first
batch (so a loader may be made before a fork).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.errors import UserError, suggest
from datapipe.kernels.compiling import compile_at_once
from datapipe.loader.batches import PER_TOKEN, Batch, BatchBuilder, Labels, OnCorrupt
from datapipe.loader.cache.cache import ShardCache
from datapipe.loader.cache.lookahead import Lookahead, plan_budget
from datapipe.loader.order import batch_order as course
from datapipe.loader.order.batch_order import Course
from datapipe.loader.order.layout import Split
from datapipe.loader.order.lineage import Skips
from datapipe.loader.order.recipe import Override, recipe_of
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.order.steps import merged
from datapipe.loader.prefetch import MAX_THREADS, Prefetcher
from datapipe.loader.reading import RowReader
from datapipe.loader.share import Balance, Mesh
from datapipe.loader.state import LoaderState, check_same_order, read_state
from datapipe.loader.stats import LoaderStats, StepClock
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.storage import Root

LEAST_PREFETCH, MOST_PREFETCH, PREFETCH_BYTES = 4, 32, 8 << 20
"""Batches built ahead unless the user says otherwise."""

KERNELS = (
    "datapipe.kernels.loader.batch:shifted_labels_64",
    "datapipe.kernels.loader.gather:copy_16_to_int64",
    "datapipe.kernels.loader.gather:count_pieces",
    "datapipe.kernels.loader.gather:find_rows",
    "datapipe.kernels.loader.gather:gather_lengths",
    "datapipe.kernels.loader.permute:shuffle_table",
    "datapipe.kernels.loader.quota:descend",
)
"""What every loader with the usual fields calls; others are compiled when they are first called."""


class Loader:
    """Streams the batches of one rank; see `batches.py` for the fields.

    A loader is its own position: every `for` over it goes on where the last one stopped, breaks and exceptions included.
    A training loader that has reached its end stays there. A validation loader that has reached its end starts again, since
    every pass over it is the same.

    What it is opened with is what holds from its position on. A state that was saved with another batch size, or with fewer
    steps, documents or shards left out, is taken up, and the change is written into the lineage of the states that follow. One
    of another mixture or other data is refused, unless `migrate` says that the change is meant.

    Args:
        output: the output of a run, a path or URL.
        global_batch_size: rows over all ranks. Exactly one of this and `batch_size` is given.
        batch_size: rows of each rank; the global batch has `batch_size` times as many as there are ranks.
        rank: this trainer, from 0.
        world_size: how many trainers share each global batch.
        mesh: in the place of rank and world size, where several ranks get the same rows, or parts of them.
        split: "train", or "validation": every held-out sequence once, in order, the last batch smaller if need be.
        fields: what each batch holds.
        labels: "shifted" (the next token), or "unshifted" for models that shift, as Hugging Face's do.
        dtype: int64 or int32, of the fields with one number per token.
        seed: of the permutations; the snapshot's own by default.
        window: shards of a source whose rows are mixed at a time, 0 for all; the snapshot's own by default. See `epochs.py`.
        mixture: weights in the place of the snapshot's: {source: weight}, or phases [(token at which it ends, weights), …] of
            which the last ends at None.
        skip: ranges (start, stop) of steps that are not handed out, the stop not included; all others stay what they are.
        skip_documents: keys of documents whose tokens become padding.
        skip_shards: paths of shards, as in the snapshot, whose rows are replaced by others of their source.
        migrate: take up states of another mixture, or of a snapshot with other sources: each source goes on from its place.
        restart: with `migrate`, sources that hold other rows than before, and begin again.
        on_corrupt: what becomes of rows that are damaged where they are stored: "raise", or "replace" them by others of their
            source, with a warning that names the shard, the same on every rank as long as the damage is there. States do not
            know of it; `skip_shards` leaves a shard out for good, and states remember.
        balance: "rows": contiguous slices of the global batch. "attention": as many rows for each rank, but dealt so that the
            work of attention within documents is even; every rank reads the lengths of the whole batch for it.
        check: hold every block against its checksum when it is first used.
        cache_bytes: of a local cache for snapshots on object stores, which fetches whole shards before they are needed; 0 for
            none. By default 16 GiB, but no more than half of what the disk has free.
        cache_folder: of that cache; $XDG_CACHE_HOME/datapipe/shards by default. Ranks of one machine, and runs, share it.
        prefetch: batches built ahead; 0 builds in the caller. By default as many as 8 MiB hold, 4 at least and 32 at most.
            From a local disk one thread builds them all; from an object store several do (16 at most): they wait for requests.
    """

    def __init__(
        self,
        output: str | Path,
        *,
        global_batch_size: int | None = None,
        batch_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        mesh: Mesh | None = None,
        split: Split = "train",
        fields: Sequence[str] = ("input_ids", "labels"),
        labels: Labels = "shifted",
        dtype: npt.DTypeLike = np.int64,
        seed: int | None = None,
        window: int | None = None,
        mixture: Override | None = None,
        skip: Sequence[tuple[int, int]] = (),
        skip_documents: Sequence[str] = (),
        skip_shards: Sequence[str] = (),
        migrate: bool = False,
        restart: Sequence[str] = (),
        on_corrupt: OnCorrupt = "raise",
        balance: Balance = "rows",
        check: bool = True,
        cache_bytes: int | None = None,
        cache_folder: str | Path | None = None,
        prefetch: int | None = None,
    ) -> None:
        given = {"global_batch_size": global_batch_size, "batch_size": batch_size, "rank": rank, "world_size": world_size}
        _check_whole({**given, "seed": seed, "window": window, "cache_bytes": cache_bytes, "prefetch": prefetch})
        _check_choices(split, labels, np.dtype(dtype), on_corrupt, balance, prefetch, window)
        compile_at_once(KERNELS)
        self.mesh = _plan_mesh(mesh, rank, world_size)
        size = _plan_batch(global_batch_size, batch_size, self.mesh)
        root = Root(str(output))
        self.snapshot: Snapshot = read_snapshot(root)
        self.mesh.check(self.snapshot.sequence_length)
        seed = self.snapshot.seed if seed is None else seed
        inventory = Inventory(self.snapshot, split, seed, self.snapshot.window_shards if window is None else window)
        skips = Skips(steps=merged(skip), documents=dict.fromkeys(skip_documents, 0), shards=dict.fromkeys(skip_shards, 0))
        self._fresh = course.begin(inventory, recipe_of(self.snapshot, mixture), size, skips)
        self._migrate, self._restart = migrate, _plan_restart(restart, migrate, tuple(self.snapshot.sources))
        self._is_local = root.local is not None
        self._cache = self._lookahead = None
        budget, folder = (
            (0, Path()) if self._is_local else plan_budget(cache_bytes, None if cache_folder is None else Path(cache_folder))
        )
        if budget:
            self._cache = ShardCache(root, inventory.layout.shards, folder, budget)
        copies = None if self._cache is None else self._cache.found
        self._reader = RowReader(root, self.snapshot, inventory.layout, check=check, local_copy=copies)
        if self._cache is not None:
            self._lookahead = Lookahead(self._cache, self._reader)
        self._builder = BatchBuilder(self._fresh, self._reader, self.mesh, fields, labels, np.dtype(dtype), on_corrupt, balance)
        rows = self.mesh.rows(size)
        batch_bytes = (rows.stop - rows.start) * self.snapshot.sequence_length * np.dtype(dtype).itemsize
        self._prefetch = (
            _plan_prefetch(batch_bytes * sum(field in PER_TOKEN for field in fields)) if prefetch is None else prefetch
        )
        self._step = self._fresh.steps.next(0)
        self.clock = StepClock(next((field for field in fields if field in PER_TOKEN), None))

    @property
    def course(self) -> Course:
        """The run as this loader sees it: from steps to addresses, and its lineage."""
        return self._builder.course

    @property
    def sources(self) -> tuple[str, ...]:
        """Source names, in the order that the field `sources` counts them."""
        return self.course.layout.sources

    @property
    def split(self) -> Split:
        """Training or validation."""
        return self.course.inventory.split

    @property
    def global_batch_size(self) -> int:
        return self.course.lineage.global_batch_size

    @property
    def num_steps(self) -> int | None:
        """Where the steps end, those that are skipped counted too; None for an endless loader.

        Training ends after `total_tokens // (S * global_batch_size)` whole batches if the mixture sets `tokens`, and before the
        first batch in which a source would pass its `max_epochs`, whichever comes first.
        """
        return self.course.num_steps

    @property
    def step(self) -> int:
        """The next step to hand out."""
        return self._step

    def batch(self, step: int) -> Batch:
        """This rank's batch at `step`: a function of the snapshot, the lineage and the arguments, whatever was read before."""
        self.course.check_step(step)
        return self._builder.build(step)

    def __iter__(self) -> Iterator[Batch]:
        """Batches from where the loader stands. Closing the iterator, or forgetting it, stops its threads."""
        if self.split == "validation" and self._step >= (self.num_steps or 0):
            self.seek(0)
        return self._iterate()

    def _iterate(self) -> Iterator[Batch]:
        while self._has_more():
            builder, ahead = self._builder, self.prefetcher(stride=1)
            self.clock.start(ahead)
            try:
                while builder is self._builder and self._has_more():
                    asked_at = self.clock.asks()
                    batch = ahead.take(self._step)
                    self.clock.takes(asked_at, batch)
                    self._step = self.next_step(1)
                    yield batch
                    del batch
            finally:
                ahead.close()

    def next_step(self, count: int) -> int:
        """The `count`-th step to hand out after the one that is next."""
        return self.course.steps.advance(self._step, count)

    def prefetcher(self, stride: int) -> Prefetcher:
        """What builds ahead of an iteration over every `stride`-th step. Its threads start at the first batch."""
        steps = self.course.steps

        def successor(step: int) -> int | None:
            after = steps.advance(step, stride)
            return after if steps.num_steps is None or after < steps.num_steps else None

        builder, lookahead = self._builder, self._lookahead

        def build_many(wanted: Sequence[int]) -> list[Batch]:
            if lookahead is not None:
                lookahead.follow(builder.course, wanted[0])
            return builder.build_many(wanted)

        return Prefetcher(
            build_many if lookahead else builder.build_many, self._prefetch, successor=successor, num_threads=self._num_threads
        )

    def stats(self) -> LoaderStats:
        """Whether the data is the bottleneck, over all iterations so far: `print(loader.stats())`."""
        return self.clock.stats(rank=self.mesh.data_rank, split=self.split, depth=self._prefetch, num_threads=self._num_threads)

    @property
    def _num_threads(self) -> int:
        return 1 if self._is_local else min(self._prefetch, MAX_THREADS)

    def seek(self, step: int) -> None:
        """Goes on at `step`, or after it if it is skipped, in constant time; also under a running iterator."""
        if step < 0:
            raise UserError(f"cannot go on at step {step}: steps count from 0.")
        self._step = self.course.steps.next(step)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: after the batches handed out. JSON holds it as it is."""
        return self._state().as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on exactly after the batches that `state` counts, on any rank of any world.

        Raises SnapshotError, with what differs, for a state of another seed, split, window or tokenizer; and, unless the loader
        was opened with `migrate`, for one of other data or another mixture.
        """
        saved, lineage = read_state(state)
        check_same_order(saved, self._state())
        resumed = course.resume(lineage, saved.step, self._fresh, migrate=self._migrate, restart=self._restart)
        self._builder = self._builder.on(resumed)
        self.seek(saved.step)

    def close(self) -> None:
        """Lets go of open shards and stops fetching others. The loader stays usable."""
        self._reader.close()
        if self._cache is not None:
            self._cache.close()

    def _has_more(self) -> bool:
        return self.num_steps is None or self._step < self.num_steps

    def _state(self) -> LoaderState:
        inventory = self.course.inventory
        return LoaderState(
            step=self._step,
            global_batch_size=self.global_batch_size,
            split=inventory.split,
            seed=inventory.seed,
            window_shards=inventory.window_shards,
            sequence_length=self.snapshot.sequence_length,
            tokenizer=self.snapshot.tokenizer.fingerprint,
            snapshot=self.snapshot.fingerprint,
            lineage=self.course.lineage.to_json(),
        )


def _plan_mesh(mesh: Mesh | None, rank: int, world_size: int) -> Mesh:
    if mesh is None:
        return Mesh(data_rank=rank, data_size=world_size)
    if (rank, world_size) != (0, 1):
        raise UserError(
            f"mesh together with rank={rank}, world_size={world_size}: give the mesh alone, or rank and world size."
        )
    return mesh


def _plan_batch(global_batch_size: int | None, batch_size: int | None, mesh: Mesh) -> int:
    given = [size for size in (global_batch_size, batch_size) if size is not None]
    if len(given) != 1 or given[0] < 1:
        raise UserError(
            f"global_batch_size={global_batch_size}, batch_size={batch_size}: give exactly one of them, at least 1; "
            f"batch_size counts the rows of one rank, global_batch_size those of all."
        )
    return global_batch_size if global_batch_size is not None else given[0] * mesh.data_size


def _plan_restart(restart: Sequence[str], migrate: bool, sources: tuple[str, ...]) -> frozenset[str]:
    names = [restart] if isinstance(restart, str) else list(restart)
    for name in names:
        if name not in sources:
            raise UserError(f"restart: no source '{name}'.{suggest(name, sources)} Expected some of {', '.join(sources)}.")
    if names and not migrate:
        raise UserError(f"restart={names} goes with migrate=True, which takes up the state of a run with other rows.")
    return frozenset(names)


def _plan_prefetch(batch_bytes: int) -> int:
    """Batches ahead that fill a few MiB, so that many small ones are built together and a few large ones do not weigh much."""
    return max(LEAST_PREFETCH, min(MOST_PREFETCH, PREFETCH_BYTES // max(1, batch_bytes)))


def _check_whole(given: Mapping[str, object]) -> None:
    """Raises UserError for what is no int: a number of NumPy's, say, would be in a state, and JSON would not hold that."""
    for name, found in given.items():
        if found is not None and type(found) is not int:
            raise UserError(f"{name}={found!r} of type {type(found).__name__}: expected an int. Write int(…) around it.")


def _check_choices(
    split: str, labels: str, dtype: np.dtype, on_corrupt: str, balance: str, prefetch: int | None, window: int | None
) -> None:
    for name, found, expected in (
        ("split", split, ("train", "validation")),
        ("labels", labels, ("shifted", "unshifted")),
        ("dtype", dtype.name, ("int64", "int32")),
        ("on_corrupt", on_corrupt, ("raise", "replace")),
        ("balance", balance, ("rows", "attention")),
    ):
        if found not in expected:
            raise UserError(f"{name}='{found}': expected {' or '.join(expected)}.")
    if prefetch is not None and not 0 <= prefetch <= 1 << 16:
        raise UserError(f"prefetch={prefetch}: expected 0 or more batches, 65,536 at most.")
    if window is not None and window < 0:
        raise UserError(f"window={window}: expected a number of shards, or 0 for all of a source.")
