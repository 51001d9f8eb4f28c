"""From a step to the documents in its batch, and from a document to the steps it appears at, without logs.

    trace_step      step -> samples -> addresses -> rows -> pieces -> file and position of each document
    trace_document  key -> the shards its hash may be in -> addresses -> samples -> steps and ranks

Both evaluate the loader's own order, forwards and backwards, so they agree with the batches that the trainers read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.cell_names import source_of
from datapipe.dataclass import dataclass
from datapipe.document_name import document_name
from datapipe.errors import SnapshotError, UserError
from datapipe.loader.batches import ROWS_AT_A_TIME, BatchBuilder
from datapipe.loader.options import LoaderOptions
from datapipe.loader.order.batch_order import BatchOrder, begin_run
from datapipe.loader.order.layout import Split
from datapipe.loader.order.lineage import Skips
from datapipe.loader.order.recipe import recipe_of
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.order.state import read_state, saved_order
from datapipe.loader.reading import RowReader
from datapipe.loader.share import Mesh
from datapipe.rng import shuffle_hash
from datapipe.shards.blocks import EVERY_COLUMN, TOKENS, SequenceRows
from datapipe.shards.document_files import committed_file, document_keys, files_with_hashes
from datapipe.shards.manifest import Snapshot, read_tokens
from datapipe.shards.snapshot_folder import has_snapshot, output_of
from datapipe.storage.root import Root


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPiece:
    # rank, row: the rank that reads it, and the row of that rank's batch
    rank: int
    row: int
    source: str  # that the loader drew it from: a source, or a cell of one
    # shard, shard_row: where it is stored
    shard: str
    shard_row: int
    piece: int  # number of the piece in its row, from 0
    token_start: int  # token of the document at which the piece starts
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRow(BatchPiece):
    key: str  # of the document, 32 hex digits
    path: str  # of the document's file, relative to its source; empty if the snapshot has no list of files
    position: int  # in its file: byte offset of the document's line, or its row number
    text: str = ""

    @property
    def document(self) -> str:
        return document_name(source_of(self.source), self.path, self.position) if self.path else self.key


@dataclass(frozen=True, kw_only=True, slots=True)
class Appearance(BatchPiece):
    """A piece of a given document in a batch of the run; `epoch` counts its source's epochs from 0."""

    step: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentTrace:
    """The appearances of a document in a run, by step, rank and row."""

    appearances: list[Appearance]
    searched: str  # the part of the run that was searched, in words
    elsewhere: str  # steps of the run that drew from rows which this output does not hold, in words

    def check_complete(self) -> None:
        """Raises SnapshotError if appearances may be missing."""
        if self.elsewhere:
            raise SnapshotError(
                f"this output does not hold all rows that the run was trained on: {self.elsewhere}. "
                f"Trace the document in the outputs of those snapshots too."
            )


def trace_step(
    output: str | Path, step: int, *, rank: int | None = None, world_size: int = 1, text: bool = False, **run: Any
) -> list[TraceRow]:
    """The documents of the batch at `step`, or of one rank; with `text` their decoded tokens."""
    traced = open_run(output, **run)
    traced.batch_order.check_step(step)
    if traced.batch_order.steps.is_skipped(step):
        return []
    ranks = range(world_size) if rank is None else [rank]
    return [row for number in ranks for row in traced.rows(step, Mesh(data_rank=number, data_size=world_size), text)]


def trace_document(
    output: str | Path, key: str, *, num_epochs: int | None = None, world_size: int = 1, **run: Any
) -> list[Appearance]:
    """Every appearance of a document in the run, by step.

    With a state, the steps that it counts are searched, over all epochs and changes of the run; without one, a whole finite
    run, or one epoch of an endless run. `num_epochs`: number of epochs of the source to search instead. `key` may be a name
    that `InputFiles.key` takes.

    Raises SnapshotError if earlier steps of the run drew from rows that this output does not hold."""
    trace = open_run(output, **run).find_document(key, num_epochs, world_size)
    trace.check_complete()
    return trace.appearances


def open_run(
    output: str | Path,
    *,
    # of a run that never changed its batch size, and that draws by its snapshot's mixture
    global_batch_size: int | None = None,
    # of the loader of any other run; it holds the run's changes, its split and its seed
    state: Mapping[str, Any] | None = None,
    snapshot: str | None = None,
    sequence_length: int | None = None,  # by default that of the state, or the first
    split: Split = "train",
    seed: int | None = None,
) -> TracedRun:
    """Opens a run, whose order follows from `state` or `global_batch_size`."""
    root, length = output_of(Root(str(output)))
    length = sequence_length or length
    if state is not None:
        saved, lineage = read_state(state)
        if snapshot is None and has_snapshot(root, saved.snapshot):
            snapshot = saved.snapshot
        tokens = read_tokens(root, snapshot, length or saved.sequence_length)
        return TracedRun(root, tokens, saved_order(saved, lineage, tokens), saved.step)
    if global_batch_size is None or global_batch_size < 1:
        given = "no global batch size" if global_batch_size is None else f"global batch size {global_batch_size}"
        raise UserError(
            f"{given}: give the rows of a step, at least 1 (--global-batch-size N), or the loader's state (--state FILE)."
        )
    tokens = read_tokens(root, snapshot, length)
    inventory = Inventory(tokens, split, tokens.seed if seed is None else seed, tokens.window_shards)
    return TracedRun(root, tokens, begin_run(inventory, recipe_of(tokens), global_batch_size, Skips()), None)


class TracedRun:
    """The order of a run, and the shards that it reads. `steps_done` includes skipped steps; None without a state."""

    def __init__(self, root: Root, snapshot: Snapshot, batch_order: BatchOrder, steps_done: int | None) -> None:
        self.root, self.snapshot, self.batch_order, self.steps_done = root, snapshot, batch_order, steps_done
        self.reader = RowReader(root, snapshot, batch_order.layout)

    @cached_property
    def files(self) -> dict[int, tuple[str, str]]:
        """(source, path) by file hash."""
        return {number: (source, path) for number, source, path in files_with_hashes(self.root, self.snapshot)}

    def rows(self, step: int, mesh: Mesh, text: bool) -> Iterator[TraceRow]:
        builder = self._builder(mesh)
        addresses = self.batch_order.addresses_of(builder.samples(step))
        read = self.reader.read(addresses)
        left_out = builder.left_out(step, read.keys)
        for row, address in enumerate(addresses.tolist()):
            stop_token = 0
            for piece in range(*read.piece_offsets[row : row + 2].tolist()):
                key = read.keys[piece].tobytes()
                start_token, stop_token = stop_token, stop_token + int(read.piece_lengths[piece])
                ids = read.tokens[row, start_token:stop_token]
                if left_out[piece]:
                    continue
                yield TraceRow(
                    rank=mesh.data_rank,
                    row=row,
                    key=key.hex(),
                    path=self.files.get(int.from_bytes(key[:8], "big"), ("", ""))[1],
                    position=int.from_bytes(key[8:], "big"),
                    text=self._tokenizer.decode(ids.tolist(), skip_special_tokens=False) if text else "",
                    **self._stored(read, row, piece, address),
                )

    def _stored(self, read: SequenceRows, row: int, piece: int, address: int) -> dict[str, Any]:
        layout, addresses = self.batch_order.layout, np.array([address])
        [shard], [shard_row] = layout.find(addresses)
        return {
            "source": layout.sources[int(layout.source_of(addresses)[0])],
            "shard": layout.shards[int(shard)].path,
            "shard_row": int(shard_row),
            "piece": piece - int(read.piece_offsets[row]),
            "token_start": int(read.starts[piece]),
            "num_tokens": int(read.piece_lengths[piece]),
        }

    def _builder(self, mesh: Mesh) -> BatchBuilder:
        return BatchBuilder(self.batch_order, self.reader, LoaderOptions(mesh=mesh, fields=()))

    def find_document(self, name: str, num_epochs: int | None = None, world_size: int = 1) -> DocumentTrace:
        """Every appearance in the first `num_epochs` epochs. None: in the steps done, in a finite run, or in one epoch."""
        [key] = document_keys(self.root, self.snapshot, [name])
        builder, wanted = self._builder(Mesh(data_rank=0, data_size=1)), np.frombuffer(key, np.uint8).reshape(1, -1)
        is_past = num_epochs is None and self.steps_done is not None and self.batch_order.inventory.split == "train"
        stop = self.steps_done if is_past else None
        seen = [
            appearance
            for address, appear in self.find_pieces(key)
            for appearance in self.appearances(address, appear, num_epochs, world_size)
            if (stop is None or appearance.step < stop) and not builder.left_out(appearance.step, wanted)[0]
        ]
        return DocumentTrace(
            appearances=sorted(seen, key=lambda piece: (piece.step, piece.rank, piece.row, piece.piece)),
            searched=self._searched(num_epochs, is_past),
            elsewhere=self.drawn_elsewhere(key),
        )

    def _searched(self, num_epochs: int | None, is_past: bool) -> str:
        if num_epochs is not None:
            return f"the first {num_epochs} epochs of its source" if num_epochs != 1 else "the first epoch of its source"
        if is_past:
            return (
                f"the {self.steps_done} steps that the state counts" if self.steps_done else "nothing: the state is at step 0"
            )
        if self.batch_order.num_steps is not None:
            return f"all {self.batch_order.num_steps} steps of the run"
        return "the first epoch of its source, since the run has no end"

    def find_pieces(self, key: bytes) -> Iterator[tuple[int, partial[Appearance]]]:
        """The address of each row with a piece of a document, and an appearance of the piece that lacks step, rank and row."""
        layout = self.batch_order.layout
        file_hash, files = int.from_bytes(key[:8], "big"), files_with_hashes(self.root, self.snapshot)
        known = {source for number, source, _ in files if number == file_hash}  # rows of another snapshot may be in several
        chosen = layout.shards.sources_among(sorted(known)) >= 0 if known else np.ones(len(layout.shards), np.bool_)
        halves = [np.array([int.from_bytes(half, "big")], np.uint64) for half in (key[:8], key[8:])]
        hashed = shuffle_hash((halves[0], halves[1]), self.snapshot.seed)
        for number in np.flatnonzero(chosen).tolist():
            if layout.shards[number].may_have(hashed):
                start, stop = layout.shard_starts[number : number + 2].tolist()
                for first in range(start, stop, ROWS_AT_A_TIME):
                    yield from self._find_in(np.arange(first, min(stop, first + ROWS_AT_A_TIME)), key)

    def _find_in(self, addresses: np.ndarray, key: bytes) -> Iterator[tuple[int, partial[Appearance]]]:
        read = self.reader.read(addresses, EVERY_COLUMN - {TOKENS})
        pieces = np.flatnonzero((read.keys == np.frombuffer(key, np.uint8)).all(axis=1))
        rows = np.searchsorted(read.piece_offsets, pieces, side="right") - 1
        for row, piece in zip(rows.tolist(), pieces.tolist()):
            address = int(addresses[row])
            yield address, partial(Appearance, **self._stored(read, row, piece, address))

    def appearances(
        self, address: int, appear: partial[Appearance], num_epochs: int | None, world_size: int
    ) -> Iterator[Appearance]:
        steps = self.batch_order.steps
        stop = None if self.steps_done is None else steps.samples(self.steps_done)[0]
        for epoch, sample in self.batch_order.samples_of(address, num_epochs, stop):
            step = steps.step_of(sample)
            if step is None or steps.is_skipped(step):
                continue
            start, stop_sample = steps.samples(step)
            index, num_rows = sample - start, stop_sample - start
            rank = ((index + 1) * world_size - 1) // num_rows  # the last whose share begins at or before it
            yield appear(step=step, epoch=epoch, rank=rank, row=index - rank * num_rows // world_size)

    def drawn_elsewhere(self, key: bytes) -> str:
        """In words, the steps that drew rows which this output does not hold and which may have held the document."""
        known = self.files.get(int.from_bytes(key[:8], "big"))
        return "; ".join(
            f"steps {first} to {stop - 1} drew '{source}' from snapshot {snapshot}"
            for first, stop, source, snapshot in self.batch_order.sample_order.drawn_elsewhere()
            if known is None or known[0] == source_of(source)
        )

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = self.snapshot.tokenizer
        content = committed_file(self.root, self.snapshot, tokenizer.path, tokenizer.fingerprint)
        try:
            return Tokenizer.from_str(content.decode())
        except Exception as error:  # `tokenizers` raises Exception itself
            raise SnapshotError(f"{self.root.child_url(tokenizer.path)}: {error}. Expected a tokenizer.json") from error
