"""Training a byte-level BPE tokenizer: text in, tokenizer.json out, the same bytes every time.

    sampled texts ── pieces of at most about 256 kB ── word counts ── merges ──▶ tokenizer.json

The end-of-text token is id 0 and the 256 bytes are ids 1 to 256, so every text can be encoded, whatever was sampled. Merges
follow exact counts, ties by the ids of the pair: neither threads nor the order of the documents show in the result. Memory
is the distinct words of the sample; `tokenizers` buffers 256 pieces, hence their size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from datapipe import columns
from datapipe.errors import UserError
from datapipe.tokens.cuts import cut_long_texts
from datapipe.tokens.encoder import Encoder, slices_of
from datapipe.tokens.patterns import splitter

SMALLEST_VOCABULARY = 257
"""256 bytes and the end-of-text token."""

_PIECE_BYTES = 256 << 10

_LONGEST_WORD = 1000
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}|\s{{{_LONGEST_WORD + 1},}}")
"""Runs without a border between white space and the rest; every word of every pattern lies within one, a space apart.

A word of 200 kB takes 25 s to train on, one of 2 MB would take 40 minutes, and neither teaches the tokenizer anything."""


def train_tokenizer(texts: Iterable[pa.Array], vocab_size: int, eos: str = "<|endoftext|>", pattern: str = "gpt2") -> bytes:
    """A tokenizer.json trained on `texts`, in the form of `Encoder.to_json()`.

    Args:
        texts: arrays of (num_docs,) large_string without nulls, a few MiB each.
        vocab_size: tokens wanted, 257 or more; there are fewer when the text has too few pairs that occur twice.
        eos: the special token that ends a document.
        pattern: how texts are split into words: a name of `patterns.PATTERNS`.
    """
    check_training(vocab_size, eos, pattern)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # a pair seen once teaches nothing
        special_tokens=[eos],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with _threads():
        tokenizer.train_from_iterator(_pieces(texts), trainer)
    return Encoder(tokenizer.to_str().encode(), eos=eos).to_json()


def check_training(vocab_size: int, eos: str, pattern: str) -> None:
    """Raises UserError for options that no tokenizer can be trained with."""
    if vocab_size < SMALLEST_VOCABULARY:
        raise UserError(f"vocab_size: {vocab_size} is too small; expected at least {SMALLEST_VOCABULARY} (256 bytes and `eos`)")
    if len(splitter(pattern).pre_tokenize_str(eos)) < 2:
        raise UserError(
            f"eos: {eos!r} is a word that training may find in the text; expected one in brackets, as '<|endoftext|>'"
        )


def _pieces(texts: Iterable[pa.Array]) -> Iterator[list[str]]:
    for batch in texts:
        pieces, _ = cut_long_texts(columns.as_large_string(batch), _PIECE_BYTES)
        for part in slices_of(pieces, _PIECE_BYTES):
            yield [cut for text in part.to_pylist() for cut in _without_long_words(text)]


def _without_long_words(text: str) -> list[str]:
    """The text, cut inside runs that no pattern need cut: the trainer's time is quadratic in the length of a word."""
    if _LONG_RUN.search(text) is None:
        return [text]
    parts, at = [], 0
    for run in _LONG_RUN.finditer(text):
        places = range(run.start() + _LONGEST_WORD, run.end(), _LONGEST_WORD)
        for place in places:
            parts.append(text[at:place])
            at = place
    return [*parts, text[at:]]


@contextmanager
def _threads() -> Iterator[None]:
    """Training is one task of a run and has the machine to itself; RAYON_NUM_THREADS bounds it."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
