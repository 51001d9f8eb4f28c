"""From a step to the documents in its batch, and from a document to the steps it appears at, without logs.

    trace_step      step -> samples -> addresses -> rows -> pieces -> file and position of each document
    trace_document  key -> the shards its hash may be in -> addresses -> samples -> steps and ranks

Both evaluate the loader's own order, forwards and backwards, so they agree with the batches that the trainers read. For a run
that changed (batch size, mixture, skips), give its state: the lineage holds the changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from datapipe import columns
from datapipe.document_name import document_name
from datapipe.errors import SnapshotError, UserError
from datapipe.loader.batches import BatchBuilder
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
from datapipe.shards.document_files import committed_file, document_files, document_keys, files_with_hashes
from datapipe.shards.manifest import Snapshot, has_snapshot, output_of, read_tokens
from datapipe.shards.shard_file import open_shard
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage.root import Root


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPiece:
    """One piece of a document in a global batch.

    Attributes:
        rank, row: the rank that reads it, and the row of that rank's batch.
        source, shard, shard_row: source, shard and row that it is stored in.
        piece: number of the piece in its row, from 0.
        token_start: token of the document at which the piece starts.
        num_tokens: length of the piece.
    """

    rank: int
    row: int
    source: str
    shard: str
    shard_row: int
    piece: int
    token_start: int
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRow(BatchPiece):
    """A piece in the batch of a given step.

    Attributes:
        key: of the document, 32 hex digits.
        path: of the document's file, relative to its source; empty if the snapshot has no list of files.
        position: in its file, as its reader counts: byte offset of the document's line, or its row number.
        text: of the piece, decoded from its tokens; empty unless requested.
    """

    key: str
    path: str
    position: int
    text: str = ""

    @property
    def document(self) -> str:
        """SOURCE/PATH:POSITION; the key where the snapshot has no list of files."""
        return document_name(self.source, self.path, self.position) if self.path else self.key


@dataclass(frozen=True, kw_only=True, slots=True)
class Appearance(BatchPiece):
    """A piece of a given document in a batch of the run; `epoch` counts its source's epochs from 0."""

    step: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentTrace:
    """The appearances of a document in a run.

    Attributes:
        appearances: by step, rank and row.
        searched: the part of the run that was searched, in words.
        elsewhere: steps of the run that drew from rows which this output does not hold, in words; empty if there are none.
    """

    appearances: list[Appearance]
    searched: str
    elsewhere: str

    def check_complete(self) -> None:
        """Raises SnapshotError if the run drew from rows that this output does not hold, so that appearances may be missing."""
        if self.elsewhere:
            raise SnapshotError(
                f"this output does not hold all rows that the run was trained on: {self.elsewhere}. "
                f"Trace the document in the outputs of those snapshots too."
            )


def trace_step(
    output: str | Path, step: int, *, rank: int | None = None, world_size: int = 1, text: bool = False, **run: Any
) -> list[TraceRow]:
    """The documents of the global batch at `step`, or of one rank's share of it, row by row.

    Args:
        rank: only this rank; all by default.
        text: whether to decode the tokens of each piece.
        run: as for `open_run`.
    """
    traced = open_run(output, **run)
    traced.batch_order.check_step(step)
    if traced.batch_order.steps.is_skipped(step):
        return []
    ranks = range(world_size) if rank is None else [rank]
    return [row for number in ranks for row in traced.rows(step, Mesh(data_rank=number, data_size=world_size), text)]


def trace_document(
    output: str | Path, key: str, *, num_epochs: int | None = None, world_size: int = 1, **run: Any
) -> list[Appearance]:
    """Every appearance of a document in the run, by step: none if no row holds it, if it is left out, or if the run ends first.

    With a state, these are the appearances in the steps that the state counts, over all epochs and all changes of the run.
    Without one, those in the whole of a finite run, and in one epoch of an endless run. Searches the shards that may hold the
    document: one or two, where the snapshot has their hash ranges.

    Args:
        key: of the document, or its name, in a form that `InputFiles.key` takes.
        num_epochs: epochs of the source to search instead, from its first on; also those after the step of the state.
        run: as for `open_run`.

    Raises SnapshotError if earlier steps of the run drew from rows that this output does not hold.
    """
    trace = open_run(output, **run).find_document(key, num_epochs, world_size)
    trace.check_complete()
    return trace.appearances


def open_run(
    output: str | Path,
    *,
    global_batch_size: int | None = None,
    state: Mapping[str, Any] | None = None,
    snapshot: str | None = None,
    sequence_length: int | None = None,
    split: Split = "train",
    seed: int | None = None,
) -> TracedRun:
    """A run, whose order `state` or `global_batch_size` gives.

    Args:
        output: of a run, a path or URL.
        global_batch_size: of a run that never changed its batch size, and that draws by its snapshot's mixture.
        state: of the loader of any other run; it holds the run's changes, its split and its seed.
        snapshot: fingerprint of the snapshot, or its first digits; by default that of the state, or the newest.
        sequence_length: by default that of the state, or the first.
        seed: as the loader was opened, if it was given.
    """
    root, length = output_of(Root(str(output)))
    length = sequence_length or length
    if state is not None:
        saved, lineage = read_state(state)
        if snapshot is None and has_snapshot(root, saved.snapshot):
            snapshot = saved.snapshot
        found = read_tokens(root, snapshot, length or saved.sequence_length)
        return TracedRun(root, found, saved_order(saved, lineage, found), saved.step)
    if global_batch_size is None or global_batch_size < 1:
        given = "no global batch size" if global_batch_size is None else f"global batch size {global_batch_size}"
        raise UserError(
            f"{given}: give the rows of a step, at least 1 (--global-batch-size N), or the loader's state (--state FILE)."
        )
    found = read_tokens(root, snapshot, length)
    inventory = Inventory(found, split, found.seed if seed is None else seed, found.window_shards)
    return TracedRun(root, found, begin_run(inventory, recipe_of(found), global_batch_size, Skips()), None)


class TracedRun:
    """The order of a run, and the shards that it reads.

    Args:
        steps_done: steps that the run has done, skipped ones included; None without a state.
    """

    def __init__(self, root: Root, snapshot: Snapshot, batch_order: BatchOrder, steps_done: int | None) -> None:
        self.root, self.snapshot, self.batch_order, self.steps_done = root, snapshot, batch_order, steps_done
        self.reader = RowReader(root, snapshot, batch_order.layout)

    @cached_property
    def files(self) -> dict[int, tuple[str, str]]:
        """(source, path) by file hash."""
        return document_files(self.root, self.snapshot)

    def rows(self, step: int, mesh: Mesh, text: bool) -> Iterator[TraceRow]:
        """The pieces of one rank's rows."""
        layout = self.batch_order.layout
        builder = self._builder(mesh)
        addresses = self.batch_order.addresses_of(builder.samples(step))
        shards, shard_rows = layout.find(addresses)
        read = self.reader.read(addresses)
        left_out = builder.left_out(step, read.keys)
        for row in range(len(addresses)):
            shard, stop_token = layout.shards[shards[row]], 0
            first, stop = int(read.piece_offsets[row]), int(read.piece_offsets[row + 1])
            for piece in range(first, stop):
                key, length = read.keys[piece].tobytes(), int(read.piece_lengths[piece])
                start_token, stop_token = stop_token, stop_token + length
                if left_out[piece]:
                    continue
                yield TraceRow(
                    rank=mesh.data_rank,
                    row=row,
                    source=shard.source,
                    shard=shard.path,
                    shard_row=int(shard_rows[row]),
                    piece=piece - first,
                    key=key.hex(),
                    path=self.files.get(int.from_bytes(key[:8], "big"), ("", ""))[1],
                    position=int.from_bytes(key[8:], "big"),
                    token_start=int(read.starts[piece]),
                    num_tokens=length,
                    text=self._decode(read.tokens[row, start_token:stop_token]) if text else "",
                )

    def _builder(self, mesh: Mesh) -> BatchBuilder:
        return BatchBuilder(self.batch_order, self.reader, LoaderOptions(mesh=mesh, fields=()))

    def find_document(self, name: str, num_epochs: int | None = None, world_size: int = 1) -> DocumentTrace:
        """Every appearance in the first `num_epochs` epochs; None: in the steps done, the finite run, or one epoch."""
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
        chosen = [number for number, name in enumerate(layout.sources) if not known or name in known]
        halves = [np.array([int.from_bytes(half, "big")], np.uint64) for half in (key[:8], key[8:])]
        hashed = shuffle_hash((halves[0], halves[1]), self.snapshot.seed)
        for source in chosen:
            for number in range(*layout.source_shards[source : source + 2]):
                shard = layout.shards[number]
                if shard.may_have(hashed):
                    for row, appear in self._find_in(shard, key):
                        yield int(layout.shard_starts[number]) + row, appear

    def appearances(
        self, address: int, appear: partial[Appearance], num_epochs: int | None, world_size: int
    ) -> Iterator[Appearance]:
        """Every appearance of the row at `address` in the run."""
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
        """The steps that drew from rows which this output does not hold, and which may have held the document, in words."""
        known = self.files.get(int.from_bytes(key[:8], "big"))
        return "; ".join(
            f"steps {first} to {stop - 1} drew '{source}' from snapshot {snapshot}"
            for first, stop, source, snapshot in self.batch_order.sample_order.drawn_elsewhere()
            if known is None or known[0] == source
        )

    def _find_in(self, entry: ShardEntry, key: bytes) -> Iterator[tuple[int, partial[Appearance]]]:
        """As `find_pieces`, of one shard, with rows instead of addresses."""
        wanted = np.frombuffer(key, np.uint64)
        shard = open_shard(self.root, entry, self.snapshot.form)
        try:
            for number in range(shard.num_batches):
                batch = shard.batch(number)
                keys = columns.key_matrix(batch.column("keys").values).view(np.uint64)  # (num_pieces, 2)
                for piece in np.flatnonzero((keys == wanted).all(axis=1)).tolist():
                    offsets = columns.numbers(batch.column("keys").offsets)
                    row = int(np.searchsorted(offsets, piece, side="right")) - 1
                    yield (
                        shard_row := number * shard.rows_per_batch + row,
                        partial(
                            Appearance,
                            source=entry.source,
                            shard=entry.path,
                            shard_row=shard_row,
                            piece=piece - int(offsets[row]),
                            token_start=int(columns.numbers(batch.column("starts").values)[piece]),
                            num_tokens=int(columns.numbers(batch.column("lengths").values)[piece]),
                        ),
                    )
        finally:
            shard.close()

    def _decode(self, ids: np.ndarray) -> str:
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = self.snapshot.tokenizer
        content = committed_file(self.root, self.snapshot, tokenizer.path, tokenizer.fingerprint)
        try:
            return Tokenizer.from_str(content.decode())
        except Exception as error:  # `tokenizers` raises Exception itself
            raise SnapshotError(f"{self.root.child_url(tokenizer.path)}: {error}. Expected a tokenizer.json") from error
