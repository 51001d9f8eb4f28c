"""Checksums: xxh3-128, written as "xxh3_128:<32 hex digits>": of all bytes of a file, in the
manifest, and of the rows of one record batch or row group, in the shard itself."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from datapipe import columns
from datapipe.errors import CorruptionError, DamagedInputError, SnapshotError
from datapipe.storage.root import Root
from datapipe.storage.written import checksum_of

IDS_AT_ONCE = 1 << 17
"""Token ids that are hashed together. What reads them next finds them in the processor's cache, not in memory: hashing
4 MiB of uint16 and finding the largest id takes a fifth less so (2026-11-30)."""

READINGS = 3
"""Of bytes whose checksum is wrong. A network, a proxy or the memory of a machine changes bytes on their way."""

_DAMAGE = (CorruptionError, SnapshotError, DamagedInputError)
_Read = TypeVar("_Read")
_P = ParamSpec("_P")


class Rereads:
    """How many times this process has read something again."""

    count = 0


def intact(read: Callable[[], _Read]) -> _Read:
    """What `read` returns. Where it finds damage it is called again, `READINGS` times in all, before the error counts."""
    for _ in range(READINGS - 1):
        try:
            return read()
        except _DAMAGE:
            Rereads.count += 1
    try:
        return read()
    except _DAMAGE as error:
        error.add_note(f"read {READINGS} times")
        raise


def rereading(read: Callable[_P, _Read]) -> Callable[_P, _Read]:
    """A function that is called again where it finds damage; see `intact`."""

    @wraps(read)
    def reread(*args: _P.args, **kwargs: _P.kwargs) -> _Read:
        return intact(lambda: read(*args, **kwargs))

    return reread


def bytes_checksum(content: bytes | memoryview) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}"


def file_checksum(root: Root, relative: str, expected: str = "") -> tuple[str, int]:
    """Checksum and size in bytes of a file, which is read again where the checksum is not the
    expected one. Raises FileNotFoundError or OSError."""
    actual = root.checksum(relative)
    for _ in range(READINGS - 1 if expected else 0):
        if actual[0] == expected:
            break
        Rereads.count += 1
        actual = root.checksum(relative)
    return actual


def rows_checksum(rows: pa.RecordBatch, with_ids: Callable[[np.ndarray], object] = lambda ids: None) -> str:
    """Checksum of the values of rows of `schemas.sequences`, whatever their layout in a file. A
    slice counts from its start. A damaged file cannot make this read outside the batch.
    `with_ids` gets all token ids, `IDS_AT_ONCE` at a time."""
    hasher = xxhash.xxh3_128()
    ids_of_rows, *lists_of_rows = rows.columns
    first, length = ids_of_rows.offset, ids_of_rows.type.list_size
    tokens = columns.numbers(ids_of_rows.values)[first * length : (first + rows.num_rows) * length]  # `flatten`: 30 µs more
    for start in range(0, len(tokens), IDS_AT_ONCE):
        ids = tokens[start : start + IDS_AT_ONCE]
        hasher.update(ids.data)
        with_ids(ids)
    for name, lists in zip(rows.schema.names[1:], lists_of_rows):
        offsets = columns.numbers(lists.offsets)  # (num_rows + 1,) into the pieces
        pieces = columns.key_matrix(lists.values) if name == "keys" else columns.numbers(lists.values)
        hasher.update((offsets - offsets[0] if offsets[0] else offsets).data)
        hasher.update(pieces[int(offsets[0]) : int(offsets[-1])].data)
    return checksum_of(hasher)
