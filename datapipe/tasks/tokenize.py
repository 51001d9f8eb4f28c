"""From cleaned text to token rows: sample, train, tokenize.

    documents ─▶ sample ─▶ train ─▶ tokenizer.json
    documents ─▶ encode, end-of-text appended ─▶ rows (hash, key, tokens), training and validation in files of their own,
                                              │   and training documents of each stratum, where the source has any
                                              └▶ tokens and words by language, and which ids were used at all

The hash of a row is a keyed hash of the document's key: its place in the global shuffle of its source. Which documents are
sampled or held out are thresholds on keyed hashes too, so neither depends on how the input was cut.
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
from datapipe.exchange.partitions import TableWriter, committed_bytes, read_documents, read_table
from datapipe.metrics import TaskMetrics
from datapipe.plan.work import OutputRef, SampleTask, TokenizeTask, TrainTask, train_rows
from datapipe.rng import below_fraction, keyed_hash, seed_for, shuffle_hash
from datapipe.shards import schemas
from datapipe.shards.checksum import file_checksum
from datapipe.stage.documents import DocumentBatch
from datapipe.storage import Root
from datapipe.tasks.strata import strata_of
from datapipe.tokens.encoder import Encoder
from datapipe.tokens.fertility import Meter
from datapipe.tokens.training import train_tokenizer

Outputs = dict[str, tuple[OutputRef, ...]]

_SAMPLE = pa.schema([pa.field("text", pa.large_string(), nullable=False)])


def is_validation(keys: pa.Array, seed: int, fraction: float) -> NDArray[np.bool_]:
    """Which documents are held out: (num_docs,) bool."""
    return below_fraction(keyed_hash(key_halves(keys), seed_for(seed, "validation")), fraction)


def run_sample(task: SampleTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Writes the text of a keyed sample of the training documents; `plan/sampling.py` says how much of it."""
    metrics = TaskMetrics()
    writer = TableWriter(root, f"{folder}/sample.arrow", _SAMPLE)
    seed = seed_for(task.seed, "tokenizer", "sample")
    for batch in read_documents(root, task.documents, metrics):
        started = perf_counter()
        chosen = below_fraction(keyed_hash(key_halves(batch.keys), seed), task.fraction)
        chosen &= ~is_validation(batch.keys, task.seed, task.validation)
        sampled = batch.filter(chosen)
        writer.add(pa.record_batch([sampled.texts], schema=_SAMPLE))
        metrics.spent("sample", perf_counter() - started, sampled.text_bytes, sampled.num_docs)
    written = writer.finish()
    return {"sample": (written,)}, metrics


def run_train(task: TrainTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Trains a tokenizer, or writes the user's in its canonical form."""
    metrics, started = TaskMetrics(), perf_counter()
    if task.content:
        encoder = Encoder(task.content, eos=task.eos)
    else:
        encoder = Encoder(_train(task, root), eos=task.eos)
    path = f"{folder}/tokenizer.json"
    with root.open_output(path) as stream:
        stream.write(encoder.to_json())
    checksum, size = file_checksum(root, path)
    facts: dict[str, int | str] = {
        "vocab_size": encoder.vocab_size,
        "eos_id": encoder.eos_id,
        "eos_token": encoder.eos_token,
        "fingerprint": encoder.fingerprint,
        "unusual": encoder.unusual,
    }
    output = OutputRef(path=path, rows=encoder.vocab_size, bytes=size, weight=size, checksum=checksum, facts=facts)
    metrics.spent("train tokenizer", perf_counter() - started, sum(sample.weight for sample in task.samples))
    return {"tokenizer": (output,)}, metrics


def _train(task: TrainTask, root: Root) -> bytes:
    texts = (batch.column("text") for output in task.samples for batch in read_table(root, output))
    assert task.eos is not None
    return train_tokenizer(texts, vocab_size=task.vocab_size, eos=task.eos, pattern=task.pattern)


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
        metrics.books.read += batch.num_docs
        metrics.books.read_bytes += batch.text_bytes
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
    metrics.books.kept, metrics.books.kept_bytes = metrics.books.read, metrics.books.read_bytes
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
