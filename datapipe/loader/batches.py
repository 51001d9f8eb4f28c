"""batch(step): the pure function behind every batch.

    steps  ->  samples of this rank  ->  addresses  ->  rows  ->  the requested fields, cut into batches

Several steps can be built together: one pass of arithmetic and one gather, and each batch is a set of views of the result.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np

from datapipe.errors import CorruptionError, UserError
from datapipe.loader.buffers import BufferPool
from datapipe.loader.context_slices import check_context, check_num_runs
from datapipe.loader.field_table import FIELDS, LABELLED, PIECES, Chunk, count_targets, tokens_of_rows
from datapipe.loader.options import LoaderOptions
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.order.source_order import MAX_REPLACEMENTS
from datapipe.loader.reading import FoundRows, RowReader
from datapipe.loader.share import Mesh
from datapipe.loader.step_rows import RowsAhead, StepRows, rows_of, samples_of
from datapipe.shards.blocks import KEYS, NEXT_TOKENS, SequenceRows
from datapipe.shards.removed import RemovedAtSteps
from datapipe.shards.schemas import UNLEARNED

Batch = dict[str, Any]

_NOTHING_HIDDEN = np.empty((0, 3), np.int64)
_ALONE = Mesh(data_rank=0, data_size=1)
ROWS_AT_A_TIME = 1 << 16  # Where the rows of many steps are counted: their lengths take a few MiB


class BatchBuilder:
    """Builds the batches of one rank. A batch depends on the arguments here and its step alone."""

    def __init__(self, batch_order: BatchOrder, reader: RowReader, options: LoaderOptions) -> None:
        self.batch_order, self.reader, self.options = batch_order, reader, options
        self.mesh = mesh = options.own_mesh
        self.fields, self.dtype = tuple(options.fields), np.dtype(options.dtype)
        self.damaged_shards: set[str] = set()
        self._pool = BufferPool()
        check_context(mesh, self.fields, options.labels)
        if options.pad_cu_seqlens is not None:
            num_rows = mesh.num_rows(batch_order.lineage.global_batch_size)
            check_num_runs(mesh, self.fields, options.pad_cu_seqlens, num_rows)
        self._columns = frozenset[str]().union(*(FIELDS[field].columns for field in self.fields))
        if LABELLED.intersection(self.fields):
            self._columns |= {NEXT_TOKENS} if options.labels == "shifted" else PIECES
        if mesh.splits_documents and self._columns:
            self._columns |= PIECES
        self._counts_targets = any(FIELDS[field].counts_targets for field in self.fields)
        lineage = batch_order.lineage
        self._leaves_out = bool(lineage.skips.documents or lineage.removals)
        self._removed = RemovedAtSteps(reader.removed, lineage.removals, batch_order.inventory.snapshot.fingerprint)
        self._lengths = PIECES | {UNLEARNED} | ({KEYS} if self._leaves_out else frozenset())
        if self._leaves_out or (self._counts_targets and mesh.data_size == 1):
            self._columns |= self._lengths
        self._tokens = mesh.columns(batch_order.inventory.snapshot.sequence_length)

    def build(self, step: int) -> Batch:
        return self.build_many([step])[0]

    def rows_ahead(self, successor: Callable[[int], int | None]) -> RowsAhead:
        """The rows of this rank at steps that are built in the order of `successor`, for `build_many`."""
        rows_per_step = self.mesh.num_rows(self.batch_order.lineage.global_batch_size)
        return RowsAhead(partial(rows_of, self.batch_order, self.reader, self.mesh), successor, rows_per_step)

    def build_many(self, steps: Sequence[int], ahead: RowsAhead | None = None) -> list[Batch]:
        """The batches of this rank at `steps`: disjoint views of the same arrays, so each keeps the memory of all."""
        rows = rows_of(self.batch_order, self.reader, self.mesh, steps) if ahead is None else ahead.rows_of(steps)
        borders = rows.borders
        addresses, read = self._read(rows, self._columns)
        hidden = self._hide(steps, borders, read)
        chunk = Chunk(
            steps=steps,
            borders=borders,
            read=read,
            addresses=addresses,
            batch_order=self.batch_order,
            hidden=hidden,
            mesh=self.mesh,
            columns=self._tokens,
            num_runs=self.options.pad_cu_seqlens,
            sequence_length=self.batch_order.inventory.snapshot.sequence_length,
            dtype=self.dtype,
            pool=self._pool,
            labels=self.options.labels,
            global_targets=self._count_targets(steps, borders, read, hidden) if self._counts_targets else (),
        )
        values = [FIELDS[field].make(chunk) for field in self.fields]
        return [dict(zip(self.fields, batch)) for batch in zip(*values)] if values else [{} for _ in steps]

    def samples(self, step: int) -> np.ndarray:
        return samples_of(self.batch_order, self.mesh, [step])[0]

    def most_runs(self, step: int, num_steps: int | None) -> int:
        """The most runs that any rank has in any of `num_steps` batches from `step` on; None: in all that are left."""
        if num_steps is None and self.batch_order.num_steps is None:
            raise UserError("most_runs: this run has no end. Give the number of steps to count: most_runs(num_steps=100_000).")
        if num_steps is not None and num_steps < 1:
            raise UserError(f"most_runs: num_steps={num_steps}. Expected at least 1.")
        at_a_time = max(1, ROWS_AT_A_TIME // self.batch_order.lineage.global_batch_size)
        upcoming, most = islice(self.batch_order.steps.upcoming(step), num_steps), 1
        while steps := list(islice(upcoming, at_a_time)):
            borders, read = self._read_whole(steps, PIECES)
            # runs: (num_rows,) documents, and the padding of the row
            runs = np.diff(read.piece_offsets) + (tokens_of_rows(read) < self.batch_order.inventory.snapshot.sequence_length)
            before, ranks = np.concatenate([[0], np.cumsum(runs)]), np.arange(self.mesh.data_size + 1)
            for start, stop in pairwise(borders):
                most = max(most, int(np.diff(before[start + ranks * (stop - start) // self.mesh.data_size]).max()))
        return most

    def _read_whole(self, steps: Sequence[int], columns: frozenset[str]) -> tuple[tuple[int, ...], SequenceRows]:
        """The rows of all ranks at some steps, and the borders of the steps."""
        rows = rows_of(self.batch_order, self.reader, _ALONE, steps)
        return rows.borders, self._read(rows, columns)[1]

    def _read(self, rows: StepRows, columns: frozenset[str]) -> tuple[np.ndarray, SequenceRows]:
        """Addresses of some rows, and the rows; with `on_corrupt="replace"`, damaged rows are replaced."""
        try:
            return rows.found.addresses, self._rows(rows.found, columns)
        except CorruptionError:
            if self.options.on_corrupt == "raise":
                raise
        addresses = rows.found.addresses.copy()
        for number, sample in enumerate(rows.samples):
            addresses[number] = self._readable_address(sample, int(addresses[number]))
        return addresses, self._rows(addresses, columns)

    def _rows(self, wanted_rows: np.ndarray | FoundRows, columns: frozenset[str]) -> SequenceRows:
        return self.reader.read(wanted_rows, columns, self.dtype, self._pool.empty)

    def _readable_address(self, sample: int, address: int) -> int:
        for attempt in range(1, MAX_REPLACEMENTS + 1):
            try:
                self._rows(np.array([address]), self._columns)
                return address
            except CorruptionError as error:
                shard = self.batch_order.layout.shards[int(self.batch_order.layout.find(np.array([address]))[0][0])]
                if shard.path not in self.damaged_shards:
                    self.damaged_shards.add(shard.path)
                    warnings.warn(f"{error}; damaged rows are replaced by other rows of '{shard.source}'", stacklevel=2)
                if attempt == MAX_REPLACEMENTS:
                    raise
            address = int(self.batch_order.addresses_of(np.array([sample]), attempt)[0])
        raise AssertionError(sample)

    def _count_targets(self, steps: Sequence[int], borders: Sequence[int], read: SequenceRows, hidden: np.ndarray) -> list[int]:
        """The labels that count in each global batch. This rank's rows suffice if it is alone."""
        if self.mesh.data_size > 1:
            borders, read = self._read_whole(steps, self._lengths)
            hidden = self._hide(steps, borders, read)
        return count_targets(read, hidden, borders, self.options.labels)

    def _hide(self, steps: Sequence[int], borders: Sequence[int], read: SequenceRows) -> np.ndarray:
        """Turns the tokens of left-out documents into padding. Returns `Chunk.hidden`."""
        if not self._leaves_out:
            return _NOTHING_HIDDEN
        left_out = np.zeros(len(read.piece_lengths), np.bool_)
        for step, first_row, stop_row in zip(steps, borders, borders[1:]):
            pieces = slice(int(read.piece_offsets[first_row]), int(read.piece_offsets[stop_row]))
            left_out[pieces] = self.left_out(step, read.keys[pieces])
        pieces = np.flatnonzero(left_out)
        rows = np.searchsorted(read.piece_offsets, pieces, "right") - 1
        ends = np.cumsum(read.piece_lengths, dtype=np.int64)
        stops = ends[pieces] - (ends - read.piece_lengths)[read.piece_offsets[rows]]  # of its row
        starts = stops - read.piece_lengths[pieces]
        read.keys[pieces] = 0
        eos_id = self.batch_order.inventory.snapshot.tokenizer.eos_id
        for row, start, stop in zip(rows, starts, stops) if len(read.tokens) else ():
            read.tokens[row, start:stop] = eos_id
        return np.stack([rows, starts, stops], axis=1).astype(np.int64)

    def left_out(self, step: int, keys: np.ndarray) -> np.ndarray:
        """Which documents are padding at a step, because the run leaves them out or they were taken down: (n,) bool."""
        left_out = self._removed.at(step).holds(keys)
        if skipped := self.batch_order.left_out_documents(step):
            left_out |= np.array([key.tobytes() in skipped for key in keys], np.bool_)
        return left_out
