"""What readers return as batches of documents: limited, with keys, joined up to the size of a batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.columns import make_keys
from datapipe.document_name import document_name
from datapipe.plan.splits import file_hash
from datapipe.stage.documents import BASE_FIELDS, PAGE_FIELDS, TARGET_BATCH_BYTES
from datapipe.stage.reader import ReadBatch, Split

MAX_BATCH_DOCS = 8192


def limited(part: ReadBatch, left: int) -> tuple[ReadBatch, int]:
    """The first `left` records of a batch, and how many are left. Rejected records count too: a limited run with a
    wrong field name would otherwise read everything."""
    rejected = np.array([record.position for record in part.rejected], np.uint64)
    positions = np.sort(np.concatenate([part.positions, rejected]))
    if len(positions) <= left:
        return part, left - len(positions)
    num_docs = int(np.searchsorted(part.positions, positions[left]))
    return part.first(num_docs, tuple(record for record in part.rejected if record.position < int(positions[left]))), 0


def with_keys(part: ReadBatch, split: Split, source: str) -> pa.RecordBatch:
    """A reader's batch as documents; where the input has no id, it is the name of the document."""
    keys = make_keys(file_hash(source, split.file.path), part.positions)
    ids = part.ids
    if ids.null_count:
        positions = pa.array(part.positions).cast(pa.large_string())
        file = pa.scalar(document_name(source, split.file.path, 0).removesuffix("0"), pa.large_string())
        ids = pc.coalesce(ids, pc.binary_join_element_wise(file, positions, pa.scalar("", pa.large_string())))
    extra = [pa.field(name, column.type) for name, column in part.extra.items()]
    own = BASE_FIELDS if part.html is None else PAGE_FIELDS
    return pa.record_batch([keys, ids, part.content, *part.extra.values()], schema=pa.schema([*own, *extra]))


def coalesced(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins small batches up to `TARGET_BATCH_BYTES`: files of one document each make batches of one."""
    held: list[pa.RecordBatch] = []
    held_bytes = held_docs = 0
    for record in records:
        size = record.nbytes
        full = held_bytes + size > TARGET_BATCH_BYTES or held_docs + record.num_rows > MAX_BATCH_DOCS
        if held and (full or record.schema != held[0].schema):
            yield pa.concat_batches(held) if len(held) > 1 else held[0]
            held, held_bytes, held_docs = [], 0, 0
        held.append(record)
        held_bytes += size
        held_docs += record.num_rows
    if held:
        yield pa.concat_batches(held) if len(held) > 1 else held[0]
