"""Small snapshots made by hand, in which every token gives its position.

Token t of sequence n (counted over sources in the order given, training before validation) is `n * S + t + 1`, and 0 is the
end of text and the padding. So `(row[0] - 1) // S` is the number of a row's sequence, and a wrong row cannot go unnoticed.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from datapipe import columns
from datapipe.records.checksum import file_checksum
from datapipe.records.names import SNAPSHOT
from datapipe.shards.loss_mask import runs_of
from datapipe.shards.manifest import FileEntry, Phase, Snapshot, TokenizerEntry, read_snapshot
from datapipe.shards.schemas import UNLEARNED, token_type
from datapipe.shards.shard_table import CellRun, ShardEntry
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.shards.source_entry import CellAxis, Cells, SourceEntry
from datapipe.shards.writer import ShardFormat, ShardWriter, shard_schema
from datapipe.storage.root import Root

TOKENIZER = "xxh3_128:of-a-tokenizer"


def make_snapshot(
    folder: Path,
    sources: Mapping[str, int],
    *,
    validation: Mapping[str, int] | None = None,
    sequence_length: int = 16,
    weights: Mapping[str, int] | None = None,
    phases: Sequence[tuple[int | None, Mapping[str, int]]] = (),
    max_epochs: Mapping[str, float] | None = None,
    total_tokens: int | None = None,
    rows_per_shard: int = 7,
    shard_format: ShardFormat = "arrow",
    vocab_size: int = 1 << 20,
    seed: int = 17,
    exhausted: Any = "stop",
    window_shards: int = 0,
    masked: Sequence[str] = (),
    cells: Mapping[str, tuple[Cells, Sequence[tuple[int, bool, int]]]] = {},
) -> Path:
    """Writes a snapshot of `sources` (name -> training sequences) and returns its folder.

    Args:
        validation: name -> held-out sequences.
        weights: of the sources, 1 each by default; `phases` overrules them, as (until_tokens, weights) each.
        vocab_size: below 65,500 tokens are uint16 and wrap around.
        masked: sources of which no loss counts the tokens that `is_learned` excludes.
        cells: of sources that are cut into cells; and the (cell, again, rows) of their rows in turn.
    """
    root = Root(str(folder))
    shards: list[ShardEntry] = []
    number = 0
    for split, counts in (("train", sources), ("validation", validation or {})):
        for name, count in counts.items():
            batch = sequences(name, number, count, sequence_length, vocab_size, has_mask=name in masked)
            number += count
            entry = {"source": name, "split": split}
            written = _write_shards(root, f"shards/{name}/{split}-0000", shard_format, batch, rows_per_shard, entry)
            shards += with_cells(written, cells[name][1]) if name in cells and split == "train" else written
    own_weights = {name: (weights or {}).get(name, 0 if weights else 1) for name in sources}
    snapshot = Snapshot(
        name="made-by-hand",
        seed=seed,
        sequence_length=sequence_length,
        shard_format=shard_format,
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint=TOKENIZER, vocab_size=vocab_size, eos_id=0),
        sources={
            name: SourceEntry(
                weight=own_weights[name],
                max_epochs=(max_epochs or {}).get(name),
                cells=cells[name][0] if name in cells else None,
            )
            for name in sources
        },
        phases=tuple(Phase(until_tokens=until, weights=dict(shares)) for until, shares in phases or [(None, own_weights)]),
        total_tokens=total_tokens,
        exhausted=exhausted,
        window_shards=window_shards,
        files=_write_files(root, tuple(sources)),
        shards=tuple(shards),
    )
    write_manifest(root, snapshot.sealed())
    return folder


def make_cells(
    names: Sequence[str], weights: Sequence[int] = (), repeats: Sequence[str] = (), max_epochs: Sequence[float | None] = ()
) -> Cells:
    count, axes = len(names), names[0].count("/") + 1
    return Cells(
        axes=tuple(CellAxis(column=f"axis_{number}") for number in range(axes)),
        names=tuple(names),
        weights=tuple(weights or [1] * count),
        repeats=tuple(repeats or ["1"] * count),
        max_epochs=tuple(max_epochs or [None] * count),
    )


def with_cells(shards: Sequence[ShardEntry], runs: Sequence[tuple[int, bool, int]]) -> list[ShardEntry]:
    """Shards whose rows belong in turn to the cells of `runs`: (cell, again, rows) each."""
    found, left = list[ShardEntry](), deque(runs)
    for shard in shards:
        own, room = list[CellRun](), shard.sequences
        while room:
            cell, again, rows = left.popleft()
            taken = min(rows, room)
            own.append(CellRun(cell, again, taken, tokens=0, documents=0))
            room -= taken
            if rows > taken:
                left.appendleft((cell, again, rows - taken))
        found.append(shard.model_copy(update={"cells": tuple(own)}))
    return found


def write_manifest(root: Root, snapshot: Snapshot) -> None:
    """Makes a snapshot the newest of an output."""
    for path, content in snapshot.to_files().items():
        root.write_atomic(path, content)


def make_growing_snapshots(
    folder: Path,
    sources: Mapping[str, Sequence[int]],
    *,
    masked_parts: Sequence[int] = (),
    later_cells: Mapping[str, Sequence[tuple[Cells, Sequence[tuple[int, bool, int]]]]] = {},
    **options: Any,
) -> list[str]:
    """Writes snapshots of one output, each with one part more of its sources, and returns their fingerprints.

    Args:
        sources: name -> training sequences of each part. A source whose list is shorter does not grow any more.
        masked_parts: the parts with a mask; see `make_snapshot`.
        later_cells: `cells` of each part after the first.
        options: of `make_snapshot`, of the first parts.
    """
    masked = [*sources] if 0 in masked_parts else []
    make_snapshot(folder, {name: counts[0] for name, counts in sources.items()}, masked=masked, **options)
    root = Root(str(folder))
    first = read_snapshot(root)
    assert first.has_tokens
    assert first.shard_format != "jsonl.zst"
    length, vocab_size = first.sequence_length, first.tokenizer.vocab_size
    shards, number, made = list(first.shards), sum(shard.sequences for shard in first.shards), [first]
    for part in range(1, max(map(len, sources.values()))):
        for name, counts in sources.items():
            if part < len(counts):
                batch = sequences(name, number, counts[part], length, vocab_size, has_mask=part in masked_parts)
                number += counts[part]
                entry = {"source": name, "split": "train", "part": part}
                prefix = f"shards/{name}/addition-{part:05}/train-0000"
                more = _write_shards(root, prefix, first.shard_format, batch, options.get("rows_per_shard", 7), entry)
                shards += with_cells(more, later_cells[name][part - 1][1]) if name in later_cells else more
        of_part = {name: parts[part - 1][0] for name, parts in later_cells.items()}
        grown = {name: first.sources[name].model_copy(update={"cells": cells}) for name, cells in of_part.items()}
        content = {"sources": {**first.sources, **grown}, "shards": tuple(shards), "fingerprint": ""}
        made.append(first.model_copy(update=content).sealed())
    for snapshot in made:
        write_manifest(root, snapshot)
        root.write_atomic(f"{snapshot_folder(snapshot.fingerprint)}/{SNAPSHOT}", snapshot.to_json())
    return [snapshot.fingerprint for snapshot in made]


def _write_shards(
    root: Root, prefix: str, shard_format: ShardFormat, batch: pa.RecordBatch, rows_per_shard: int, entry: Mapping[str, Any]
) -> list[ShardEntry]:
    tokens = batch.schema.field("tokens").type
    target_bytes = rows_per_shard * tokens.list_size * tokens.value_type.bit_width // 8
    writer = ShardWriter(root, prefix, shard_format, batch.schema, target_bytes)
    writer.append(batch)
    return [ShardEntry.of(shard, **entry) for shard in writer.finish()]


def upload(folder: Path, url: str) -> str:
    """Copies a snapshot to `url`, and returns it."""
    target = Root(url)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        target.write_atomic(path.relative_to(folder).as_posix(), path.read_bytes())
    return url


def source_path(name: str) -> str:
    """The path of the one file that a source's documents come from."""
    return f"data/{name}.jsonl"


def source_hash(name: str) -> int:
    """The first half of the keys of a source's documents."""
    return xxhash.xxh3_64_intdigest(f"{name}:{source_path(name)}".encode())


def is_learned(tokens: np.ndarray) -> np.ndarray:
    """Whether a loss counts tokens of a masked source: not in runs of three, of seven tokens each, and never in some rows."""
    return (tokens % 7 > 2) & (tokens // 64 % 5 > 0)


def sequences(name: str, first: int, count: int, length: int, vocab_size: int, *, has_mask: bool = False) -> pa.RecordBatch:
    """Rows `first` to `first + count` of one to three pieces each; in every fifth row the last document continues."""
    lengths, positions, starts, offsets = [], [], [], [0]
    carried: tuple[int, int] | None = None  # position of the document that continues, and its tokens so far
    tokens = (np.arange(first * length, (first + count) * length) + 1).reshape(count, length) % vocab_size
    for row in range(count):
        split = row % 5 == 4 and row + 1 < count
        cuts = np.unique(1 + np.arange(1, 3) * (row + 3) % (length - 1))
        ends = [*cuts.tolist(), length if split else length - row % 3]
        ends = sorted({end for end in ends if end <= ends[-1]})
        for begin, end in zip([0, *ends], ends):
            continued = carried if begin == 0 else None
            positions.append(continued[0] if continued else (first + row) * length + begin)
            starts.append(continued[1] if continued else 0)
            lengths.append(end - begin)
        carried = (positions[-1], starts[-1] + lengths[-1]) if split else None
        offsets.append(len(lengths))
        tokens[row, ends[-1] :] = 0
    schema = shard_schema(token_type(vocab_size), length, TOKENIZER, name, has_mask=has_mask)
    flat = pa.array(tokens.reshape(-1).astype(schema.field("tokens").type.value_type.to_pandas_dtype()))
    keys = columns.make_keys(source_hash(name), np.array(positions, np.uint64))
    values = [pa.array(lengths, pa.int32()), keys, pa.array(starts, pa.int64())]
    lists = [
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), value, type=schema.field(field).type)
        for field, value in zip(("lengths", "keys", "starts"), values)
    ]
    if has_mask:
        ends, runs = runs_of((is_learned(tokens) | (tokens == 0)).reshape(-1), np.arange(count + 1) * length)
        lists.append(
            pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(runs, pa.int32()), type=schema.field(UNLEARNED).type)
        )
    return pa.record_batch([pa.FixedSizeListArray.from_arrays(flat, type=schema.field("tokens").type), *lists], schema=schema)


def _write_files(root: Root, names: tuple[str, ...]) -> FileEntry:
    paths = [source_path(name) for name in names]
    hashes = pa.array([source_hash(name) for name in names], pa.uint64())
    urls = [f"file:///{path}" for path in paths]
    table = pa.table({"hash": hashes, "source": list(names), "path": paths, "url": urls})
    with root.open_output("files.parquet") as stream:
        pq.write_table(table, stream)
    checksum, size = file_checksum(root, "files.parquet")
    return FileEntry(path="files.parquet", bytes=size, checksum=checksum)
