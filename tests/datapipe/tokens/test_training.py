"""Training: the bytes of the trainer of `tokenizers`, whatever the order, and a tokenizer that can encode anything."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from datapipe.errors import UserError
from datapipe.tokens import Encoder
from datapipe.tokens.patterns import PATTERNS, splitter
from datapipe.tokens.training import train_tokenizer

TEXTS = [
    f"the {word}ing of {word}s and {number * 37} more {word}, isn't it? naïve 漢字\n"
    for number in range(40)
    for word in ("pack", "shard")
]


def column(*texts: str) -> pa.Array:
    return pa.array(texts, pa.large_string())


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("eos", ["<|endoftext|>", "</s>"])
def test_train_equals_the_trainer_of_tokenizers(pattern, eos):
    texts = [*TEXTS, "It's don't WE'LL  x\r\n\n\t 12345 ½ ǅ ʰ \u0301 漢字漢字漢字 aaaaaaa ababab", "the the the the" * 9]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, min_frequency=2, special_tokens=[eos], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    expected = Encoder(tokenizer.to_str().encode(), eos=eos).to_json()
    before = dict(os.environ)
    assert train_tokenizer([column(*texts)], 900, eos=eos, pattern=pattern) == expected
    assert dict(os.environ) == before
    assert Encoder(expected).vocab_size > 300


@pytest.mark.slow
def test_train_any_hash_seed_gives_the_same_bytes():
    program = (
        "import sys, hashlib, pyarrow as pa; from datapipe.tokens.training import train_tokenizer; "
        "texts = sys.stdin.read().split(chr(0)); "
        "print(hashlib.sha256(train_tokenizer([pa.array(texts, pa.large_string())], 340)).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "2"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input="\0".join(TEXTS).encode(), capture_output=True, check=True, env=environment)
    assert done.stdout.decode().strip() == hashlib.sha256(train_tokenizer([column(*TEXTS)], 340)).hexdigest()


@pytest.mark.medium
def test_train_order_batches_and_lengths_of_texts_do_not_show():
    straight = train_tokenizer([column(*TEXTS)], 340)
    assert train_tokenizer((column(text) for text in reversed(TEXTS)), 340) == straight
    text = "".join(TEXTS) * 200  # above the size at which texts are cut
    assert len(text.encode()) > 1 << 20
    assert train_tokenizer([column(text)], 400) == train_tokenizer([column(*(["".join(TEXTS)] * 200))], 400)


def test_train_result_is_canonical_and_encodes_anything():
    content = train_tokenizer([column(*TEXTS)], 340)
    encoder, vocabulary = Encoder(content), json.loads(content)["model"]["vocab"]
    assert encoder.to_json() == content
    assert (encoder.vocab_size, encoder.eos_id) == (340, 0)
    assert sorted(vocabulary.values()) == list(range(340))
    assert {len(token) for token, number in vocabulary.items() if 1 <= number <= 256} == {1}
    ids, _ = encoder.encode(column("Ωmega \x00 𝄞 packing"))
    assert Tokenizer.from_buffer(content).decode(ids.tolist()) == "Ωmega \x00 𝄞 packing"


def test_train_too_little_text_gives_fewer_tokens():
    assert Encoder(train_tokenizer([column("ab ab ab")], 32_000)).vocab_size < 270
    assert Encoder(train_tokenizer([], 300)).vocab_size == 257


@pytest.mark.parametrize("options", [{"vocab_size": 256}, {"pattern": "gpt3"}, {"eos": "end"}])
def test_train_impossible_options_are_refused(options):
    with pytest.raises(UserError):
        train_tokenizer([column("a")], **{"vocab_size": 300, **options})
