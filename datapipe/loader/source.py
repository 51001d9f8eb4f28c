"""The batches of a rank by step, from the files of an output: `FileSource`. `remote/source.py` has those from a service."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Self

from datapipe.errors import UserError
from datapipe.kernels.compiling import compile_at_once
from datapipe.loader.batches import Batch, BatchBuilder
from datapipe.loader.cache.cache import ReadAhead, ShardCache, plan_budget
from datapipe.loader.options import LoaderOptions
from datapipe.loader.order.batch_order import BatchOrder, begin_run, check_same_rows, resume_run
from datapipe.loader.order.layout import Layout
from datapipe.loader.order.lineage import Lineage, Skips
from datapipe.loader.order.recipe import check_keys, recipe_of
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.order.state import LoaderState, check_same_order, state_at
from datapipe.loader.prefetch import MAX_THREADS, Prefetcher
from datapipe.loader.reading import RowReader
from datapipe.shards.document_files import document_keys, files_with_hashes
from datapipe.shards.leaves import leaves_named
from datapipe.shards.manifest import Snapshot, read_tokens
from datapipe.shards.snapshot_folder import output_of
from datapipe.storage.root import Root

KERNELS = (
    "datapipe.kernels.tokens.gather:copy_rows_int64",
    "datapipe.kernels.tokens.gather:copy_with_next_int64",
    "datapipe.kernels.tokens.gather:find_rows",
    "datapipe.kernels.tokens.permute:shuffle_table",
    "datapipe.kernels.tokens.quota:assign",
    "datapipe.kernels.tokens.windows:find_addresses",
)
"""What every loader with the usual fields calls; others are compiled when they are first called."""


class FileSource:
    """Batches from the files of an output. `options` have the rank (`LoaderOptions.with_rank`)."""

    def __init__(self, output: str, options: LoaderOptions) -> None:
        compile_at_once(KERNELS)
        self._root, length = output_of(Root(output))
        options = options if length is None else options.model_copy(update={"sequence_length": length})
        self.output, self._options = output, options
        self.waits_for_network = self._root.local is None
        self.num_threads = MAX_THREADS if self.waits_for_network else 1
        self.snapshot = read_tokens(self._root, options.snapshot, options.sequence_length)
        options.own_mesh.check(self.snapshot.sequence_length)
        self._fresh = plan_run(self._root, self.snapshot, options)
        layout = self._fresh.inventory.layout
        self._cache, self._reader, self._read_ahead = open_rows(self._root, self.snapshot, layout, options)
        self._continue(self._fresh)

    def _continue(self, order: BatchOrder) -> None:
        self.run, self._builder = order, BatchBuilder(order, self._reader, self._options)

    def build(self, step: int) -> Batch:
        return self._builder.build(step)

    def prefetcher(self, depth: int, stride: int) -> Prefetcher:
        """Builds every `stride`-th step ahead. Threads start at the first batch."""
        builder, read_ahead = self._builder, self._read_ahead
        successor = partial(builder.batch_order.steps.following, stride=stride)
        rows_ahead = builder.rows_ahead(successor)

        def build_many(steps: Sequence[int]) -> list[Batch]:
            if read_ahead is not None:
                read_ahead.announce(builder.batch_order, steps[0])
            return builder.build_many(steps, rows_ahead)

        late = not self.waits_for_network
        return Prefetcher(build_many, depth, successor=successor, num_threads=self.num_threads, requests_late=late)

    def resume(self, saved: LoaderState, lineage: Lineage, *, is_exact: bool = False) -> None:
        """Continues a saved run with the options of this source. Raises SnapshotError for a state of another order."""
        self._continue(resumed(saved, lineage, self._fresh, self._options, is_exact=is_exact))

    def moved(self, snapshot: str | None, saved: LoaderState, lineage: Lineage) -> Self:
        """The source of the same run in another snapshot, by default the newest; this source if it reads that snapshot."""
        fingerprint = read_tokens(output_of(Root(self.output))[0], snapshot).fingerprint
        if fingerprint == self.snapshot.fingerprint:
            return self
        options = self._options.model_copy(update={"snapshot": fingerprint, "migrate": True})
        moved = type(self)(self.output, options)
        moved.resume(saved, lineage)
        moved._options = options.model_copy(update={"migrate": self._options.migrate})
        return moved

    def most_runs(self, step: int, num_steps: int | None) -> int:
        return self._builder.most_runs(step, num_steps)

    def close(self) -> None:
        self._reader.close()
        if self._cache is not None:
            self._cache.close()


def plan_run(root: Root, snapshot: Snapshot, options: LoaderOptions) -> BatchOrder:
    """The order of a new run. Raises UserError for options that do not fit the snapshot."""
    size, rows = options.num_rows, options.group_rows
    if rows % size and size % rows:
        raise UserError(
            f"group_rows={rows} with a global batch of {size} rows: expected a number that divides it or is a multiple of it, "
            f"so that no batch cuts a group. {size} makes every batch of one source."
        )
    check_keys("restart", options.restart, snapshot.sources)
    seed = snapshot.seed if options.seed is None else options.seed
    window = snapshot.window_shards if options.window is None else options.window
    inventory = Inventory(snapshot, options.split, seed, window, shuffle=options.shuffle)
    keys = _keys_to_skip(root, snapshot, options.skip_documents)
    skips = Skips(steps=tuple(options.skip), documents=dict.fromkeys(keys, 0), shards=dict.fromkeys(options.skip_shards, 0))
    recipe = recipe_of(snapshot, options.mixture, rows)
    return begin_run(inventory, recipe, size, skips, drop_last=options.drop_last is not False)


def _keys_to_skip(root: Root, snapshot: Snapshot, documents: Sequence[str]) -> list[str]:
    keys = document_keys(root, snapshot, documents)
    files = {number for number, _, _ in files_with_hashes(root, snapshot)} if documents else set()
    unknown = [name for name, key in zip(documents, keys) if files and int.from_bytes(key[:8], "big") not in files]
    if unknown:
        more = f" and {len(unknown) - 3:,} more" if len(unknown) > 3 else ""
        raise UserError(
            f"skip_documents: {', '.join(unknown[:3])}{more}: no file of this snapshot has such a document. Expected keys, or "
            f"names, as `datapipe trace --step` and `datapipe inspect` print them for this output."
        )
    return [key.hex() for key in keys]


def resumed(saved: LoaderState, lineage: Lineage, fresh: BatchOrder, options: LoaderOptions, *, is_exact: bool) -> BatchOrder:
    """The order of a saved run that continues as `fresh`, a new run with these options. Raises SnapshotError if it cannot."""
    if is_exact:
        check_same_rows(lineage, fresh.inventory)
        return BatchOrder(fresh.inventory, lineage, fresh.drop_last)
    check_same_order(saved, state_at(0, fresh))
    return resume_run(
        lineage,
        saved.step,
        fresh,
        migrate=options.migrate,
        restart=frozenset(leaves_named(options.restart, fresh.inventory.snapshot.sources)),
    )


def open_rows(
    root: Root, snapshot: Snapshot, layout: Layout, options: LoaderOptions
) -> tuple[ShardCache | None, RowReader, ReadAhead | None]:
    """The reader of a split's rows. For an object store it has a cache, whose threads start at the first batch."""
    folder = None if options.cache_folder is None else Path(options.cache_folder)
    budget_bytes, path = (0, None) if root.local is not None else plan_budget(options.cache_bytes, folder)
    cache = ShardCache(root, layout.shards, path, budget_bytes) if budget_bytes and path else None
    reader = RowReader(root, snapshot, layout, None if cache is None else cache.path_of)
    return cache, reader, None if cache is None else ReadAhead(cache, reader)
