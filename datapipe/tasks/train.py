"""The tokenizer of a run: trained on the samples of all sources, or the user's own, in its canonical form.

The documents that train it, and those held out for validation, are chosen by thresholds on keyed hashes of their keys. Neither
choice depends on how the input was split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.activity import at_place
from datapipe.columns import key_halves, text_lengths
from datapipe.exchange.partitions import TableWriter, read_documents, read_table
from datapipe.ledger.names import TOKENIZER
from datapipe.metrics import TaskMetrics, size
from datapipe.plan.outputs import Outputs, TokenizerFile
from datapipe.plan.work import SampleTask, TrainTask
from datapipe.rng import below_fraction, keyed_hash, seed_for
from datapipe.shards.checksum import file_checksum
from datapipe.storage import Root
from datapipe.tokens.encoder import Encoder
from datapipe.tokens.training import train_tokenizer

_SAMPLE = pa.schema([pa.field("text", pa.large_string(), nullable=False)])


def is_validation(keys: pa.Array, seed: int, fraction: float) -> NDArray[np.bool_]:
    """Which documents are held out: (num_docs,) bool."""
    return below_fraction(keyed_hash(key_halves(keys), seed_for(seed, "validation")), fraction)


def run_sample(task: SampleTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Writes the text of a keyed sample of the training documents; `plan/weighting.py` computes its fraction."""
    metrics = TaskMetrics()
    writer = TableWriter(root, f"{folder}/sample.arrow")
    seed = seed_for(task.seed, "tokenizer", "sample")
    for batch in read_documents(root, task.documents, metrics):
        with metrics.timed("sample") as work:
            chosen = below_fraction(keyed_hash(key_halves(batch.keys), seed), task.fraction)
            chosen &= ~is_validation(batch.keys, task.seed, task.validation)
            sampled = batch.filter(chosen)
            writer.add(pa.record_batch([sampled.texts], schema=_SAMPLE))
            work.bytes, work.documents = sampled.text_bytes, sampled.num_docs
    return {"sample": writer.finish()}, metrics


def run_train(task: TrainTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Trains a tokenizer, or writes the user's in its canonical form."""
    metrics, path = TaskMetrics(), f"{folder}/{TOKENIZER}"
    with metrics.timed("train tokenizer", sum(sample.row_bytes for sample in task.samples)):
        encoder = Encoder(task.content or _train(task, root), eos=task.eos)
        with root.open_output(path) as stream:
            stream.write(encoder.to_json())
        checksum, num_bytes = file_checksum(root, path)
    output = TokenizerFile(
        path=path,
        rows=encoder.vocab_size,
        bytes=num_bytes,
        checksum=checksum,
        vocab_size=encoder.vocab_size,
        eos_id=encoder.eos_id,
        eos_token=encoder.eos_token,
        fingerprint=encoder.fingerprint,
        fallback_reason=encoder.fallback_reason,
    )
    return {"tokenizer": (output,)}, metrics


def _train(task: TrainTask, root: Root) -> bytes:
    texts = (batch.column("text") for output in task.samples for batch in read_table(root, output))
    assert task.eos is not None
    num_bytes = sum(sample.row_bytes for sample in task.samples)
    told = _told(texts, num_bytes, f"joining pairs of words into {task.vocab_size:,} tokens")
    return train_tokenizer(told, vocab_size=task.vocab_size, eos=task.eos, pattern=task.pattern)


def _told(texts: Iterable[pa.Array], num_bytes: int, next_phase: str) -> Iterator[pa.Array]:
    """The texts; tells how much of them the trainer has counted, and about how long the rest takes, then the next phase.

    The trainer itself reports nothing: it takes the texts one after the other, then joins pairs without a sign of life.
    """
    started, done = perf_counter(), 0
    for part in texts:
        yield part
        done += int(text_lengths(part).sum())
        left_s = (perf_counter() - started) * max(0, num_bytes - done) / max(1, done)
        at_place(f"counting words, {size(done)} of {size(max(done, num_bytes))}, about {left_s:,.0f} s left")
    at_place(f"{next_phase}, after {perf_counter() - started:,.0f} s of counting words")
