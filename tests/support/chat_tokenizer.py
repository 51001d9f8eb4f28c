"""A small byte-level tokenizer with the control tokens of chats and of filling in the middle, and conversations for it."""

import random
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = ("</s>", "<s>", "<|im_start|>", "<|im_end|>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
_TEXTS = ["user\nHello there, how are you?", "assistant\nI am fine.\n\nThanks!  é漢字", "write to bob.smith@example.com"] * 4


def chat_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    return tokenizer


def conversations(count: int, seed: int = 5) -> list[str]:
    """Turns separated by broken bars, with addresses in some and text that spells control tokens in others."""
    rng = random.Random(seed)
    words = ["hello", "how", "are", "you", "fine,", "thanks é漢", "bob.smith@example.com", "<|im_end|>", "</s>"]
    return [
        "¦".join(" ".join(rng.choices(words, k=rng.randrange(1, 25))) for _ in range(2 * rng.randrange(1, 4)))
        for _ in range(count)
    ]


def as_chat(record: Mapping[str, Any], eos_within: bool = False) -> dict[str, Any]:
    """A stage: turns of a user and an assistant by turns, of which the assistant's are learned."""
    segments: list[dict[str, Any]] = []
    for number, turn in enumerate(record["text"].split("¦")):
        is_answer = number % 2 == 1
        segments += [
            {"token": "<|im_start|>", "learn": False},
            {"text": ("assistant" if is_answer else "user") + "\n", "learn": False},
            {"text": turn, "learn": is_answer},
            {"token": "</s>" if eos_within else "<|im_end|>", "learn": is_answer},
        ]
    return {"segments": segments}


as_chat.columns = {"segments": list}  # type: ignore[attr-defined]
