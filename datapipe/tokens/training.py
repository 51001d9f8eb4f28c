"""Trains a byte-level BPE tokenizer. Equal text gives an equal tokenizer.json, byte for byte.

    sampled texts ── chunks of at most about 256 kB ── word counts ── merges ──▶ tokenizer.json

The end-of-text token has id 0 and the 256 bytes have ids 1 to 256, so the tokenizer encodes every text, whatever the sample.
Merges follow exact counts, with ties broken by the ids of the pair: the result depends on neither threads nor the order of
documents. Memory is that of the distinct words of the sample. `tokenizers` buffers 256 chunks, which bounds their size.
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
"""The 256 bytes and the end-of-text token."""

_CHUNK_BYTES = 256 << 10

_LONGEST_WORD = 1000
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}|\s{{{_LONGEST_WORD + 1},}}")
"""Runs of white space, or of anything else. Apart from a leading space, every word of every pattern lies within one run.

Training time is quadratic in the length of a word: 25 s for a word of 200 kB, 40 minutes for 2 MB. Such words teach nothing."""


def train_tokenizer(texts: Iterable[pa.Array], vocab_size: int, eos: str = "<|endoftext|>", pattern: str = "gpt2") -> bytes:
    """A tokenizer.json trained on `texts`, in the form of `Encoder.to_json()`.

    Args:
        texts: arrays of (num_docs,) large_string without nulls, a few MiB each.
        vocab_size: number of tokens, at least 257. The result has fewer if too few pairs occur twice in the text.
        eos: the special token that ends a document.
        pattern: splits texts into words; a name of `patterns.PATTERNS`.
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
        tokenizer.train_from_iterator(_chunks(texts), trainer)
    return Encoder(tokenizer.to_str().encode(), eos=eos).to_json()


def check_training(vocab_size: int, eos: str, pattern: str) -> None:
    """Checks the options of training. Raises UserError."""
    if vocab_size < SMALLEST_VOCABULARY:
        raise UserError(f"vocab_size: found {vocab_size}, expected at least {SMALLEST_VOCABULARY} (256 bytes and `eos`)")
    if len(splitter(pattern).pre_tokenize_str(eos)) < 2:
        raise UserError(
            f"eos: found {eos!r}, a word that may occur in text, expected a token in brackets such as '<|endoftext|>'"
        )


def _chunks(texts: Iterable[pa.Array]) -> Iterator[list[str]]:
    for batch in texts:
        chunks, _ = cut_long_texts(columns.as_large_string(batch), _CHUNK_BYTES)
        for part in slices_of(chunks, _CHUNK_BYTES):
            yield [cut for text in part.to_pylist() for cut in _without_long_words(text)]


def _without_long_words(text: str) -> list[str]:
    """The text, cut inside runs that are longer than any word should be (see `_LONG_RUN`)."""
    if _LONG_RUN.search(text) is None:
        return [text]
    parts, start = [], 0
    for run in _LONG_RUN.finditer(text):
        cuts = range(run.start() + _LONGEST_WORD, run.end(), _LONGEST_WORD)
        for cut in cuts:
            parts.append(text[start:cut])
            start = cut
    return [*parts, text[start:]]


@contextmanager
def _threads() -> Iterator[None]:
    """Lets `tokenizers` use all cores, because no other task runs during training. RAYON_NUM_THREADS limits them."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
