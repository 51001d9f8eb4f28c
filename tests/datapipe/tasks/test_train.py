"""What a worker that trains the tokenizer tells: which sample it adds up, then how many words it joins pairs of."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from datapipe.exchange.partitions import TableWriter
from datapipe.plan.outputs import TableFile
from datapipe.plan.work import TrainTask
from datapipe.storage import Root
from datapipe.tasks import train
from datapipe.tokens.word_counts import COUNTED


def _sample(root: Root, name: str, *words: bytes) -> TableFile:
    """A sample in which each word occurs three times."""
    writer = TableWriter(root, name)
    writer.add(pa.record_batch([pa.array(words, pa.large_binary()), pa.array([3] * len(words), pa.int64())], schema=COUNTED))
    (output,) = writer.finish()
    return output


def test_training_tells_the_sample_it_adds_and_the_next_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(train, "at_place", told.append)
    root = Root(str(tmp_path))
    samples = _sample(root, "a.arrow", b"the", b" cat"), _sample(root, "b.arrow", b" cat", b" sat")
    task = TrainTask(step="tokenizer/train", seed=0, samples=samples, vocab_size=300, pattern="gpt2", eos="<|endoftext|>")
    train.run_train(task, root, "trained")
    assert told == [
        "adding up the words of sample 1 of 2",
        "adding up the words of sample 2 of 2",
        "joining pairs of 3 words into 300 tokens",
    ]
