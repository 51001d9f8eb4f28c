"""The documents of a snapshot with tokens as text: `datapipe export --text`.

    tasks of the snapshot ─▶ the last ones that passed documents on ─▶ held out or not ─▶ `snapshots/export/write.py`

The texts are those that were tokenized, byte for byte: they are read from work/, not decoded from
tokens. They come in the order of the input.

A keyed hash of its key decides whether a document is held out, and the share is not stored with a
snapshot. So a document is held out if its hash is at most the highest of those in the validation
shards of its source: all documents of these shards are, and none of the training shards is. Of a
grown output, whose later generations hold nothing out, and of repositories, which are held out by
their ids, it is those whose keys are in the validation shards.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_TYPE, compute, key_halves, key_matrix, numbers
from datapipe.errors import UserError
from datapipe.exchange.tables import read_table
from datapipe.records.ledger import Ledger
from datapipe.records.outputs import Record, TableFile
from datapipe.rng import keyed_hash, seed_for
from datapipe.shards.documents.writer import published_rows, published_schema
from datapipe.shards.manifest import Snapshot
from datapipe.shards.removed import read_removed
from datapipe.snapshots.committed_steps import tasks_of
from datapipe.snapshots.export.export import SPLITS, Split, shard_batches, wanted_sources
from datapipe.snapshots.export.parts import Part
from datapipe.stage.repositories import FILES
from datapipe.storage.root import Root

HeldOut = Callable[[pa.Array], np.ndarray]


def parts_of_text(root: Root, snapshot: Snapshot, source: str | None, split: Split | None) -> list[Part]:
    """The documents of a snapshot as they were tokenized.

    Raises: UserError: there is no such source, work/ has lost the texts, or other outputs have some
        of them.
    """
    names, parts = wanted_sources(snapshot.sources, source), list[Part]()
    cleaned = _cleaned(root, snapshot)
    _check_whole(root, snapshot, names, cleaned)
    for name in names:
        files = [file for record in cleaned.get(name, []) for file in record.of("documents", TableFile)]
        if not files:
            continue
        schema = published_schema(next(read_table(root, files[0])).schema)
        held_out = _held_out(root, snapshot, name, is_of_files=FILES in schema.names)
        for each in SPLITS if held_out is not None else SPLITS[:1]:
            if split not in (None, each):
                continue
            batches = partial(_batches, root, snapshot, name, each, files, schema, held_out)
            parts.append(Part(source=name, split=each, schema=schema, batches=batches))
    return parts


def _check_whole(root: Root, snapshot: Snapshot, names: list[str], cleaned: Mapping[str, list[Record]]) -> None:
    taken = [name for name in names if name not in cleaned and any(shard.source == name for shard in snapshot.shards)]
    if taken:
        own = sorted(set(snapshot.sources) - set(taken))
        instead = f", or give --source {own[0]}" if own else ""
        raise UserError(
            f"--text: {', '.join(taken[:5])}: the rows are those of another output, which has their texts. Export that "
            f"output{instead}."
        )


def _batches(
    root: Root,
    snapshot: Snapshot,
    source: str,
    split: Split,
    files: list[TableFile],
    schema: pa.Schema,
    held_out: HeldOut | None,
) -> Iterator[pa.RecordBatch]:
    removed = read_removed(root, snapshot)
    for file in files:
        for table in read_table(root, file):
            record = table.filter(pa.array(~removed.holds(key_matrix(table.column("key")))))
            rows = published_rows(record, source, schema)
            if held_out is not None:
                rows = rows.filter(pa.array(held_out(record.column("key")) == (split == "validation")))
            yield rows


def _held_out(root: Root, snapshot: Snapshot, source: str, *, is_of_files: bool) -> HeldOut | None:
    """Which documents of a source are held out, by their keys; None where none is. Memory: the keys that are held out,
    of a grown output and of repositories."""
    held = (rows.column("keys").values for rows in shard_batches(root, snapshot, snapshot.shards_of(source, "validation")))
    if is_of_files or snapshot.last_part:
        known = pa.chunked_array([*held], KEY_TYPE).cast(pa.binary()).unique()
        return (lambda keys: numbers(compute.is_in(keys.cast(pa.binary()), known))) if len(known) else None
    hashes = (_validation_hashes(snapshot, keys) for keys in held)
    highest = max((int(column.max()) for column in hashes if len(column)), default=None)
    return None if highest is None else lambda keys: _validation_hashes(snapshot, keys) <= np.uint64(highest)


def _validation_hashes(snapshot: Snapshot, keys: pa.Array) -> np.ndarray:
    """The hashes that `steps/train.is_validation` compares with the share: (num_docs,) uint64."""
    return keyed_hash(key_halves(keys), seed_for(snapshot.seed, "validation"))


def _cleaned(root: Root, snapshot: Snapshot) -> dict[str, list[Record]]:
    """By source, the records of the last step that passed its documents on. Raises UserError where one is gone."""
    lost = (
        f"{root.url}: work/ has lost the texts of snapshot {snapshot.fingerprint[:12]}. Run its mixture again, "
        f"with `--set tokenizer=none` to write the documents at once."
    )
    try:
        names = tasks_of(root, snapshot.fingerprint)
    except FileNotFoundError as error:
        raise UserError(lost) from error
    ledger = Ledger(root)
    ledger.load()
    last: dict[str, list[Record]] = {}
    for name in names:
        record = ledger.look_up(name)
        if record is None:
            raise UserError(lost)
        source = record.step.partition("/")[0]
        if "documents" in record.outputs:
            known = last.setdefault(source, [])
            if known and known[0].step != record.step:
                known.clear()
            known.append(record)
    if any(ledger.is_freed(file.path) for records in last.values() for record in records for file in record.of("documents")):
        raise UserError(lost)
    return last
