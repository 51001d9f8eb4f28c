"""From a step to the documents in its batch, and from a document to the steps it appears at, without any log.

    trace_step      step -> samples -> addresses -> rows -> pieces -> file and place of each document
    trace_document  key -> rows of its source that hold it -> addresses -> samples of the first epochs -> steps and ranks

Both are the loader's own arithmetic, once forwards and once backwards, so they agree with what the trainers saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from datapipe.columns import KEY_BYTES
from datapipe.errors import UserError
from datapipe.loader.batches import Share
from datapipe.loader.layout import Split
from datapipe.loader.order import SampleOrder
from datapipe.loader.reading import RowReader
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.storage import Root

_SCAN_ROWS = 1024
"""Rows read at a time while looking for a document."""


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
    global_batch_size: int,
    rank: int | None = None,
    world_size: int = 1,
    split: Split = "train",
    seed: int | None = None,
) -> list[TraceRow]:
    """The documents of the global batch at `step`, or of one rank's share of it, row by row.

    Args:
        output: of a run, a path or URL.
        rank: only this one; all by default.
        seed: the loader's, if it was given one.
    """
    root, snapshot, order = _open(output, split, seed)
    num_steps = order.num_steps(global_batch_size)
    if step < 0 or (num_steps is not None and step >= num_steps):
        raise UserError(f"there is no step {step}: with {global_batch_size} rows in a global batch, the run has {num_steps}.")
    reader, files = RowReader(root, snapshot, order.layout), _files(root, snapshot)
    return [
        found
        for one in (range(world_size) if rank is None else [rank])
        for found in _trace_share(order, reader, files, step, _share(global_batch_size, one, world_size))
    ]


def trace_document(
    output: str | Path,
    key: str,
    *,
    global_batch_size: int,
    world_size: int = 1,
    num_epochs: int = 1,
    split: Split = "train",
    seed: int | None = None,
) -> list[Appearance]:
    """Where a document comes up in the run, by step: nothing if it is in no row, or comes up after the end.

    Reads every row of the document's source once (of all sources if the snapshot names no files).

    Args:
        output: of a run, a path or URL.
        key: the document's, 32 hex digits.
        num_epochs: how many epochs of its source to look at.
        seed: the loader's, if it was given one.
    """
    try:
        wanted = np.frombuffer(bytes.fromhex(key), np.uint8)
    except ValueError:
        wanted = np.zeros(0, np.uint8)
    if len(wanted) != KEY_BYTES:
        raise UserError(f"'{key}' is no document key: expected {2 * KEY_BYTES} hex digits, as `datapipe trace` prints them.")
    root, snapshot, order = _open(output, split, seed)
    reader = RowReader(root, snapshot, order.layout)
    found: list[Appearance] = []
    for address, piece, start, length in _find_pieces(order, reader, wanted, _files(root, snapshot)):
        shard, shard_row = (int(one[0]) for one in order.layout.find(np.array([address])))
        for epoch, sample in order.samples_of(address, num_epochs):
            place = _place(order, sample, global_batch_size, world_size)
            if place is not None:
                found.append(
                    Appearance(
                        step=place[0],
                        rank=place[1],
                        row=place[2],
                        epoch=epoch,
                        source=order.layout.shards[shard].source,
                        shard=order.layout.shards[shard].path,
                        shard_row=shard_row,
                        piece=piece,
                        token_start=start,
                        num_tokens=length,
                    )
                )
    return sorted(found, key=lambda one: (one.step, one.rank, one.row, one.piece))


def _open(output: str | Path, split: Split, seed: int | None) -> tuple[Root, Snapshot, SampleOrder]:
    root = Root(str(output))
    snapshot = read_snapshot(root)
    return root, snapshot, SampleOrder(snapshot, split, snapshot.seed if seed is None else seed)


def _share(global_batch_size: int, rank: int, world_size: int) -> Share:
    if global_batch_size < 1 or not 0 <= rank < world_size:
        raise UserError(
            f"rank {rank} of a world of {world_size}, global batch size {global_batch_size}: "
            f"expected 0 <= rank < world_size and at least one row."
        )
    return Share(global_batch_size=global_batch_size, rank=rank, world_size=world_size)


def _files(root: Root, snapshot: Snapshot) -> dict[int, tuple[str, str]]:
    """(source, path) by file hash, from files.parquet; empty if there is none."""
    if snapshot.files is None:
        return {}
    with root.open_input(snapshot.files.path) as stream:
        table = pq.read_table(stream, columns=["hash", "source", "path"])
    columns = [table.column(name).to_pylist() for name in ("hash", "source", "path")]
    return {file_hash: (source, path) for file_hash, source, path in zip(*columns)}


def _trace_share(
    order: SampleOrder, reader: RowReader, files: dict[int, tuple[str, str]], step: int, share: Share
) -> Iterator[TraceRow]:
    addresses = order.locate(share.samples(step, order.num_samples))
    shards, shard_rows = order.layout.find(addresses)
    read = reader.read(addresses)
    for row in range(len(addresses)):
        shard = order.layout.shards[shards[row]]
        first, stop = int(read.piece_offsets[row]), int(read.piece_offsets[row + 1])
        for piece in range(first, stop):
            key = read.keys[piece].tobytes()
            file_hash = int.from_bytes(key[:8], "big")
            yield TraceRow(
                rank=share.rank,
                row=row,
                source=shard.source,
                shard=shard.path,
                shard_row=int(shard_rows[row]),
                piece=piece - first,
                key=key.hex(),
                path=files[file_hash][1] if file_hash in files else "",
                place=int.from_bytes(key[8:], "big"),
                token_start=int(read.starts[piece]),
                num_tokens=int(read.piece_lengths[piece]),
            )


def _find_pieces(
    order: SampleOrder, reader: RowReader, wanted: np.ndarray, files: dict[int, tuple[str, str]]
) -> Iterator[tuple[int, int, int, int]]:
    """(address, piece in its row, start in the document, tokens) of every piece of the document `wanted` (16,) uint8."""
    layout = order.layout
    known = files.get(int.from_bytes(wanted[:8].tobytes(), "big"))
    chosen = range(len(layout.sources)) if known is None else [layout.sources.index(known[0])]
    for source in chosen:
        start, stop = int(layout.source_starts[source]), int(layout.source_starts[source + 1])
        for first in range(start, stop, _SCAN_ROWS):
            read = reader.read(np.arange(first, min(first + _SCAN_ROWS, stop)))
            for piece in np.flatnonzero((read.keys == wanted).all(axis=1)).tolist():
                row = int(np.searchsorted(read.piece_offsets, piece, side="right")) - 1
                within = piece - int(read.piece_offsets[row])
                yield first + row, within, int(read.starts[piece]), int(read.piece_lengths[piece])


def _place(order: SampleOrder, sample: int, global_batch_size: int, world_size: int) -> tuple[int, int, int] | None:
    """Step, rank and row of a sample; None if the run ends before it."""
    step = sample // global_batch_size
    num_steps = order.num_steps(global_batch_size)
    if num_steps is not None and step >= num_steps:
        return None
    for rank in range(world_size):
        samples = _share(global_batch_size, rank, world_size).samples(step, order.num_samples)
        if len(samples) and samples[0] <= sample <= samples[-1]:
            return step, rank, int(sample - samples[0])
    raise AssertionError((sample, global_batch_size, world_size))
