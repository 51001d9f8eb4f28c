"""Hashes of runs of words, and the table in which those of evaluation items are found.

    words  ->  prefix hashes, the last `RING` of them  ->  the hash of the last m words, for any m below `RING`

The prefix hash of i words is P(i) = P(i - 1) * R + h(i), modulo 2**64. The last m words have the
hash P(i) - P(i - m) * R**m, which depends on these words alone.

The window at a word is the fewest last words that weigh at least n words (`folded_words.py`): n
words in scripts with spaces, 2 n characters in Chinese. It depends only on the text before its end,
so a passage has the same windows in an item and in a document, but for those that begin before it.

A bit filter (Bloom 1970, two bits in one word of 64, `FILTER_BITS` a key), which 2 % of absent keys
pass, precedes an open-addressing table: an absent key costs one load.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.decontaminate.folded_words import WordTable, next_word
from datapipe.kernels.hashing import find_slot, mix64, num_slots_for
from datapipe.kernels.types import Int32s, Int32sOut, Int64s, Int64sOut, UInt8s, UInt64s, UInt64sOut, input_record, room_for

RING = 256
FILTER_BITS = 16

GRAM, TAIL, QUESTION, ANSWER = (np.uint64(salt * 0xD6E8FEB86659FD93 % (1 << 64)) for salt in range(1, 5))
"""What a key stands for; keys of different kinds differ."""

RADIX = np.uint64(0xD1342543DE82EF9B)
"""3 mod 8, so that differences of its small powers keep all but a few of the 64 bits."""

_LENGTH = np.uint64(0xA0761D6478BD642F)
_0, _1, _6, _63 = (np.uint64(number) for number in (0, 1, 6, 63))


def _powers() -> np.ndarray:
    powers = np.ones(RING, np.uint64)
    for number in range(1, RING):
        powers[number : number + 1] = powers[number - 1 : number] * RADIX
    return powers


_POWERS = _powers()


class GramTable(NamedTuple):
    bits: UInt64s  # (a power of two,), the bit filter
    keys: UInt64s  # (num_slots,), see `hashing.py`
    entries: Int32s  # (num_slots,), the entry of each key


def gram_table(keys: np.ndarray) -> GramTable:
    """The table in which entry i has the key `keys[i]`; (num_entries,) uint64, distinct, none 0."""
    num_slots = num_slots_for(len(keys))
    bits = np.zeros(num_slots_for(len(keys) * FILTER_BITS // 128), np.uint64)
    slots, entries = np.zeros(num_slots, np.uint64), np.zeros(num_slots, np.int32)
    fill_table(keys, bits, slots, entries)
    return input_record(GramTable, (bits, slots, entries))


@inline
def run_key(prefix, earlier, num_words, kind) -> Any:
    """The key of the last `num_words` words, never 0, by the prefix hashes after the last word and before the first one."""
    run = prefix - earlier * _POWERS[num_words]
    key = mix64(run + kind + np.uint64(num_words) * _LENGTH)
    return key if key != _0 else _1


@inline
def filter_word(bits, key) -> Any:
    """The number of the word of the filter that holds the bits of a key; the high half of the key chooses it."""
    return (key >> np.uint64(20)) & np.uint64(len(bits) - 1)


@inline
def filter_mask(key) -> Any:
    return (_1 << (key & _63)) | (_1 << ((key >> _6) & _63))


@inline
def mark_present(bits, keys, num_keys, present) -> None:
    """Writes whether each of the first `num_keys` keys passes the filter, 1 or 0. A key that is 0 stands for none."""
    for index in range(num_keys):
        key = keys[index]
        mask = filter_mask(key)
        present[index] = np.uint8((bits[filter_word(bits, key)] & mask == mask) & (key != _0))
    for index in range(num_keys, len(present)):
        present[index] = 0


@inline
def entry_of(keys, entries, key) -> Any:
    slot = find_slot(keys, len(keys), key)
    return np.int64(entries[slot]) if keys[slot] == key else np.int64(-1)


@kernel
def fill_table(new_keys: UInt64s, bits: UInt64sOut, keys: UInt64sOut, entries: Int32sOut) -> None:
    """Fills the filter and the table, which are all 0 before. Arguments as in `GramTable`."""
    for entry in range(len(new_keys)):
        key = new_keys[entry]
        bits[filter_word(bits, key)] |= filter_mask(key)
        slot = find_slot(keys, len(keys), key)
        keys[slot], entries[slot] = key, entry


class RunsOut(NamedTuple):
    """Runs of words of texts: an output of `hash_windows`."""

    texts: Int64sOut  # (num_windows,), the text of each window
    keys: UInt64sOut  # (num_windows,)
    # num_words, weights: (num_texts,), the words of each text, and their weight
    num_words: Int64sOut
    weights: Int64sOut
    prefixes: UInt64sOut  # (num_texts,), the prefix hash of all words of each text


def windows_of(offsets: np.ndarray, data: np.ndarray, table: WordTable, weight: int, kind: np.uint64) -> RunsOut:
    """The windows of texts; parameters as for `hash_windows`."""
    room, num_texts = int(offsets[-1] - offsets[0]), len(offsets) - 1
    out = room_for(RunsOut, num_texts)._replace(texts=np.empty(room, np.int64), keys=np.empty(room, np.uint64))
    count = hash_windows(offsets, data, table, weight, kind, out)
    return RunsOut(out.texts[:count], out.keys[:count], *out[2:])


@kernel
def hash_windows(offsets: Int64s, data: UInt8s, table: WordTable, weight: int, kind: np.uint64, out: RunsOut) -> int:
    """Writes the windows of texts, of at least `weight` below `RING`; returns their number."""
    (codes, expansions), (texts, keys, num_words, weights, prefixes) = table, out
    prefix_ring, weight_ring = np.zeros(RING, np.uint64), np.zeros(RING, np.int64)
    count = np.int64(0)
    for text in range(len(offsets) - 1):
        position, stop = offsets[text], offsets[text + 1]
        number, first, total, prefix = np.int64(0), np.int64(0), np.int64(0), _0
        prefix_ring[0], weight_ring[0] = _0, 0
        while True:
            hashed, word_weight, _, position = next_word(data, position, stop, codes, expansions)
            if word_weight == 0:
                break
            number, total, prefix = number + 1, total + word_weight, prefix * RADIX + hashed
            prefix_ring[number % RING], weight_ring[number % RING] = prefix, total
            while first + 1 < number and total - weight_ring[(first + 1) % RING] >= weight:
                first += 1
            if total - weight_ring[first % RING] >= weight:
                texts[count], keys[count] = text, run_key(prefix, prefix_ring[first % RING], number - first, kind)
                count += 1
        num_words[text], weights[text], prefixes[text] = number, total, prefix
    return int(count)


@kernel
def key_texts(num_words: Int64s, prefixes: UInt64s, kind: np.uint64, keys: UInt64sOut) -> None:
    """Writes the key of all words of each text of fewer than `RING` words, (num_texts,); 0 for
    others and for texts without words. The arguments are those of `RunsOut`."""
    for text in range(len(num_words)):
        keys[text] = run_key(prefixes[text], _0, num_words[text], kind) if 0 < num_words[text] < RING else _0
