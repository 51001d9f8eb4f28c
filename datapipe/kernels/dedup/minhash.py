"""MinHash signatures and their band hashes.

    bytes  ->  folded  ->  words  ->  shingles of `ngram` words  ->  signature (num_perm,) uint32  ->  one uint64 per band
               no case     hashed     polynomial of the word         least value under each
                                      hashes, rolled, mixed          permutation

Shingles may also be `ngram` consecutive characters of folded words. Texts are in their canonical
caseless form (`case_folding.py`); a word is a run of letters, marks and numbers, or one character
of a script without spaces (`word_characters.py`). Words are written with 0 between them, so that
they are hashed eight bytes at a time, more than twice as fast as byte by byte.

Permutation p maps a shingle x, 32 bits, to the upper half of `a[p] * x + b[p] mod 2**64`: multiply-add-shift, 2-independent
for a and b uniform in 64 bits (Dietzfelbinger 1996: 32 + 32 - 1 bits suffice). x is the upper half of a
splitmix64-finalised hash, so no structure of the text reaches it: over 400 pairs of random sets at each of five
similarities, with 112 permutations, the mean error is at most 0.0031, its spread within 10 % of that of independent coins.

Shingles are reduced in blocks of 256, `GROUP` permutations at a time (`least_hashes.py`). The least
is that of signed numbers.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import bits_before, bytes_between, copy_into, eight_bytes, first_bit, first_byte, zero_bytes
from datapipe.kernels.dedup.case_folding import fold_texts, word_folding
from datapipe.kernels.dedup.least_hashes import GROUP, lower_group
from datapipe.kernels.hashing import FNV_BASIS, mix64
from datapipe.kernels.text.unicode_classes import is_continuation
from datapipe.kernels.types import (
    Int64s,
    Int64sOut,
    UInt8s,
    UInt32Matrix,
    UInt32MatrixOut,
    UInt64s,
    UInt64sOut,
    input_record,
    room_for,
)
from datapipe.rng import GOLDEN

Shingle = Literal["word", "char", "dictionary"]
"""What n-grams consist of; `dictionary`: of words between spaces, which texts have in every script (`spaced_words.py`)."""

_BLOCK = 256
_WORD = FNV_BASIS
_CHARACTER = np.uint64(0xA0761D6478BD642F)
_MULTIPLIER = GOLDEN
_RADIX = np.uint64(0xD1342543DE82EF9B)  # 3 mod 8: differences of its small powers keep all but a few of the 64 bits
_SHORT = np.uint64(1 << 32)  # past every band index: the hash namespace of documents with fewer words than a shingle
_SIGN = np.uint32(0x80000000)
_GREATEST = np.int32(0x7FFFFFFF)
_MOST_WORDS = np.uint64(64)  # that begin in a block of bytes
_0, _1, _8, _29, _32, _64 = (np.uint64(number) for number in (0, 1, 8, 29, 32, 64))


class Permutations(NamedTuple):
    """Multipliers and addends, (num_perm,) int64 each: an input of kernels."""

    a: Int64s
    b: Int64s


class SignaturesOut(NamedTuple):
    """Outputs of `sign`, (num_docs,) each: words; the hash of the last `ngram` words; and the
    signatures (num_docs, num_perm), all ones for a document without a shingle."""

    num_words: Int64sOut
    word_hashes: UInt64sOut
    signed: UInt32MatrixOut


def permutations(seed: int, num_perm: int) -> Permutations:
    """The permutations of a seed: 64 uniform bits for each number, from NumPy's Philox, whose raw stream no version changes."""
    a, b = np.random.Philox(key=seed).random_raw(2 * num_perm).view(np.int64).reshape(2, num_perm)
    return input_record(Permutations, (a, b))


def signatures(
    offsets: np.ndarray, data: np.ndarray, chosen: Permutations, ngram: int, shingle: Shingle = "word"
) -> SignaturesOut:
    """The signatures of documents; other arguments as for `sign`."""
    num_docs = len(offsets) - 1
    word_offsets, words = fold_texts(offsets, data, word_folding(by_spaces=shingle == "dictionary"))
    out = room_for(SignaturesOut, num_docs)._replace(signed=np.empty((num_docs, len(chosen.a)), np.uint32))
    read_only = input_record(Permutations, chosen)  # made again, since pickling the stage makes its arrays writable
    sign(word_offsets, words, read_only, ngram, shingle == "char", out)
    return out


def band_rows(
    offsets: np.ndarray,
    data: np.ndarray,
    chosen: Permutations,
    ngram: int,
    num_bands: int,
    shingle: Shingle = "word",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The band rows of documents, hashes and ascending documents, and the signatures of all documents.

    A document of at least `ngram` words has `num_bands` rows, in the order of the bands. A shorter one has one row, the
    hash of its words, of which its signature is made: equal short documents have equal signatures.
    """
    num_words, word_hashes, signed = signatures(offsets, data, chosen, ngram, shingle)
    short = num_words < ngram
    signed[short] = (word_hashes[short] & np.uint64(0xFFFFFFFF)).astype(np.uint32)[:, None]
    num_rows = int(np.where(short, num_words > 0, num_bands).sum())
    hashes, documents = np.empty(num_rows, np.uint64), np.empty(num_rows, np.int64)
    band(signed, num_words, word_hashes, ngram, num_bands, hashes, documents)
    return hashes, documents, signed


@inline
def hash_word(words, j):
    """The hash and the stop of the word at byte j, whose last eight-byte read contains a 0."""
    hashed, eight = _WORD, eight_bytes(words, j)
    zeros = zero_bytes(eight)
    while zeros == _0:
        hashed = (hashed ^ eight) * _MULTIPLIER
        hashed ^= hashed >> _29
        j += _8
        eight = eight_bytes(words, j)
        zeros = zero_bytes(eight)
    return mix64((hashed ^ (eight & bits_before(zeros))) * _MULTIPLIER), j + first_byte(zeros)


@inline
def _hash_character(words, j):
    """The hash of the character that starts at byte j."""
    size = _1
    while is_continuation(words[j + size]):
        size += _1
    return mix64((eight_bytes(words, j) & ((_1 << (size * _8)) - _1)) ^ _CHARACTER)


@inline
def _padded(numbers) -> Any:
    """Numbers of permutations, with zeros up to a multiple of `GROUP`."""
    padded = np.zeros((len(numbers) + GROUP - 1) // GROUP * GROUP, np.int64)
    copy_into(padded[: len(numbers)], numbers)
    return padded


@inline
def _hash_words(words, j, stop, by_character, hashes) -> tuple[Any, Any]:
    """Writes the hashes of the words that begin in blocks of 64 bytes from j on, while they fit; returns their number and
    where the next block begins. Byte j - 1 is 0 or of a word."""
    count = _0
    while j < stop and count + _MOST_WORDS <= np.uint64(len(hashes)):
        zeros, begins = bytes_between(words, j, 0, 1), np.uint64(j == _0 or words[j - _1] == 0)
        starts = ~zeros & ~_0 >> (_64 - min(stop - j, _64))
        starts &= ~bytes_between(words, j, 0x80, 0x40) if by_character else zeros << _1 | begins
        while starts:
            position = j + first_bit(starts)
            hashes[count] = _hash_character(words, position) if by_character else hash_word(words, position)[0]
            starts, count = starts & (starts - _1), count + _1
        j += _64
    return np.int64(count), j


@inline
def _roll(recent, num_words, leaving, rolled, shingles) -> Any:
    """Writes the shingles that end with each of `num_words` words, which follow the `ngram` words before
    them in `recent`, and moves the last `ngram` to the front. `rolled`: the polynomial of the words before."""
    ngram = np.uint64(len(recent) - len(shingles))
    for number in range(num_words):
        i = np.uint64(number)
        rolled = rolled * _RADIX + (recent[ngram + i] - recent[i] * leaving)
        shingles[i] = np.uint32(mix64(rolled) >> _32)
    for number in range(np.int64(ngram)):
        recent[number] = recent[num_words + number]
    return rolled


@kernel
def sign(offsets: Int64s, words: UInt8s, chosen: Permutations, ngram: int, by_character: bool, out: SignaturesOut) -> None:
    """Writes the signatures of documents, and for documents of fewer than `ngram` words a hash of all their words.

    `words` are those of `case_folding.fold_texts`, and 64 bytes more. `by_character`: each character counts as a word.
    """
    a, b = _padded(chosen.a), _padded(chosen.b)
    recent, shingles, least = np.zeros(ngram + _BLOCK, np.uint64), np.zeros(_BLOCK, np.uint32), np.zeros(len(a), np.int32)
    leaving = _1
    for _ in range(ngram):
        leaving *= _RADIX
    for document in range(len(offsets) - 1):
        recent[:ngram], least[:] = _0, _GREATEST
        rolled, count = _0, 0
        j, stop = np.uint64(offsets[document]), np.uint64(offsets[document + 1])
        while j < stop:
            num_words, j = _hash_words(words, j, stop, by_character, recent[ngram:])
            rolled = _roll(recent, num_words, leaving, rolled, shingles)
            first = min(max(ngram - 1 - count, 0), num_words)
            count += num_words
            for p in range(0, len(a), GROUP):
                lower_group(shingles[first:], num_words - first, a, b, least, p)
        out.num_words[document], out.word_hashes[document] = count, mix64(rolled ^ np.uint64(count))
        for p in range(len(chosen.a)):
            out.signed[document, p] = np.uint32(least[p]) ^ _SIGN


@kernel
def band(
    signed: UInt32Matrix,
    num_words: Int64s,
    word_hashes: UInt64s,
    ngram: int,
    num_bands: int,
    hashes: UInt64sOut,
    documents: Int64sOut,
) -> None:
    """Writes `band_rows`. A band is `num_perm // num_bands` minima; a remainder is unused."""
    rows, row = signed.shape[1] // num_bands, 0
    for document in range(len(signed)):
        if num_words[document] >= ngram:
            for index in range(num_bands):
                hashed = mix64(np.uint64(index) + _1)
                for p in range(index * rows, (index + 1) * rows):
                    hashed = (hashed ^ np.uint64(signed[document, p])) * _MULTIPLIER
                    hashed ^= hashed >> _29
                hashes[row], documents[row] = mix64(hashed), document
                row += 1
        elif num_words[document] > 0:
            hashes[row], documents[row] = mix64(word_hashes[document] ^ mix64(_SHORT)), document
            row += 1
