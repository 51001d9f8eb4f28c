"""The input files behind the documents of a snapshot, by its files.parquet, and the keys of documents that people name."""

import io
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.document_name import FORMS, InputFiles
from datapipe.errors import CorruptionError, UserError
from datapipe.records.checksum import bytes_checksum, intact
from datapipe.shards.manifest import Snapshot, snapshot_file
from datapipe.storage.root import Root, parquet_table


def committed_file(root: Root, snapshot: Snapshot, path: str, checksum: str) -> bytes:
    """The content of a file of a snapshot. Raises CorruptionError where it is not the content that was committed."""
    path = snapshot_file(root, snapshot, path)

    def read() -> bytes:
        try:
            content = root.read_bytes(path)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise CorruptionError(f"{path}: no such file. Run the mixture again to restore it.") from error
        if bytes_checksum(content) != checksum:
            raise CorruptionError(f"{path}: its checksum is not that of the snapshot. Run the mixture again to restore it.")
        return content

    return intact(read)


def files_with_hashes(root: Root, snapshot: Snapshot) -> list[tuple[int, str, str]]:
    """(hash, source, path) of each input file; the hash is the first half of the keys of its documents. Sources that are
    taken from other snapshots may have the same files."""
    if snapshot.files is None:
        return []
    return files_in(committed_file(root, snapshot, snapshot.files.path, snapshot.files.checksum))


def files_of(root: Root, snapshot: Snapshot) -> set[tuple[str, str]]:
    return {(source, path) for _, source, path in files_with_hashes(root, snapshot)}


def files_parquet(files: Iterable[tuple[int, str, str]]) -> bytes:
    """The content of a files.parquet with the (hash, source, path) of each input file."""
    rows = sorted(files, key=lambda file: file[1:])
    schema = pa.schema([("hash", pa.uint64()), ("source", pa.string()), ("path", pa.string())])
    sink = io.BytesIO()
    columns = list(zip(*rows)) or [()] * len(schema)
    pq.write_table(pa.table(dict(zip(schema.names, columns)), schema), sink, compression="zstd")
    return sink.getvalue()


def files_in(content: bytes) -> list[tuple[int, str, str]]:
    """(hash, source, path) of each input file in the content of a files.parquet."""
    names = ["hash", "source", "path"]
    table = parquet_table(content, names)
    return list(zip(*(table.column(name).to_pylist() for name in names)))


def document_keys(root: Root, snapshot: Snapshot, documents: Iterable[str]) -> list[bytes]:
    """The keys of documents in the forms that `InputFiles.key` takes. Raises UserError for an unknown file."""
    documents = list(map(str, documents))
    keys = find_keys(files_with_hashes(root, snapshot) if documents else (), documents)
    for text, key in zip(documents, keys):
        if key is None:
            raise UserError(
                f"{text!r}: this snapshot has no such file. Expected {FORMS}, such as `datapipe trace --step` prints."
            )
    return [key for key in keys if key is not None]


def find_keys(files: Iterable[tuple[int, str, str]], documents: Iterable[str]) -> list[bytes | None]:
    """`InputFiles.key` of documents, where there are any. `files`: (hash, source, path) of each input file."""
    documents = list(documents)
    return [*map(InputFiles(files).key, documents)] if documents else []
