"""Counted words: those that the pattern splits, each once, whatever the batches."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.tokens import word_counts as module
from datapipe.tokens.patterns import PATTERNS, splitter
from datapipe.tokens.vocabulary import byte_alphabet
from datapipe.tokens.word_counts import LONGEST_WORD, WordCounts, counted, counted_words

ALPHABET = byte_alphabet()


def _column(*texts: str) -> pa.Array:
    return pa.array(texts, pa.large_string())


def _counts(table: pa.Table) -> dict[bytes, int]:
    assert len(set(table["word"].to_pylist())) == len(table)
    return dict(zip(table["word"].to_pylist(), table["count"].to_pylist()))


@given(st.lists(st.text(max_size=60), max_size=8), st.sampled_from(sorted(PATTERNS)))
def test_any_texts_have_the_words_of_tokenizers(texts, pattern):
    split = splitter(pattern)
    spelled = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
    expected = {bytes(ALPHABET[letter] for letter in word): count for word, count in spelled.items()}
    assert _counts(counted([_column(*texts)], pattern)) == expected


def test_counts_do_not_depend_on_arrays_slices_and_sums(monkeypatch):
    texts = [f"the {number % 7} words of a text {'x' * (number % 5)}, {number}\n" for number in range(300)]
    whole = _counts(counted([_column(*texts)], "gpt2"))
    monkeypatch.setattr(module, "_MOST_UNSUMMED", 3)
    monkeypatch.setattr(module, "_SLICE_BYTES", 64)
    assert counted([_column("", "")], "gpt2").schema == module.COUNTED
    words = WordCounts()
    for text in texts:
        for part in counted_words(_column("not counted", text).slice(1), "gpt2"):
            words.add(part)
    assert _counts(words.total()) == whole
    assert sum(len(word) * count for word, count in whole.items()) == sum(len(text) for text in texts)


@pytest.mark.parametrize("letter", ["a", "é", "漢", "𝒂"])
def test_a_long_word_counts_as_pieces_that_end_where_characters_do(letter):
    word = "b" + letter * LONGEST_WORD
    found = _counts(counted([_column(f"x {word} {word}")], "gpt2"))
    pieces = {piece: count for piece, count in found.items() if len(piece) > 1}
    assert all(len(piece) <= LONGEST_WORD and piece.decode() for piece in pieces)
    assert sum(len(piece) * count for piece, count in found.items()) == len(f"x {word} {word}".encode())
    assert min(pieces.values()) == 2
