"""The tokenizer of a run: trained on the samples of all sources, or the user's own in its canonical form."""

from __future__ import annotations

from time import perf_counter

from datapipe.exchange.partitions import read_table
from datapipe.metrics import TaskMetrics
from datapipe.plan.work import OutputRef, TrainTask
from datapipe.shards.checksum import file_checksum
from datapipe.storage import Root
from datapipe.tokens.encoder import Encoder
from datapipe.tokens.training import train_tokenizer


def run_train(task: TrainTask, root: Root, folder: str) -> tuple[dict[str, tuple[OutputRef, ...]], TaskMetrics]:
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
