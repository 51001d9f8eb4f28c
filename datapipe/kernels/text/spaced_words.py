"""Words as spaces would separate them in every script: those between white space, cut where ICU's dictionaries say.

    words between white space  ─ cut at the breaks of `icu_breaks.py` ─▶  words
    texts, words               ─ a space between words that touch ─▶      texts, for what finds words by itself

    "in 東京都に住む。 2024年"  ->  in  東京  都  に  住む  。  2024  年

Signs beside these scripts are pieces of their own; `english_words.py` splits them further.
"""

from typing import NamedTuple

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.arrays import copy_into
from datapipe.kernels.text.icu_breaks import find_breaks
from datapipe.kernels.text.unicode_classes import class_table
from datapipe.kernels.text.words import SpansOut, Words, first_spans, room_for_spans, write_word
from datapipe.kernels.types import Int64s, UInt8s, UInt8sOut

_SPACE = ord(" ")


def find_spaced_words(words: Words, offsets: np.ndarray, data: np.ndarray) -> Words:
    """The words of every document by its words between white space."""
    breaks = find_breaks(offsets, data)
    if not len(breaks):
        return words
    out = room_for_spans(len(offsets), len(words.starts) + len(breaks))
    return first_spans(Words, cut_at_breaks(words, data, breaks, class_table(), out), out)


class SpacedTexts(NamedTuple):
    """Texts with a space between words that touch."""

    # those with spaces
    offsets: np.ndarray  # (num_docs + 1,) int64, from 0 on
    data: np.ndarray
    spaces: np.ndarray  # (num_spaces,) int64, ascending: where a space was added
    begin: int  # where the texts without them begin

    def positions_before(self, positions: np.ndarray) -> np.ndarray:
        """The bytes of the texts without the spaces: of first bytes of words, and of bytes behind a word."""
        return positions - np.searchsorted(self.spaces, positions) + self.begin


def spaced_texts(words: Words, offsets: np.ndarray, data: np.ndarray) -> SpacedTexts:
    """The texts with a space before each of `words` that touches the word before it."""
    touching = words.starts[1:][words.starts[1:] == words.starts[:-1] + words.lengths[:-1]]
    touching = touching[~np.isin(touching, offsets)]  # not before the first word of a text
    out_offsets = offsets - offsets[0] + np.searchsorted(touching, offsets)
    out = np.empty(out_offsets[-1], np.uint8)
    write_spaces(offsets, data, touching, out)
    return SpacedTexts(out_offsets, out, touching - offsets[0] + np.arange(len(touching)), int(offsets[0]))


@kernel
def cut_at_breaks(words: Words, data: UInt8s, breaks: Int64s, classes: UInt8s, out: SpansOut) -> int:
    """Fills `out` with the words, each cut at the `breaks` inside, and returns the number of words. Room for a word more a
    break is enough."""
    word_offsets, word_starts, word_lengths, word_hashes, word_chars, word_flags = words
    doc_offsets, starts, lengths, hashes, chars, flags = out
    word, index = np.int64(0), np.int64(0)
    doc_offsets[0] = 0
    for doc in range(len(word_offsets) - 1):
        for whole in range(word_offsets[doc], word_offsets[doc + 1]):
            start, stop = word_starts[whole], word_starts[whole] + word_lengths[whole]
            while index < len(breaks) and breaks[index] <= start:
                index += 1
            if index == len(breaks) or breaks[index] >= stop:
                starts[word], lengths[word], hashes[word] = start, word_lengths[whole], word_hashes[whole]
                chars[word], flags[word] = word_chars[whole], word_flags[whole]
                word += 1
                continue
            while index < len(breaks) and breaks[index] < stop:
                if breaks[index] > start:
                    word = write_word(data, start, breaks[index], classes, word, starts, lengths, hashes, chars, flags)
                    start = breaks[index]
                index += 1
            word = write_word(data, start, stop, classes, word, starts, lengths, hashes, chars, flags)
        doc_offsets[doc + 1] = word
    return int(word)


@kernel
def write_spaces(offsets: Int64s, data: UInt8s, spaces: Int64s, out: UInt8sOut) -> None:
    """Writes the texts with a space before each byte of `spaces`, which are inside of the texts."""
    start, written = offsets[0], np.int64(0)
    for index in range(len(spaces) + 1):
        stop = spaces[index] if index < len(spaces) else offsets[len(offsets) - 1]
        copy_into(out[written : written + stop - start], data[start:stop])
        written += stop - start
        start = stop
        if index < len(spaces):
            out[written] = _SPACE
            written += 1
