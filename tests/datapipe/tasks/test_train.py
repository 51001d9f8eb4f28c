"""What a worker that trains the tokenizer tells: the words counted so far, then the next phase."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from datapipe.exchange.partitions import TableWriter
from datapipe.plan.outputs import TableFile
from datapipe.plan.work import TrainTask
from datapipe.storage import Root
from datapipe.tasks import train
from tests.support import corpora


def _sample(root: Root, num_batches: int) -> TableFile:
    """A sample of a few documents a batch, of one size each."""
    writer, rng = TableWriter(root, "sample.arrow"), random.Random(5)
    for _ in range(num_batches):
        texts = pa.array([corpora.prose(rng, 100)[:400].ljust(400, "x") for _ in range(10)], pa.large_string())
        writer.add(pa.record_batch([texts], schema=pa.schema([pa.field("text", pa.large_string(), nullable=False)])))
    (output,) = writer.finish()
    return output


def test_training_tells_how_much_is_counted_and_the_next_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(train, "at_place", told.append)
    root = Root(str(tmp_path))
    task = TrainTask(
        step="tokenizer/train", seed=0, samples=(_sample(root, 4),), vocab_size=300, pattern="gpt2", eos="<|endoftext|>"
    )
    train.run_train(task, root, "trained")
    *counted, last = told
    assert [line.split(",")[1].split()[0] for line in counted] == ["4.0", "8.0", "12.0", "16.0"]
    assert all(line.startswith("counting words") and line.endswith(" s left") for line in counted)
    assert last.startswith("joining pairs of words into 300 tokens, after ")
