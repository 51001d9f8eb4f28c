"""Chooses the documents that train the tokenizer and those held out for validation: thresholds on keyed hashes of their keys.

Neither choice depends on how the input was split.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import key_halves
from datapipe.exchange.partitions import TableWriter, read_documents
from datapipe.metrics import TaskMetrics
from datapipe.plan.outputs import Outputs
from datapipe.plan.work import SampleTask
from datapipe.rng import below_fraction, keyed_hash, seed_for
from datapipe.storage import Root

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
