"""A snapshot in another format: read front to back, each block compared with its checksum, and written again.

    shards/<source>/… ─▶ record batches ─▶ rows as they are ────────▶ ShardWriter ─▶ shards/<source>/… + snapshot.json
                                        ├▶ documents, joined again ─▶ MegatronWriter ─▶ <source>/<split>.bin, .idx
                                        └▶ rows as sequences ───────▶ MegatronWriter    (`rows`)

Arrow and Parquet exports are snapshots. The loader streams them, and an export of all sources has the batches of the original.
Without a size, each shard becomes one shard, since windows are made of shards. With a size, rows keep their order and their
group, so the batches are the same if one window holds all shards. A Megatron export has documents as sequences, each ended by
the end-of-text token, in the order of the snapshot: shards by path, rows, pieces. A document that was cut comes where its last
piece lies. With `rows`, sequence i is row i with exactly S tokens, padding included.

Documents that were taken down are in no export: rows are written without their tokens, and a row
that has no other is left out. The list of them stays with an export of shards.

The snapshot is only read. What readers begin with is written last: snapshot.json, or for Megatron
tokenizer.json, and then the mark of a whole export (`folder.py`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Literal

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.dataclass import asdict, dataclass
from datapipe.errors import UserError, suggest
from datapipe.machine.files import sync
from datapipe.shards import schemas
from datapipe.shards.document_files import committed_file
from datapipe.shards.loss_mask import learned_of
from datapipe.shards.manifest import Phase, Snapshot
from datapipe.shards.packed_documents import NOT_LEARNED, DocumentJoiner, rows_left, starts_of, without_removed
from datapipe.shards.removed import read_removed
from datapipe.shards.shard_file import open_shard
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.source_entry import SourceEntry
from datapipe.shards.writer import CellOfRows, ShardWriter, shard_schema
from datapipe.snapshots.export.card import dataset_card
from datapipe.snapshots.export.folder import MARK, ExportFolder
from datapipe.snapshots.export.megatron import MegatronWriter
from datapipe.storage.root import Root

ExportFormat = Literal["megatron", "arrow", "parquet", "jsonl", "mds"]
Split = Literal["train", "validation"]

AboutShards = Callable[[Snapshot], Mapping[str, bytes]]
"""Makes the files about an export, README.md among them, from its manifest."""

SPLITS: tuple[Split, ...] = ("train", "validation")
_MOST_FILES = 100_000  # the number in a shard's name has five digits, and names decide the order


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportRequest:
    """The parts of a snapshot to export, and the format."""

    format: ExportFormat
    # packed rows, the documents of a run without a tokenizer, or those of another as text
    kind: Literal["rows", "documents", "text"] = "rows"
    # source, split: only these; None: all
    source: str | None = None
    split: Split | None = None
    # of a file; None: a file for each shard, no limit for Megatron, 64 MiB for MDS, else 256 MiB
    target_bytes: int | None = None
    rows: bool = False  # for Megatron: packed rows as sequences instead of documents
    is_compressed: bool = False  # for MDS: shards as zstd files

    @property
    def is_snapshot(self) -> bool:
        """Whether the export is a snapshot again, which the loader streams."""
        return self.format == "arrow" or (self.format == "parquet" and self.kind == "rows")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedSplit:
    """One split of one source: sequences or documents, and the tokens of sequences. `files` is
    empty where a file may hold several sources."""

    source: str
    split: Split
    rows: int
    tokens: int = 0
    files: tuple[str, ...] = ()


def write_export(
    root: Root,
    target: Root,
    wanted: ExportRequest,
    identity: Mapping[str, object],
    write: Callable[[], list[ExportedSplit]],
    last_files: Callable[[list[ExportedSplit]], Mapping[str, bytes]],
) -> list[ExportedSplit]:
    """Writes an export between the marks of its folder: the data, and then the files that readers begin with, the last
    one last. Nothing is written where it is whole already. `identity` is what it follows from beside the request."""
    folder = ExportFolder(root=root, target=target, request={**asdict(wanted), **identity})
    if (whole := folder.begin()) is not None:
        return [ExportedSplit(**{**split, "files": tuple(split["files"])}) for split in whole]
    exported = write()
    if not exported:
        target.delete(MARK)
        raise UserError("nothing to export: no document or row of this source and split. Choose another one")
    if target.local is not None:  # before the file that marks the export as finished is written
        for path, _ in target.list_files(""):
            sync(target.local / path)
    for path, content in last_files(exported).items():
        target.write_atomic(path, content)
    folder.end([asdict(split) for split in exported])
    return exported


def export_snapshot(
    root: Root, snapshot: Snapshot, target: Root, wanted: ExportRequest, about: AboutShards | None = None
) -> list[ExportedSplit]:
    """Writes shards, or Megatron's files. `about` makes files about an export of shards, README.md among them, from its
    manifest. Raises UserError for an impossible request, CorruptionError for damaged shards."""
    parts = _parts(snapshot, wanted)
    tokenizer, shards = snapshot.tokenizer, list[ShardEntry]()
    needed: dict[str, bytes] = {}

    def write() -> list[ExportedSplit]:
        path = "tokenizer.json" if wanted.format == "megatron" else tokenizer.path
        needed[path] = committed_file(root, snapshot, tokenizer.path, tokenizer.fingerprint)
        if (template := snapshot.chat_template) is not None:
            needed[template.path] = committed_file(root, snapshot, template.path, template.checksum)
        exported: list[ExportedSplit] = []
        for source, split in parts:
            entries = snapshot.shards_of(source, split)
            is_masked = has_mask(root, snapshot, entries)
            if wanted.format == "megatron":
                batches = partial(shard_batches, root, snapshot, entries)
                exported.append(_write_megatron(target, snapshot, wanted, source, split, batches, has_segments=is_masked))
                continue
            written: list[ShardEntry] = []
            for number, group in enumerate(_groups(entries, wanted)):
                batches = _in_cells(root, snapshot, group)
                written += _write_shards(target, snapshot, wanted, number, group, batches, is_masked=is_masked)
            rows, tokens = sum(shard.sequences for shard in written), sum(shard.tokens for shard in written)
            files = tuple(shard.path for shard in written)
            exported.append(ExportedSplit(source=source, split=split, files=files, rows=rows, tokens=tokens))
            shards.extend(written)
        return exported

    def last_files(exported: list[ExportedSplit]) -> Mapping[str, bytes]:
        if wanted.format != "megatron":
            needed.update(_manifest_files(root, snapshot, wanted, shards, exported, about))
        return needed

    identity = {"snapshot": snapshot.fingerprint, "length": snapshot.sequence_length, "card": about is not None}
    return write_export(root, target, wanted, identity, write, last_files)


def _parts(snapshot: Snapshot, wanted: ExportRequest) -> list[tuple[str, Split]]:
    sources = wanted_sources(snapshot.sources, wanted.source)
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
    """All sources by name, or the one that is wanted. Raises UserError for an unknown source."""
    if source is not None and source not in sources:
        raise UserError(f"no source '{source}'.{suggest(source, sources)} Expected one of: {', '.join(sorted(sources))}")
    return sorted(sources) if source is None else [source]


def shard_batches(root: Root, snapshot: Snapshot, entries: tuple[ShardEntry, ...]) -> Iterator[pa.RecordBatch]:
    """The rows of shards, one after another, each block compared with its checksum; without documents that were taken down."""
    removed = read_removed(root, snapshot)
    for entry in entries:
        with closing(open_shard(root, entry, snapshot.form)) as shard:
            for number in range(shard.num_batches):
                yield without_removed(shard.checked_batch(number), removed, snapshot.tokenizer.eos_id)


def _in_cells(
    root: Root, snapshot: Snapshot, entries: Sequence[ShardEntry]
) -> Iterator[tuple[CellOfRows | None, pa.RecordBatch]]:
    """As `shard_batches`, with the cell of the rows of each batch; None for a source without cells."""
    removed = read_removed(root, snapshot)
    for entry in entries:
        with closing(open_shard(root, entry, snapshot.form)) as shard:
            for number in range(shard.num_batches):
                rows, first = shard.checked_batch(number), number * shard.rows_per_batch
                left = without_removed(rows, removed, snapshot.tokenizer.eos_id)
                if entry.cells is None:
                    yield None, left
                    continue
                places = rows_left(rows, removed) + first
                for run, start, stop in entry.runs_between(first, first + rows.num_rows):
                    begin, end = np.searchsorted(places, (start, stop)).tolist()
                    yield (run.cell, run.again), left.slice(begin, end - begin)


def has_mask(root: Root, snapshot: Snapshot, entries: Sequence[ShardEntry]) -> bool:
    """Whether documents in shards of one source have a mask. Those that were added later may have another form."""
    for entry in {entry.part: entry for entry in entries}.values():
        with closing(open_shard(root, entry, snapshot.form)) as shard:
            if schemas.UNLEARNED in shard.schema.names:
                return True
    return False


def _leave_out_any(batches: Iterator[pa.RecordBatch]) -> bool:
    """Whether rows have a token that no loss counts."""
    return any(schemas.UNLEARNED in batch.schema.names and len(batch.column(schemas.UNLEARNED).flatten()) for batch in batches)


def with_mask(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the column of unlearned runs; without any where they have none."""
    if schemas.UNLEARNED in batch.schema.names:
        return batch
    rows = batch.schema.field("tokens").type
    field = schemas.sequences(rows.value_type, rows.list_size, has_mask=True).field(schemas.UNLEARNED)
    nothing = pa.ListArray.from_arrays(
        pa.array(np.zeros(batch.num_rows + 1, np.int32)), pa.array([], pa.int32()), type=field.type
    )
    return batch.append_column(field, nothing)


def _write_megatron(
    target: Root,
    snapshot: Snapshot,
    wanted: ExportRequest,
    source: str,
    split: Split,
    batches: Callable[[], Iterator[pa.RecordBatch]],
    *,
    has_segments: bool,
) -> ExportedSplit:
    id_type, is_masked = schemas.token_type(snapshot.tokenizer.vocab_size), has_segments and _leave_out_any(batches())
    writer = MegatronWriter(target, f"{source}/{split}", id_type, wanted.target_bytes)
    mask_bytes = None if wanted.target_bytes is None else wanted.target_bytes // (id_type.bit_width // 8)
    masks = MegatronWriter(target, f"{source}/{split}-loss-mask", pa.uint8(), mask_bytes)
    continued = np.concatenate([*map(starts_of, batches())]) if has_segments and not wanted.rows else None
    joiner = DocumentJoiner(snapshot.tokenizer.eos_id, continued, is_aligned=snapshot.bos_aligned)
    with ExitStack() as handles:
        handles.callback(writer.abort)
        handles.callback(masks.abort)
        for batch in batches():
            tokens, lengths = _rows_of(batch, is_masked=is_masked) if wanted.rows else joiner.add(batch)
            writer.append(tokens & ~NOT_LEARNED if is_masked else tokens, lengths)
            if is_masked:
                masks.append(tokens < NOT_LEARNED, lengths)
        joiner.finish()
        pairs = (*writer.finish(), *masks.finish())
    own = pairs[: len(pairs) // 2] if is_masked else pairs
    return ExportedSplit(
        source=source,
        split=split,
        files=tuple(f"{pair.prefix}.{ending}" for pair in pairs for ending in ("bin", "idx")),
        rows=sum(pair.sequences for pair in own),
        tokens=sum(pair.tokens for pair in own),
    )


def _rows_of(batch: pa.RecordBatch, *, is_masked: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows as sequences of exactly S tokens; see `DocumentJoiner.add`."""
    width, tokens = batch.column("tokens").type.list_size, columns.numbers(batch.column("tokens").values)
    if is_masked:
        tokens = tokens.astype(np.uint32) + np.where(learned_of(batch), np.uint32(0), NOT_LEARNED)
    return tokens, np.full(batch.num_rows, width, np.int64)


def _groups(entries: tuple[ShardEntry, ...], wanted: ExportRequest) -> list[tuple[ShardEntry, ...]]:
    """Shards whose rows are written one after another: each shard alone, or neighbours of one group."""
    if wanted.target_bytes is None:
        return [(entry,) for entry in entries]
    return [tuple(group) for _, group in groupby(entries, key=attrgetter("group"))]


def _write_shards(
    target: Root,
    snapshot: Snapshot,
    wanted: ExportRequest,
    number: int,
    group: tuple[ShardEntry, ...],
    batches: Iterator[tuple[CellOfRows | None, pa.RecordBatch]],
    *,
    is_masked: bool,
) -> list[ShardEntry]:
    """Writes group `number` and returns its manifest entries. A shard that is written alone keeps its name."""
    assert wanted.format in ("arrow", "parquet")
    first, id_type = group[0], schemas.token_type(snapshot.tokenizer.vocab_size)
    form = (snapshot.sequence_length, snapshot.tokenizer.fingerprint, first.source, first.group)
    schema = shard_schema(id_type, *form, has_mask=is_masked)
    if wanted.target_bytes is None:
        prefix, _, first_number = first.numbered_path.rpartition(".")[0].rpartition("-")
        target_bytes, hashes = first.sequences * snapshot.sequence_length * id_type.bit_width // 8, first.hashes
    else:
        prefix = f"shards/{first.source}/{first.group.shard_name(first.split, number)}"
        first_number, target_bytes, hashes = 0, wanted.target_bytes, None
    writer = ShardWriter(target, prefix, wanted.format, schema, target_bytes, int(first_number))
    with ExitStack() as handles:
        handles.callback(writer.abort)
        for cell, batch in batches:
            writer.append(with_mask(batch).replace_schema_metadata(schema.metadata) if is_masked else batch, cell)
        common = {"source": first.source, "split": first.split, **first.group._asdict(), "hashes": hashes}
        return [ShardEntry.of(shard, **common) for shard in writer.finish()]


def _of_rows(source: SourceEntry, name: str, shards: Sequence[ShardEntry]) -> SourceEntry:
    """A source in whose manifest cells without rows, of which all documents were taken down, have weight 0."""
    if source.cells is None:
        return source
    having = {run.cell for shard in shards if shard.source == name for run in shard.cells or ()}
    weights = tuple(weight if number in having else 0 for number, weight in enumerate(source.cells.weights))
    return source.model_copy(update={"cells": source.cells.model_copy(update={"weights": weights})})


def _manifest_files(
    root: Root,
    snapshot: Snapshot,
    wanted: ExportRequest,
    shards: list[ShardEntry],
    exported: list[ExportedSplit],
    about: AboutShards | None,
) -> dict[str, bytes]:
    """The manifest of the export, last, and the files that it names, but for the tokenizer. A single source gets weight 1."""
    named = {entry.path: committed_file(root, snapshot, entry.path, entry.checksum) for entry in snapshot.entries}
    ordered = tuple(sorted(shards, key=lambda shard: shard.path))
    content: dict[str, object] = {"shard_format": wanted.format, "shards": ordered, "further": ()}
    content["sources"] = {name: _of_rows(source, name, ordered) for name, source in snapshot.sources.items()}
    if wanted.source is not None:
        alone = _of_rows(snapshot.sources[wanted.source], wanted.source, ordered)
        content["sources"] = {wanted.source: alone.model_copy(update={"weight": 1})}
        content["phases"] = (Phase(until_tokens=None, weights={wanted.source: 1}),)
    made = snapshot.model_copy(update=content).sealed()
    patterns = {"train": "shards/*/part-*.parquet", "validation": "shards/*/validation-*.parquet"}
    plain = {"README.md": dataset_card(snapshot.name, patterns, exported)} if wanted.format == "parquet" else {}
    return {**named, **(plain if about is None else about(made)), **made.to_files()}
