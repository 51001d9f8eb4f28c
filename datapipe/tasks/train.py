"""The tokenizer of a run: trained on the samples of all sources, or the user's own, in its canonical form."""

from __future__ import annotations

from datapipe.exchange.partitions import read_table
from datapipe.ledger.names import TOKENIZER
from datapipe.metrics import TaskMetrics
from datapipe.plan.outputs import Outputs, TokenizerFile
from datapipe.plan.work import TrainTask
from datapipe.shards.checksum import file_checksum
from datapipe.storage import Root
from datapipe.tokens.encoder import Encoder
from datapipe.tokens.training import train_tokenizer


def run_train(task: TrainTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Trains a tokenizer, or writes the user's in its canonical form."""
    metrics, path = TaskMetrics(), f"{folder}/{TOKENIZER}"
    with metrics.timed("train tokenizer", sum(sample.row_bytes for sample in task.samples)):
        encoder = Encoder(task.content or _train(task, root), eos=task.eos)
        with root.open_output(path) as stream:
            stream.write(encoder.to_json())
        checksum, size = file_checksum(root, path)
    output = TokenizerFile(
        path=path,
        rows=encoder.vocab_size,
        bytes=size,
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
    return train_tokenizer(texts, vocab_size=task.vocab_size, eos=task.eos, pattern=task.pattern)
