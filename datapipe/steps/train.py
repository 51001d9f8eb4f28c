"""The tokenizer of a run: trained on the words of samples of all sources, or the user's own, in its canonical form.

The documents that train it, and those held out for validation, are chosen by thresholds on keyed hashes of their keys. Neither
choice depends on how the input was split.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import key_halves
from datapipe.exchange.partitions import TableWriter, read_documents, read_table
from datapipe.machine.activity import at_place
from datapipe.metrics import TaskMetrics
from datapipe.quantities import counted
from datapipe.records.names import TOKENIZER
from datapipe.records.outputs import Outputs, TokenizerFile
from datapipe.rng import below_fraction, keyed_hash, seed_for
from datapipe.steps.work import SampleTask, TrainTask
from datapipe.storage.root import Root
from datapipe.tokens.encoder import Encoder
from datapipe.tokens.training import check_training, train_on_words
from datapipe.tokens.word_counts import WordCounts, counted_words

_ROWS = 1 << 16
"""Of a batch of counted words."""


def is_validation(keys: pa.Array, seed: int, fraction: float) -> NDArray[np.bool_]:
    """Which documents are held out: (num_docs,) bool."""
    return below_fraction(keyed_hash(key_halves(keys), seed_for(seed, "validation")), fraction)


def run_sample(task: SampleTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Counts the words of a keyed sample of the training documents; `steps/weighting.py` computes its fraction."""
    metrics, words = TaskMetrics(), WordCounts()
    seed = seed_for(task.seed, "tokenizer", "sample")
    for batch in read_documents(root, task.documents, metrics):
        with metrics.timed("sample") as work:
            chosen = below_fraction(keyed_hash(key_halves(batch.keys), seed), task.fraction)
            chosen &= ~is_validation(batch.keys, task.seed, task.validation)
            sampled = batch.filter(chosen)
            for counted in counted_words(sampled.texts, task.pattern):
                words.add(counted)
            work.bytes, work.documents = sampled.text_bytes, sampled.num_docs
    with metrics.timed("sample"):
        writer = TableWriter(root, f"{folder}/sample.arrow")
        for batch in words.total().to_batches(max_chunksize=_ROWS):
            writer.add(batch)
        return {"sample": writer.finish()}, metrics


def run_train(task: TrainTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Trains a tokenizer, or writes the user's in its canonical form."""
    metrics, path = TaskMetrics(), f"{folder}/{TOKENIZER}"
    with metrics.timed("train tokenizer", sum(sample.row_bytes for sample in task.samples)):
        encoder = Encoder(task.content or _train(task, root), eos=task.eos, bos=task.bos)
        choice = encoder.proof.choice
        with root.open_output(path) as stream:
            stream.write(encoder.to_json())
    output = TokenizerFile(
        path=path,
        rows=encoder.vocab_size,
        bytes=stream.num_bytes,
        checksum=stream.checksum,
        vocab_size=encoder.vocab_size,
        eos_id=encoder.eos_id,
        eos_token=encoder.eos_token,
        fingerprint=encoder.fingerprint,
        library=choice.library,
        library_version=choice.version,
        battery=choice.battery,
        fallback_reason=choice.reason,
        bos_id=encoder.bos_id,
        bos_token=encoder.bos_token,
    )
    return {"tokenizer": (output,)}, metrics


def _train(task: TrainTask, root: Root) -> bytes:
    assert task.eos is not None
    check_training(task.vocab_size, task.eos, task.pattern)
    words = WordCounts()
    for number, output in enumerate(task.samples):
        at_place(f"adding up the words of sample {number + 1:,} of {len(task.samples):,}")
        for batch in read_table(root, output):
            words.add(batch)
    total = words.total()
    at_place(f"joining pairs of {counted(len(total), 'word')} into {task.vocab_size:,} tokens")
    return train_on_words(total, task.vocab_size, task.eos, task.pattern)
