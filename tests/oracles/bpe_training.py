"""Training by the trainer of Hugging Face `tokenizers`, on words that are given in byte-level spelling."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def joins(words: Sequence[str], counts: Sequence[int], num_tokens: int, min_count: int) -> list[tuple[int, int, int]]:
    """The left, the right and the joined token of each merge.

    Args:
        words: distinct; each is given to the trainer as often as it occurs.
        num_tokens: most ids, of which a special token has the first and the bytes the next.
    """
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=min_count,
        special_tokens=["<|special|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((word for word, count in zip(words, counts) for _ in range(count)), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return [tuple(model["vocab"][token] for token in (left, right, left + right)) for left, right in model["merges"]]
