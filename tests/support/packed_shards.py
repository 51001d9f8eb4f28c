"""Packed documents and shards of them for tests: every token gives its document and position, every document ends with id 0."""

import json
import os
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from obstore.store import LocalStore

from datapipe import columns
from datapipe.records.checksum import bytes_checksum, file_checksum
from datapipe.shards.manifest import FileEntry, Phase, Snapshot, TokenizerEntry
from datapipe.shards.schemas import UNLEARNED, token_type
from datapipe.shards.shard_lists import list_files
from datapipe.shards.shard_table import ShardEntry, ShardTable
from datapipe.shards.source_entry import SourceEntry
from datapipe.shards.writer import ShardFormat, ShardWriter, shard_schema
from datapipe.storage.object_store import Bucket
from datapipe.storage.root import Root
from datapipe.tokens.packing import Method, assemble, pack

EOS = 0
TOKENIZER = b'{"model": "of these tests"}'
FINGERPRINT = bytes_checksum(TOKENIZER)


class RemoteRoot(Root):
    """A folder that is read and written as a bucket is."""

    @cached_property
    def _target(self) -> Any:
        return LocalBucket("s3://disk"), os.path.abspath(self.url).removeprefix("/")


class LocalBucket(Bucket):
    """The whole disk by obstore's own client of disks."""

    def client(self, retry: Any = None, **limits: str) -> Any:
        return LocalStore("/", automatic_cleanup=False, mkdir=True)

    def read_range(self, key: str, start: int, stop: int) -> tuple[memoryview, int]:
        with open(f"/{key}", "rb") as file:  # the client of disks refuses a range that begins at the end
            file.seek(start)
            return memoryview(file.read(stop - start)), os.stat(file.fileno()).st_size


def packed_batch(
    num_docs: int, sequence_length: int, *, vocab_size: int = 50_000, method: Method = "best_fit", seed: int = 0
) -> pa.RecordBatch:
    """Documents of 1 to 3 S tokens, packed; their rows in a random order."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 3 * sequence_length, num_docs)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = (1 + np.arange(offsets[-1]) % (vocab_size - 1)).astype(token_type(vocab_size).to_pandas_dtype())
    tokens[offsets[1:] - 1] = EOS
    keys = columns.key_matrix(columns.make_keys(seed + 1, np.arange(num_docs)))
    packed = pack(lengths, sequence_length, method)
    return assemble(packed, rng.permutation(packed.num_rows), tokens, offsets, keys, EOS, sequence_length)


def schema_of(batch: pa.RecordBatch, source: str = "web") -> pa.Schema:
    tokens = batch.schema.field("tokens").type
    return shard_schema(tokens.value_type, tokens.list_size, FINGERPRINT, source, has_mask=UNLEARNED in batch.schema.names)


def write_shards(
    folder: Path, batch: pa.RecordBatch, shard_format: ShardFormat = "arrow", target_bytes: int = 1 << 30
) -> list[ShardEntry]:
    """Writes a batch below `folder`/shards/web and returns its manifest entries."""
    writer = ShardWriter(Root(str(folder)), "shards/web/part-00000", shard_format, schema_of(batch), target_bytes)
    writer.append(batch)
    return [ShardEntry.of(shard, source="web", split="train") for shard in writer.finish()]


def make_snapshot(
    folder: Path,
    batch: pa.RecordBatch,
    shard_format: ShardFormat = "arrow",
    target_bytes: int = 1 << 30,
    vocab_size: int = 50_000,
) -> Snapshot:
    """A whole output of one source: shards, tokenizer.json, files.parquet and the manifest."""
    entries = write_shards(folder, batch, shard_format, target_bytes)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    hashes = np.unique(columns.key_halves(batch.column("keys").flatten())[0])
    names = pa.array(["web"] * len(hashes)), pa.array([f"{number}.jsonl" for number in range(len(hashes))])
    pq.write_table(pa.table({"hash": hashes, "source": names[0], "path": names[1]}), folder / "files.parquet")
    checksum, size = file_checksum(Root(str(folder)), "files.parquet")
    tokens = batch.schema.field("tokens").type
    snapshot = Snapshot(
        name="packed",
        seed=1,
        sequence_length=tokens.list_size,
        shard_format=shard_format,
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint=FINGERPRINT, vocab_size=vocab_size, eos_id=EOS),
        sources={"web": SourceEntry(weight=1)},
        phases=(Phase(until_tokens=None, weights={"web": 1}),),
        files=FileEntry(path="files.parquet", bytes=size, checksum=checksum),
        shards=tuple(entries),
    ).sealed()
    shutil.rmtree(folder / "lists", ignore_errors=True)
    for path, content in list_files(ShardTable.of(entries)).items():
        Root(str(folder)).write_atomic(path, content)
    return snapshot


def digest_of(manifest: dict[str, Any]) -> str:
    """The fingerprint of a manifest of any content."""
    return xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True, ensure_ascii=False).encode())
