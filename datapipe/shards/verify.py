"""Reading a snapshot again from its first byte to its last: is every file what was committed, and does it say what it should?

    every shard       size, checksum; then counts, ids, padding, and that each document ends with the end-of-text token
    tokenizer.json    against its fingerprint
    files.parquet     size, checksum
    shards/           nothing but the shards

A flipped bit anywhere shows in a checksum. The checks of content, made only where the checksum is right, are of the run that
wrote it. Memory is one record batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.errors import DatapipeError
from datapipe.shards.checksum import file_checksum
from datapipe.shards.manifest import ShardEntry, Snapshot
from datapipe.shards.shard_file import open_shard
from datapipe.storage import Root


def verify_snapshot(root: Root, snapshot: Snapshot, progress: Callable[[str], None] | None = None) -> list[str]:
    """One line for each problem, with the file, what was found and what was expected; none when all is well.

    Args:
        progress: called with the path of each file before it is read.
    """
    tell = progress or (lambda path: None)
    problems: list[str] = []
    for entry in sorted(snapshot.shards, key=lambda shard: shard.path):
        tell(entry.path)
        problems += _file_problems(root, entry.path, entry.checksum, entry.bytes) or _content_problems(root, snapshot, entry)
    tell(snapshot.tokenizer.path)
    problems += _file_problems(root, snapshot.tokenizer.path, snapshot.tokenizer.fingerprint, None)
    if snapshot.files is not None:
        tell(snapshot.files.path)
        problems += _file_problems(root, snapshot.files.path, snapshot.files.checksum, snapshot.files.bytes)
    known = {entry.path for entry in snapshot.shards}
    found = [path for path, _ in root.list_files("shards")]
    return problems + [f"{path}: not in the snapshot; expected only its shards here" for path in found if path not in known]


def _file_problems(root: Root, path: str, checksum: str, size: int | None) -> list[str]:
    try:
        found, found_bytes = file_checksum(root, path)
    except FileNotFoundError:
        return [f"{path}: no such file, expected one with checksum {checksum}"]
    if size is not None and found_bytes != size:
        return [f"{path}: {found_bytes} bytes, expected {size}"]
    return [] if found == checksum else [f"{path}: checksum {found}, expected {checksum}"]


def _content_problems(root: Root, snapshot: Snapshot, entry: ShardEntry) -> list[str]:
    try:
        shard = open_shard(root, entry, snapshot.sequence_length, snapshot.tokenizer.fingerprint)
        try:
            counts = np.zeros(3, np.int64)
            for number in range(shard.num_batches):
                batch = shard.batch(number)
                problem = batch_problem(batch, snapshot.tokenizer.vocab_size, snapshot.tokenizer.eos_id)
                if problem:
                    return [f"{entry.path}: record batch {number}: {problem}"]
                starts = columns.numbers(batch.column("starts").values)
                lengths = columns.numbers(batch.column("lengths").values)
                counts += (batch.num_rows, lengths.sum(), np.count_nonzero(starts == 0))
        finally:
            shard.close()
    except DatapipeError as error:
        return [str(error)]
    except pa.ArrowInvalid as error:
        return [f"{entry.path}: {error}; expected valid record batches"]
    expected = (entry.sequences, entry.tokens, entry.documents)
    names = ("sequences", "tokens", "documents")
    return [
        f"{entry.path}: {found} {name}, expected {want}" for name, found, want in zip(names, counts, expected) if found != want
    ]


def batch_problem(batch: pa.RecordBatch, vocab_size: int, eos_id: int) -> str | None:
    """The first thing wrong with rows of `schemas.sequences`, or None.

    A piece that ends before its row does is the end of its document, whatever the packing: only the end of a row ever
    cuts one. So the token before any piece but a row's first, and before the padding, must be the end-of-text token.
    """
    batch.validate(full=True)
    lists = [batch.column(name) for name in ("lengths", "keys", "starts")]
    offsets = columns.numbers(lists[0].offsets).astype(np.int64)
    if any(not np.array_equal(offsets, columns.numbers(column.offsets)) for column in lists[1:]):
        return "lengths, keys and starts differ in number; expected one of each for a piece"
    width = batch.column("tokens").type.list_size
    tokens = columns.numbers(batch.column("tokens").values)  # (num_rows * S,)
    lengths = columns.numbers(lists[0].values).astype(np.int64)  # (num_pieces,)
    if len(tokens) and int(tokens.max()) >= vocab_size:
        return f"token id {int(tokens.max())}, expected ids below {vocab_size}"
    if len(lengths) and (int(lengths.min()) < 1 or offsets[0] != 0 or offsets[-1] != len(lengths)):
        return f"a piece of {int(lengths.min())} tokens, or one in no row; expected at least 1 each"
    sums = np.concatenate([[0], np.cumsum(lengths)])
    filled = sums[offsets[1:]] - sums[offsets[:-1]]  # (num_rows,)
    misfit = filled[(filled < 1) | (filled > width)]
    if len(misfit):
        return f"a row of {int(misfit[0])} tokens, expected 1 to {width}"
    row = np.repeat(np.arange(batch.num_rows), np.diff(offsets))  # (num_pieces,)
    piece_stop = sums[1:] - sums[offsets[row]]  # in its row
    ends = piece_stop < width
    last = tokens[(row * width + piece_stop - 1)[ends]]
    if np.any(last != eos_id):
        return f"a document ends with id {int(last[last != eos_id][0])}, expected end-of-text, {eos_id}"
    padding = tokens.reshape(-1, width)[np.arange(width) >= filled[:, None]]
    return None if np.all(padding == eos_id) else f"padding with other ids than end-of-text, {eos_id}"
