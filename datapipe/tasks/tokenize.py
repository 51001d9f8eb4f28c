"""From cleaned text to token rows.

    documents ─▶ encode, end-of-text appended ─▶ rows (hash, key, tokens), training and validation in files of their own,
                                              │   and training documents of each stratum, where the source has any
                                              └▶ tokens and words by language, and which ids were used at all

The hash of a row is a keyed hash of the document's key: its place in the global shuffle of its source. Which documents are
held out is a threshold on a keyed hash too, so it does not depend on how the input was cut.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import compute as pc
from datapipe.columns import key_halves
from datapipe.exchange.files import ExchangeWriter
from datapipe.exchange.partitions import committed_bytes, read_documents
from datapipe.metrics import TaskMetrics
from datapipe.plan.work import OutputRef, TokenizeTask, train_rows
from datapipe.rng import shuffle_hash
from datapipe.shards import schemas
from datapipe.shards.checksum import file_checksum
from datapipe.stage.documents import DocumentBatch
from datapipe.storage import Root
from datapipe.tasks.sample import is_validation
from datapipe.tasks.strata import strata_of
from datapipe.tokens.encoder import Encoder
from datapipe.tokens.fertility import Meter

Outputs = dict[str, tuple[OutputRef, ...]]


def run_tokenize(task: TokenizeTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Encodes documents into an exchange file for each part. Memory: one batch, and one run of rows for each file."""
    metrics = TaskMetrics()
    encoder = Encoder(committed_bytes(root, task.tokenizer), eos=task.eos)
    id_type = schemas.token_type(encoder.vocab_size)
    schema = schemas.tokens(id_type)
    train = [train_rows(one) for one in ([None] if task.strata is None else range(len(task.strata[1]) + 1))]
    writers = {part: ExchangeWriter(root, f"{folder}/{part}.exchange", schema) for part in (*train, "validation")}
    counts = dict.fromkeys(writers, 0)
    meter = Meter(encoder.vocab_size)
    for batch in read_documents(root, task.documents, metrics):
        metrics.document_counts.read += batch.num_docs
        metrics.document_counts.read_bytes += batch.text_bytes
        started = perf_counter()
        ids, offsets = encoder.encode(batch.texts)
        rows = _token_rows(batch, ids, offsets, encoder.eos_id, task.seed)
        metrics.spent("tokenize", perf_counter() - started, batch.text_bytes, batch.num_docs)
        started = perf_counter()
        meter.add(batch, ids, offsets)
        metrics.spent("count tokens", perf_counter() - started, batch.text_bytes, batch.num_docs)
        started = perf_counter()
        held_out = is_validation(batch.keys, task.seed, task.validation)
        # place: (num_docs,) which of the writers a document goes to; the last one's are held out
        place = np.where(held_out, len(train), 0 if task.strata is None else strata_of(batch, task.source, *task.strata))
        for number, name in enumerate(writers):
            mask = place == number
            part = rows if mask.all() else rows.filter(pa.array(mask))
            counts[name] += _num_tokens(part)
            writers[name].add(part)
        metrics.spent("write tokens", perf_counter() - started, batch.text_bytes, batch.num_docs)
    metrics.document_counts.kept, metrics.document_counts.kept_bytes = (
        metrics.document_counts.read,
        metrics.document_counts.read_bytes,
    )
    metrics.tokens, metrics.fertility = sum(counts.values()), meter.fertility
    width, started = id_type.bit_width // 8, perf_counter()
    outputs = {name: (writer.finish(weight=counts[name] * width),) for name, writer in writers.items()}
    outputs["used_ids"] = (_write_used_ids(root, f"{folder}/used-ids.bin", meter),)
    metrics.spent("write tokens", perf_counter() - started)
    return outputs, metrics


def _write_used_ids(root: Root, path: str, meter: Meter) -> OutputRef:
    with root.open_output(path) as stream:
        stream.write(meter.used_ids)
    checksum, size = file_checksum(root, path)
    return OutputRef(path=path, rows=int(meter.used.sum()), bytes=size, weight=size, checksum=checksum)


def _token_rows(batch: DocumentBatch, ids: NDArray[Any], offsets: NDArray[np.int64], eos_id: int, seed: int) -> pa.RecordBatch:
    """Rows of `schemas.tokens`: every document's ids with the end-of-text id behind them."""
    # offsets: (num_docs + 1,); each document moves right by one place per document before it
    shifted = offsets + np.arange(len(offsets), dtype=np.int64)
    flat, id_type = np.empty(int(shifted[-1]), ids.dtype), pa.from_numpy_dtype(ids.dtype)
    ends = shifted[1:] - 1
    is_end = np.zeros(len(flat), np.bool_)
    is_end[ends] = True
    flat[ends] = eos_id
    flat[~is_end] = ids
    hashes = shuffle_hash(key_halves(batch.keys), seed)
    tokens = pa.LargeListArray.from_arrays(pa.array(shifted), pa.array(flat, id_type))
    return pa.record_batch(
        [pa.array(hashes), batch.keys, tokens.cast(schemas.tokens(id_type).field("tokens").type)],
        schema=schemas.tokens(id_type),
    )


def _num_tokens(rows: pa.RecordBatch) -> int:
    return int(pc.sum(pc.list_value_length(rows.column("tokens"))).as_py() or 0)
