"""A snapshot in another format: read front to back, each block compared with its checksum, and written again.

    shards/<source>/… ─▶ record batches ─▶ rows as they are ────────▶ ShardWriter ─▶ shards/<source>/… + snapshot.json
                                        ├▶ documents, joined again ─▶ MegatronWriter ─▶ <source>/<split>.bin, .idx
                                        └▶ rows as sequences ───────▶ MegatronWriter    (`rows`)

Arrow and Parquet exports are snapshots. The loader streams them, and an export of all sources has the batches of the original.
Without a size, each shard becomes one shard, since windows are made of shards. With a size, rows keep their order and their
stratum, so the batches are the same if one window holds all shards. A Megatron export has documents as sequences, each ended by
the end-of-text token, in the order of the snapshot: shards by path, rows, pieces. A document that was cut comes where its last
piece lies. With `rows`, sequence i is row i with exactly S tokens, padding included.

Documents that were taken down are in no export: rows are written without their tokens, and a row that has no other is left out.
The list of them stays with an export of shards.

The snapshot is only read. What readers begin with is written last: snapshot.json, or for Megatron tokenizer.json, and then the
mark of a whole export (`export_folder.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.errors import UserError, suggest
from datapipe.shards import schemas
from datapipe.shards.datasets.card import dataset_card
from datapipe.shards.document_files import committed_file
from datapipe.shards.export_folder import ExportFolder
from datapipe.shards.manifest import SNAPSHOT, Phase, Snapshot
from datapipe.shards.megatron import MegatronWriter
from datapipe.shards.packed_documents import DocumentJoiner, without_removed
from datapipe.shards.removed import read_removed
from datapipe.shards.shard_file import open_shard
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.writer import ShardWriter, WrittenShard, shard_name, shard_schema
from datapipe.storage import Root, sync_file

ExportFormat = Literal["megatron", "parquet", "arrow"]
Split = Literal["train", "validation"]

AboutShards = Callable[[Snapshot], Mapping[str, bytes]]
"""Makes the files about an export, README.md among them, from its manifest."""

SPLITS: tuple[Split, ...] = ("train", "validation")
_MOST_FILES = 100_000  # the number in a shard's name has five digits, and names decide the order


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportRequest:
    """The parts of a snapshot to export, and the format.

    Attributes:
        source, split: only these; None: all.
        target_bytes: size of a file; None: a file for each shard, or for Megatron no limit.
        rows: for Megatron: packed rows as sequences instead of documents.
    """

    format: ExportFormat
    source: str | None = None
    split: Split | None = None
    target_bytes: int | None = None
    rows: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedSplit:
    """The files of one split of one source; `tokens` counts padding only where rows are sequences."""

    source: str
    split: Split
    files: tuple[str, ...]
    sequences: int
    tokens: int


def export_snapshot(
    root: Root,
    snapshot: Snapshot,
    target: Root,
    wanted: ExportRequest,
    progress: Callable[[str], None] | None = None,
    about: AboutShards | None = None,
) -> list[ExportedSplit]:
    """Writes the export. Raises UserError for an impossible request, CorruptionError for damaged shards.

    Args:
        target: a folder as `export_folder` takes it. Nothing is written where this export is whole already.
        progress: called with the path of each shard before it is read.
        about: makes files about an export of shards, README.md among them, from its manifest.
    """
    parts = _parts(snapshot, wanted)
    request = {**asdict(wanted), "kind": "rows", "snapshot": snapshot.fingerprint, "card": about is not None}
    folder = ExportFolder(root=root, target=target, request=request)
    if (whole := folder.begin()) is not None:
        return [ExportedSplit(**{**split, "files": tuple(split["files"])}) for split in whole]
    tokenizer = committed_file(root, snapshot, snapshot.tokenizer.path, snapshot.tokenizer.fingerprint)
    exported: list[ExportedSplit] = []
    shards: list[ShardEntry] = []
    for source, split in parts:
        entries, report = snapshot.shards_of(source, split), progress or (lambda path: None)
        if wanted.format == "megatron":
            batches = shard_batches(root, snapshot, entries, report)
            exported.append(_write_megatron(target, snapshot, wanted, source, split, batches))
        else:
            written: list[ShardEntry] = []
            for number, group in enumerate(_groups(entries, wanted)):
                written += _write_shards(target, snapshot, wanted, number, group, shard_batches(root, snapshot, group, report))
            files, rows = tuple(shard.path for shard in written), sum(shard.sequences for shard in written)
            tokens = sum(shard.tokens for shard in written)
            exported.append(ExportedSplit(source=source, split=split, files=files, sequences=rows, tokens=tokens))
            shards += written
    sync_all(target)
    if wanted.format == "megatron":
        target.write_atomic("tokenizer.json", tokenizer)
    else:
        _write_manifest(root, target, snapshot, wanted, shards, tokenizer, about)
    folder.end([asdict(split) for split in exported])
    return exported


def _parts(snapshot: Snapshot, wanted: ExportRequest) -> list[tuple[str, Split]]:
    """Source and split of each part of the export, sorted by name."""
    sources = wanted_sources(snapshot.sources, wanted.source)
    if wanted.rows and wanted.format != "megatron":
        raise UserError(f"--rows requires --format megatron: {wanted.format} shards always hold packed rows. Leave out --rows")
    splits: tuple[Split, ...] = SPLITS if wanted.split is None else (wanted.split,)
    parts: list[tuple[str, Split]] = [
        (source, split) for source in sources for split in splits if snapshot.shards_of(source, split)
    ]
    if not parts:
        raise UserError(
            f"nothing to export: the snapshot has no {' or '.join(splits)} shard of {', '.join(sources)}. Choose another "
            f"source or split"
        )
    for source, split in parts if wanted.format != "megatron" and wanted.target_bytes is not None else ():
        id_bytes = schemas.token_type(snapshot.tokenizer.vocab_size).bit_width // 8
        rows_per_file = max(1, wanted.target_bytes // (snapshot.sequence_length * id_bytes))
        rows = sum(shard.sequences for shard in snapshot.shards_of(source, split))
        if rows > rows_per_file * _MOST_FILES:
            raise UserError(
                f"--target-bytes {wanted.target_bytes} would make more than {_MOST_FILES} files of '{source}'. Give more"
            )
    return parts


def wanted_sources(sources: Collection[str], source: str | None) -> list[str]:
    """All sources by name, or the one that is wanted. Raises UserError for a source that there is not."""
    if source is not None and source not in sources:
        raise UserError(f"no source '{source}'.{suggest(source, sources)} Expected one of: {', '.join(sorted(sources))}")
    return sorted(sources) if source is None else [source]


def shard_batches(
    root: Root, snapshot: Snapshot, entries: tuple[ShardEntry, ...], report: Callable[[str], None]
) -> Iterator[pa.RecordBatch]:
    """The rows of shards, one after another, each block compared with its checksum; without documents that were taken down."""
    removed = read_removed(root, snapshot)
    for entry in entries:
        report(entry.path)
        shard = open_shard(
            root, entry, snapshot.sequence_length, snapshot.tokenizer.fingerprint, vocab_size=snapshot.tokenizer.vocab_size
        )
        try:
            for number in range(shard.num_batches):
                yield without_removed(shard.checked_batch(number), removed, snapshot.tokenizer.eos_id)
        finally:
            shard.close()


def _write_megatron(
    target: Root, snapshot: Snapshot, wanted: ExportRequest, source: str, split: Split, batches: Iterator[pa.RecordBatch]
) -> ExportedSplit:
    id_type = schemas.token_type(snapshot.tokenizer.vocab_size)
    writer = MegatronWriter(target, f"{source}/{split}", id_type, wanted.target_bytes)
    joiner = DocumentJoiner(snapshot.tokenizer.eos_id)
    try:
        for batch in batches:
            if wanted.rows:
                row_lengths = np.full(batch.num_rows, snapshot.sequence_length, np.int64)
                writer.append(columns.numbers(batch.column("tokens").values), row_lengths)
            else:
                writer.append(*joiner.add(batch))
        joiner.finish()
        pairs = writer.finish()
    except BaseException:
        writer.abort()
        raise
    return ExportedSplit(
        source=source,
        split=split,
        files=tuple(f"{pair.prefix}.{ending}" for pair in pairs for ending in ("bin", "idx")),
        sequences=sum(pair.sequences for pair in pairs),
        tokens=sum(pair.tokens for pair in pairs),
    )


def _groups(entries: tuple[ShardEntry, ...], wanted: ExportRequest) -> list[tuple[ShardEntry, ...]]:
    """Shards whose rows are written one after another: each shard alone, or neighbours of one piece length and stratum."""
    if wanted.target_bytes is None:
        return [(entry,) for entry in entries]
    return [tuple(group) for _, group in groupby(entries, key=lambda entry: (entry.piece_length, entry.stratum))]


def _write_shards(
    target: Root,
    snapshot: Snapshot,
    wanted: ExportRequest,
    number: int,
    group: tuple[ShardEntry, ...],
    batches: Iterator[pa.RecordBatch],
) -> list[ShardEntry]:
    """Writes group `number` and returns its manifest entries. A shard that is written alone keeps its name."""
    assert wanted.format != "megatron"
    first, id_type = group[0], schemas.token_type(snapshot.tokenizer.vocab_size)
    schema = shard_schema(
        id_type, snapshot.sequence_length, snapshot.tokenizer.fingerprint, first.source, first.piece_length, first.stratum
    )
    if wanted.target_bytes is None:
        prefix, _, first_number = first.numbered_path.rpartition(".")[0].rpartition("-")
        target_bytes, hashes = first.sequences * snapshot.sequence_length * id_type.bit_width // 8, first.hashes
    else:
        prefix = f"shards/{first.source}/{shard_name(first.split, number, first.piece_length, first.stratum)}"
        first_number, target_bytes, hashes = 0, wanted.target_bytes, None
    writer = ShardWriter(target, prefix, wanted.format, schema, target_bytes, int(first_number))
    try:
        for batch in batches:
            writer.append(batch)
        return [_entry(shard, first, hashes) for shard in writer.finish()]
    except BaseException:
        writer.abort()
        raise


def _entry(shard: WrittenShard, original: ShardEntry, hashes: tuple[int, int] | None) -> ShardEntry:
    """The manifest entry of a written shard. Source, split, piece length and stratum are those of an original of its group."""
    return ShardEntry(
        path=shard.path,
        source=original.source,
        split=original.split,
        sequences=shard.sequences,
        tokens=shard.tokens,
        documents=shard.documents,
        bytes=shard.bytes,
        checksum=shard.checksum,
        piece_length=original.piece_length,
        stratum=original.stratum,
        hashes=hashes,
    )


def sync_all(target: Root) -> None:
    """Syncs all files, before the file that marks the export as finished is written."""
    if target.local is not None:
        for path, _ in target.list_files(""):
            sync_file(target.local / path)


def copy_files(root: Root, target: Root, snapshot: Snapshot) -> None:
    """Copies the table of input files and the list of removed documents, where the snapshot has them. Raises CorruptionError if
    one is damaged."""
    for entry in (snapshot.files, snapshot.removed):
        if entry is not None:
            target.write_atomic(entry.path, committed_file(root, snapshot, entry.path, entry.checksum))


def _write_manifest(
    root: Root,
    target: Root,
    snapshot: Snapshot,
    wanted: ExportRequest,
    shards: list[ShardEntry],
    tokenizer: bytes,
    about: AboutShards | None,
) -> None:
    """Writes the manifest of the export; a single source gets weight 1."""
    assert wanted.format != "megatron"
    target.write_atomic(snapshot.tokenizer.path, tokenizer)
    copy_files(root, target, snapshot)
    content: dict[str, object] = {"shard_format": wanted.format, "shards": tuple(sorted(shards, key=lambda shard: shard.path))}
    if wanted.source is not None:
        content["sources"] = {wanted.source: snapshot.sources[wanted.source].model_copy(update={"weight": 1})}
        content["phases"] = (Phase(until_tokens=None, weights={wanted.source: 1}),)
    exported = snapshot.model_copy(update=content).sealed()
    plain = {"README.md": _card(snapshot.name, shards)} if wanted.format == "parquet" else {}
    for path, described in (plain if about is None else about(exported)).items():
        target.write_atomic(path, described)
    target.write_atomic(SNAPSHOT, exported.to_json())


def _card(name: str, shards: list[ShardEntry]) -> bytes:
    """README.md, by which `datasets.load_dataset` reads the shards of each split."""
    counts = Counter[tuple[str, Split]]()
    for shard in shards:
        counts[shard.source, shard.split] += shard.sequences
    patterns = {"train": "shards/*/part-*.parquet", "validation": "shards/*/validation-*.parquet"}
    there = {split: patterns[split] for split in SPLITS if any(each == split for _, each in counts)}
    return dataset_card(name, there, [(source, split, num_rows) for (source, split), num_rows in sorted(counts.items())])
