"""From a step to the documents in its batch, and from a document to the steps it appears at, without any log.

    trace_step      step -> samples -> addresses -> rows -> pieces -> file and place of each document
    trace_document  key -> the shards its hash may be in -> addresses -> samples -> steps and ranks

Both are the loader's own arithmetic, once forwards and once backwards, so they agree with what the trainers saw. A run that
changed on the way (batch size, mixture, what is left out) is told by its state, whose lineage knows when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from datapipe import columns
from datapipe.columns import KEY_BYTES
from datapipe.errors import SnapshotError, UserError
from datapipe.loader.batches import BatchBuilder
from datapipe.loader.order import batch_order as course
from datapipe.loader.order.batch_order import Course
from datapipe.loader.order.layout import Split
from datapipe.loader.order.lineage import Skips
from datapipe.loader.order.recipe import recipe_of
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.reading import RowReader
from datapipe.loader.share import Balance, Mesh
from datapipe.loader.state import read_state
from datapipe.rng import shuffle_hash
from datapipe.shards.manifest import ShardEntry, Snapshot, read_snapshot
from datapipe.shards.shard_file import open_shard
from datapipe.storage import Root


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRow:
    """One piece of a document in a global batch.

    Attributes:
        rank, row: who got it, and in which row of that rank's batch.
        source, shard, shard_row: where the row lies.
        piece: its number in the row, from 0.
        key: of the document, 32 hex digits.
        path: of the document's file, relative to its source; empty if the snapshot names no files.
        place: byte offset of its line in the decompressed file, or its row number.
        token_start: where the piece starts in its document.
        num_tokens: how long it is.
        text: of the piece, decoded from its tokens; empty unless asked for.
    """

    rank: int
    row: int
    source: str
    shard: str
    shard_row: int
    piece: int
    key: str
    path: str
    place: int
    token_start: int
    num_tokens: int
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Appearance:
    """One piece of the document in a batch of the run; `epoch` counts its source's epochs from 0."""

    step: int
    rank: int
    row: int
    epoch: int
    source: str
    shard: str
    shard_row: int
    piece: int
    token_start: int
    num_tokens: int


def trace_step(
    output: str | Path,
    step: int,
    *,
    global_batch_size: int | None = None,
    state: Mapping[str, Any] | None = None,
    rank: int | None = None,
    world_size: int = 1,
    split: Split = "train",
    seed: int | None = None,
    balance: Balance = "rows",
    text: bool = False,
) -> list[TraceRow]:
    """The documents of the global batch at `step`, or of one rank's share of it, row by row.

    Args:
        output: of a run, a path or URL.
        global_batch_size: of the run, if it had the same all the time and its snapshot's mixture; else
        state: of its loader, which knows what held when, with split and seed.
        rank: only this one; all by default.
        seed, balance: the loader's, if it was given them.
        text: decode the tokens of each piece.
    """
    traced = _Run(output, global_batch_size, state, split, seed, balance)
    traced.course.check_step(step)
    if traced.course.steps.is_skipped(step):
        return []
    ranks = range(world_size) if rank is None else [rank]
    return [row for one in ranks for row in traced.rows(step, _mesh(one, world_size), text)]


def trace_document(
    output: str | Path,
    key: str,
    *,
    global_batch_size: int | None = None,
    state: Mapping[str, Any] | None = None,
    world_size: int = 1,
    num_epochs: int | None = None,
    split: Split = "train",
    seed: int | None = None,
    balance: Balance = "rows",
    strict: bool = True,
) -> list[Appearance]:
    """Where a document comes up in the run, by step: nothing if it is in no row, comes up after the end, or is left out.

    Looks through the keys of those shards that may hold it: one or two, where the snapshot knows their hash ranges.

    Args:
        output, global_batch_size, state, seed, balance: as for `trace_step`.
        key: the document's, 32 hex digits, or the path and place that `datapipe trace` prints, as "path:place".
        num_epochs: how many epochs of its source to look at; by default all of a run that has an end, and one of an endless
            run.
        strict: raise SnapshotError where earlier steps of the run drew from rows that this output does not hold.
    """
    traced = _Run(output, global_batch_size, state, split, seed, balance)
    wanted = traced.key_of(key)
    found = [
        one
        for address, piece, start, length in traced.find_pieces(wanted)
        for one in traced.appearances(address, num_epochs, _mesh(0, world_size), piece, start, length)
    ]
    if strict:
        traced.check_complete(wanted)
    since = traced.course.lineage.skips.documents.get(wanted.hex())
    kept = [one for one in found if since is None or one.step < since]
    return sorted(kept, key=lambda one: (one.step, one.rank, one.row, one.piece))


class _Run:
    """A run that is traced: its course, and its shards."""

    def __init__(
        self,
        output: str | Path,
        global_batch_size: int | None,
        state: Mapping[str, Any] | None,
        split: Split,
        seed: int | None,
        balance: Balance,
    ) -> None:
        self.balance: Balance = balance
        self.root = Root(str(output))
        self.snapshot: Snapshot = read_snapshot(self.root)
        if state is not None:
            saved, lineage = read_state(state)
            inventory = Inventory(
                self.snapshot, "train" if saved.split == "train" else "validation", saved.seed, saved.window_shards
            )
            course.check_rows(lineage, inventory)
            self.course = Course(inventory, lineage)
        elif global_batch_size is not None and global_batch_size >= 1:
            own = self.snapshot.seed if seed is None else seed
            inventory = Inventory(self.snapshot, split, own, self.snapshot.window_shards)
            self.course = course.begin(inventory, recipe_of(self.snapshot), global_batch_size, Skips())
        else:
            raise UserError(
                f"global batch size {global_batch_size}: give the rows of a step, at least 1 (--global-batch-size N), or the "
                f"loader's state (--state FILE)."
            )
        self.reader = RowReader(self.root, self.snapshot, self.course.layout)

    @cached_property
    def files(self) -> dict[int, tuple[str, str]]:
        """(source, path) by file hash, from files.parquet; empty if there is none."""
        if self.snapshot.files is None:
            return {}
        with self.root.open_input(self.snapshot.files.path) as stream:
            table = pq.read_table(stream, columns=["hash", "source", "path"])
        listed = [table.column(name).to_pylist() for name in ("hash", "source", "path")]
        return {file_hash: (source, path) for file_hash, source, path in zip(*listed)}

    def rows(self, step: int, mesh: Mesh, text: bool) -> Iterator[TraceRow]:
        """The pieces of one rank's rows."""
        layout = self.course.layout
        addresses = self.course.locate(self.samples(step, mesh))
        shards, shard_rows = layout.find(addresses)
        read = self.reader.read(addresses)
        left_out = set(self.course.left_out_documents(step))
        for row in range(len(addresses)):
            shard, at = layout.shards[shards[row]], 0
            first, stop = int(read.piece_offsets[row]), int(read.piece_offsets[row + 1])
            for piece in range(first, stop):
                key, length = read.keys[piece].tobytes(), int(read.piece_lengths[piece])
                ids, at = read.tokens[row, at : at + length], at + length
                if key in left_out:
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
                    place=int.from_bytes(key[8:], "big"),
                    token_start=int(read.starts[piece]),
                    num_tokens=length,
                    text=self._decode(ids) if text else "",
                )

    def samples(self, step: int, mesh: Mesh) -> np.ndarray:
        """The samples of one rank at a step: (B,) int64, rising."""
        return self._builder(mesh).samples(step)

    def _builder(self, mesh: Mesh) -> BatchBuilder:
        return BatchBuilder(self.course, self.reader, mesh, (), "shifted", np.dtype(np.int64), balance=self.balance)

    def key_of(self, text: str) -> bytes:
        """The key that hex digits, or "path:place", stand for."""
        path, _, place = text.rpartition(":")
        hashes = [file_hash for file_hash, (_, known) in self.files.items() if known == path] if path else []
        if len(hashes) == 1 and place.isdigit():
            return hashes[0].to_bytes(8, "big") + int(place).to_bytes(8, "big")
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            many = f" {len(hashes)} sources have a file '{path}': give the key." if len(hashes) > 1 else ""
            if place.isdigit() and path and not hashes:
                many = f" No file of this snapshot is '{path}'."
            raise UserError(
                f"'{text}' is no document key: expected {2 * KEY_BYTES} hex digits, or path:place, as `datapipe trace` prints "
                f"them." + many
            )
        return key

    def find_pieces(self, key: bytes) -> Iterator[tuple[int, int, int, int]]:
        """(address, piece in its row, start in the document, tokens) of every piece of a document."""
        layout = self.course.layout
        known = self.files.get(int.from_bytes(key[:8], "big"))
        if known is not None and known[0] not in layout.sources:
            return
        chosen = range(len(layout.sources)) if known is None else [layout.sources.index(known[0])]
        halves = [np.array([int.from_bytes(half, "big")], np.uint64) for half in (key[:8], key[8:])]
        place = int(shuffle_hash((halves[0], halves[1]), self.snapshot.seed)[0])
        for source in chosen:
            for number in range(*layout.source_shards[source : source + 2]):
                shard = layout.shards[number]
                if shard.hashes is None or shard.hashes[0] <= place < shard.hashes[1]:
                    for row, piece, start, length in self._find_in(shard, key):
                        yield int(layout.shard_starts[number]) + row, piece, start, length

    def appearances(
        self, address: int, num_epochs: int | None, mesh: Mesh, piece: int, start: int, length: int
    ) -> Iterator[Appearance]:
        """Every step at which the row at `address` comes up."""
        layout, steps = self.course.layout, self.course.steps
        shard, shard_row = (int(one[0]) for one in layout.find(np.array([address])))
        for epoch, sample in self.course.samples_of(address, num_epochs):
            step = steps.step_of(sample)
            if step is None or steps.is_skipped(step):
                continue
            rank, row = self._place(step, sample, mesh.data_size)
            yield Appearance(
                step=step,
                rank=rank,
                row=row,
                epoch=epoch,
                source=layout.shards[shard].source,
                shard=layout.shards[shard].path,
                shard_row=shard_row,
                piece=piece,
                token_start=start,
                num_tokens=length,
            )

    def check_complete(self, key: bytes) -> None:
        """Raises SnapshotError where the run drew from rows that are not here, so that more may be known elsewhere."""
        known = self.files.get(int.from_bytes(key[:8], "big"))
        elsewhere = [
            f"steps {first} to {stop - 1} drew '{source}' from snapshot {snapshot}"
            for first, stop, source, snapshot in self.course.order.drawn_elsewhere()
            if known is None or known[0] == source
        ]
        if elsewhere:
            raise SnapshotError(
                f"this output does not hold all that the run was trained on: {'; '.join(elsewhere)}. "
                f"Ask the outputs of those snapshots too."
            )

    def _place(self, step: int, sample: int, world_size: int) -> tuple[int, int]:
        """The rank that has a sample, and the row it is in."""
        ranks = self._builder(_mesh(0, world_size)).ranks(step)
        at = sample - self.course.steps.samples(step)[0]
        return int(ranks[at]), int((ranks[:at] == ranks[at]).sum())

    def _find_in(self, entry: ShardEntry, key: bytes) -> Iterator[tuple[int, int, int, int]]:
        """(row, piece in the row, start in the document, tokens) of the document's pieces in one shard."""
        wanted = np.frombuffer(key, np.uint64)
        shard = open_shard(self.root, entry, self.snapshot.sequence_length, self.snapshot.tokenizer.fingerprint)
        try:
            for number in range(shard.num_batches):
                batch = shard.batch(number)
                keys = columns.key_matrix(batch.column("keys").values).view(np.uint64)  # (num_pieces, 2)
                for piece in np.flatnonzero((keys == wanted).all(axis=1)).tolist():
                    offsets = columns.numbers(batch.column("keys").offsets)
                    row = int(np.searchsorted(offsets, piece, side="right")) - 1
                    start = int(columns.numbers(batch.column("starts").values)[piece])
                    length = int(columns.numbers(batch.column("lengths").values)[piece])
                    yield number * shard.rows_per_batch + row, piece - int(offsets[row]), start, length
        finally:
            shard.close()

    def _decode(self, ids: np.ndarray) -> str:
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.root.read_bytes(self.snapshot.tokenizer.path).decode())


def _mesh(rank: int, world_size: int) -> Mesh:
    if not 0 <= rank < world_size:
        raise UserError(f"rank {rank} of a world of {world_size}: expected 0 <= rank < world_size.")
    return Mesh(data_rank=rank, data_size=world_size)
