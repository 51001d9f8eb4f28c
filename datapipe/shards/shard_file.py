"""One shard file, Arrow or Parquet: what it says of itself, and opening it with that held against the manifest.

Every record batch (Arrow) or row group (Parquet) holds `rows_per_batch` rows and the last one what is left, so
row -> (batch, row in it) is arithmetic in both formats. Each carries the checksum of its rows: in Arrow as metadata of the
record batch, which comes with it, in Parquet in the footer, which is read first. So one block that was fetched from far away
is known to be whole without the rest of the file, and a damaged file says which rows are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.errors import CorruptionError, SnapshotError
from datapipe.shards import schemas
from datapipe.shards.checksum import rows_checksum
from datapipe.shards.manifest import ShardEntry
from datapipe.storage import Root

FORMAT_VERSION = "2"
VERSION_KEY, TOKENIZER_KEY, LENGTH_KEY = b"datapipe.version", b"datapipe.tokenizer", b"datapipe.sequence_length"
SOURCE_KEY, ROWS_KEY, PIECE_KEY = b"datapipe.source", b"datapipe.rows_per_batch", b"datapipe.piece_length"
STRATUM_KEY = b"datapipe.stratum"
CHECKSUM_KEY = b"datapipe.checksum"
"""Of a record batch its checksum; of a Parquet file those of its row groups, with spaces between."""


def identity(
    sequence_length: int, tokenizer_fingerprint: str, piece_length: int | None = None, stratum: int | None = None
) -> dict[bytes, bytes]:
    """What the metadata of a shard must say; the length of its pieces only where all are of one, its stratum if it has one."""
    known = {
        VERSION_KEY: FORMAT_VERSION.encode(),
        TOKENIZER_KEY: tokenizer_fingerprint.encode(),
        LENGTH_KEY: str(sequence_length).encode(),
    }
    numbers = {PIECE_KEY: piece_length, STRATUM_KEY: stratum}
    return known | {key: str(number).encode() for key, number in numbers.items() if number is not None}


def open_shard(
    root: Root, entry: ShardEntry, sequence_length: int, tokenizer_fingerprint: str, local: Path | None = None
) -> Shard:
    """Opens a shard and checks all but its rows. Raises SnapshotError for other data, CorruptionError for damage.

    Args:
        local: a whole copy of the file, opened in its place.
    """
    size = root.size(entry.path) if local is None else local.stat().st_size
    if size != entry.bytes:
        found = "no such file" if size is None else f"{size} bytes"
        raise CorruptionError(f"{entry.path}: {found}, expected {entry.bytes} bytes. Run the mixture again to restore it")
    shard = Shard(root, entry, local)
    try:
        shard.check(sequence_length, tokenizer_fingerprint)
    except BaseException:
        shard.close()
        raise
    return shard


class Shard:
    """An open file as record batches of constant size. Not for use by two threads at once.

    Attributes:
        mapped: the bytes of the file where it is local Arrow, whose batches are views of them; else None.
        schema: with the file's metadata.
    """

    def __init__(self, root: Root, entry: ShardEntry, local: Path | None = None) -> None:
        self._entry = entry
        self._is_local = root.local is not None or local is not None
        self._stream = root.open_input(entry.path) if local is None else pa.memory_map(str(local))
        is_parquet = entry.path.endswith(".parquet")
        self.mapped = self._stream.read_buffer() if self._is_local and not is_parquet else None
        try:
            with self._damage_named():
                if is_parquet:
                    file: Any = pq.ParquetFile(self._stream)
                    self.schema, self.num_batches = file.schema_arrow, file.num_row_groups
                    sums = (file.metadata.metadata or {}).get(CHECKSUM_KEY, b"").split()
                    self._get: Callable[[int], tuple[Any, bytes]] = lambda number: _row_group(file, number, sums)
                else:
                    file = pa.ipc.open_file(self._stream if self.mapped is None else pa.BufferReader(self.mapped))
                    self.schema, self.num_batches = file.schema, file.num_record_batches
                    self._get = lambda number: _record_batch(file, number)
        except BaseException:
            self.close()
            raise

    @property
    def rows_per_batch(self) -> int:
        return int(self.schema.metadata[ROWS_KEY])

    @property
    def id_type(self) -> pa.DataType:
        return self.schema.field("tokens").type.value_type

    def check(self, sequence_length: int, tokenizer_fingerprint: str) -> None:
        """Holds what the file says of itself against the snapshot."""
        metadata, path = self.schema.metadata or {}, self._entry.path
        expected = identity(sequence_length, tokenizer_fingerprint, self._entry.piece_length, self._entry.stratum)
        for name, value in expected.items():
            if metadata.get(name) != value:
                found = metadata.get(name, b"nothing").decode(errors="replace")
                raise SnapshotError(f"{path}: {name.decode()} is {found}, expected {value.decode()} as in the snapshot")
        known = [schemas.sequences(id_type, sequence_length) for id_type in (pa.uint16(), pa.uint32())]
        rows = metadata.get(ROWS_KEY, b"")
        is_number = rows.isdigit() and 1 <= int(rows[:20]) < 1 << 31
        if not any(self.schema.equals(schema) for schema in known) or not is_number:
            raise CorruptionError(f"{path}: its columns are not those of a shard. Run the mixture again to restore it")
        num_batches = -(-self._entry.sequences // self.rows_per_batch)
        if self.num_batches != num_batches:
            raise CorruptionError(f"{path}: {self.num_batches} record batches, expected {num_batches}")

    def batch(self, number: int) -> pa.RecordBatch:
        """Record batch or row group `number`, with its buffers checked to be as long as its rows need; see `checked_batch`."""
        return self._laid_out(number)[0]

    def checked_batch(self, number: int) -> pa.RecordBatch:
        """The same with its rows held against their checksum. Raises CorruptionError, naming the rows."""
        batch, checksum = self._laid_out(number)
        if rows_checksum(batch).encode() != checksum:
            raise CorruptionError(
                f"{self._entry.path}: {self.rows_of(number)} are damaged. "
                f"Delete the file and run the mixture again to restore it"
            )
        return batch

    def rows_of(self, number: int) -> str:
        """A block in words: "record batch 3, rows 300 to 399,"."""
        start = number * self.rows_per_batch
        stop = min(start + self.rows_per_batch, self._entry.sequences)
        kind = "row group" if self._entry.path.endswith(".parquet") else "record batch"
        return f"{kind} {number}, rows {start} to {stop - 1},"

    def _laid_out(self, number: int) -> tuple[pa.RecordBatch, bytes]:
        with self._damage_named(f"{self.rows_of(number)} "):
            batch, checksum = self._get(number)
            batch.validate()
        expected = min(self.rows_per_batch, self._entry.sequences - number * self.rows_per_batch)
        pieces = {len(batch.column(name).values) for name in ("lengths", "keys", "starts")}
        if batch.num_rows != expected or len(pieces) != 1:
            raise CorruptionError(f"{self._entry.path}: {self.rows_of(number)} are not laid out as the footer says")
        return batch, checksum

    def close(self) -> None:
        """Closes the file; batches and `mapped` stay valid as long as they are held."""
        self._stream.close()

    @contextmanager
    def _damage_named(self, what: str = "") -> Iterator[None]:
        """Turns what Arrow raises for broken content into a CorruptionError that names the file, and `what` of it."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and (not self._is_local or error.errno is not None):
                raise  # the disk or the network, not the content
            raise CorruptionError(
                f"{self._entry.path}: {what}cannot be read: {error}. Delete the file and run the mixture again to restore it"
            ) from error


def _row_group(file: Any, number: int, checksums: list[bytes]) -> tuple[pa.RecordBatch, bytes]:
    batch = pa.concat_batches(file.read_row_group(number, use_threads=False).to_batches())
    return batch, checksums[number] if number < len(checksums) else b""


def _record_batch(file: Any, number: int) -> tuple[pa.RecordBatch, bytes]:
    batch, metadata = file.get_batch_with_custom_metadata(number)
    return batch, (metadata or {}).get(CHECKSUM_KEY, b"")
