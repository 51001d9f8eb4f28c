"""Small tokenizer.json files as published tokenizers have them."""

import json
from collections.abc import Iterable

import pyarrow as pa
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from datapipe.tokens.training import check_training, train_on_words
from datapipe.tokens.word_counts import WordCounts, counted_words

SPECIAL = ["<unk>", "<s>", "</s>"]
_TEXTS = ["the lazy dog and the quick fox", "one two three four five"] * 20


def unigram(*, added: str | None = None) -> bytes:
    """As T5 and llm-jp: control tokens are pieces, and there are no tokens for bytes.

    Args:
        added: what the post-processor makes of a text, such as "<s> $A".
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, show_progress=False, special_tokens=SPECIAL, unk_token="<unk>")
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return _with(tokenizer, added)


def byte_level(*, added: str | None = None, without: str = "") -> bytes:
    """As Llama 3: special tokens beside a byte-level BPE.

    Args:
        without: letters of the byte alphabet that the vocabulary lacks.
    """
    alphabet = sorted({*pre_tokenizers.ByteLevel.alphabet()} - {*without})
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL[1:]])
    return _with(tokenizer, added)


def words(*, eos: str = "[SEP]") -> bytes:
    """As BERT: no well-known end-of-text token."""
    pieces = ["[UNK]", eos, "the", "dog"]
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in pieces[:2]])
    return tokenizer.to_str().encode()


def counted(texts: Iterable[pa.Array], pattern: str) -> pa.Table:
    """The distinct words of all texts, in the columns of `word_counts.COUNTED`."""
    words = WordCounts()
    for array in texts:
        for part in counted_words(array, pattern):
            words.add(part)
    return words.total()


def train_tokenizer(texts: Iterable[pa.Array], vocab_size: int, eos: str = "<|endoftext|>", pattern: str = "gpt2") -> bytes:
    """As `datapipe tokenizer train` and runs train."""
    check_training(vocab_size, eos, pattern)
    return train_on_words(counted(texts, pattern), vocab_size, eos, pattern).to_json()


def config(**tokens: object) -> bytes:
    """A tokenizer_config.json."""
    return json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **tokens}).encode()


def _with(tokenizer: Tokenizer, added: str | None) -> bytes:
    if added is not None:
        named = [(token, number) for token in SPECIAL if (number := tokenizer.token_to_id(token)) is not None]
        tokenizer.post_processor = processors.TemplateProcessing(single=added, special_tokens=named)
    return tokenizer.to_str().encode()
