"""Words as spaCy's English tokenizer cuts them: punctuation, contractions and units apart, `U.S.` and web addresses whole.

    Words (between white space)  --a chunk of letters-->      one word, unless it is a contraction ("cannot")
                                 --any other chunk-->         signs off both ends, then cut inside ("re-use" -> re - use)

The algorithm is that of spaCy 3.8 (`tokenizer.pyx`): datatrove's filters use it, and FineWeb's thresholds were tuned on it.
A special case that signs have split is joined again: "(so):" ends in the emoticon "):". On 60,213 real lines in more than
400 languages every word equals spaCy's, and on 60,000 chunks of random signs 99.9 %. Not covered: addresses with an IP
number, and "°F." before other signs. Each chunk is cut by itself, in linear time.

Two in three of the other chunks occur before in a batch. A table of recent ones says where, and their words are copied, which
saves a sixth of all time.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import hash_bytes, hash_without_last, slot_of_key
from datapipe.kernels.text import contractions
from datapipe.kernels.text.contractions import Wholes, cuts, sieve_of, special_cases
from datapipe.kernels.text.english_signs import (
    content_table,
    infix_bytes,
    is_address,
    is_word_and_sign,
    prefix_bytes,
    sign_table,
    suffix_bytes,
    unit_hashes,
)
from datapipe.kernels.text.unicode_classes import LETTER, decode
from datapipe.kernels.text.words import SpansOut, Words, find_words, first_spans, room_for_spans, write_word
from datapipe.kernels.types import Int64sOut, UInt8s, UInt16s, UInt64s, UInt64sOut, input_record

_LONGEST_WHOLE = contractions.LONGEST_BYTES
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SIEVE_SHIFT = np.uint64(64 - contractions.SIEVE_BITS)
_RECENT_BITS = 15
_RECENT_SHIFT = np.uint64(64 - _RECENT_BITS)


class RecentOut(NamedTuple):
    """Where chunks were cut, by the first bits of their hashes: scratch of kernels, (2**15,) each."""

    hashes: UInt64sOut  # 0: none
    firsts: Int64sOut  # the first word
    stops: Int64sOut  # behind the last one


def no_recent() -> RecentOut:
    number = 1 << _RECENT_BITS
    return RecentOut(np.zeros(number, np.uint64), np.zeros(number, np.int64), np.zeros(number, np.int64))


def find_english_words(words: Words, data: np.ndarray) -> Words:
    """The words of every document, punctuation marks among them, as spaCy cuts English, by the words between white space."""
    wholes = wholes_table()
    out = room_for_spans(len(words.doc_offsets), most_english_words(words, wholes))
    tables = content_table(), sign_table(), wholes, unit_hashes()
    return first_spans(Words, cut_words(words, data, *tables, no_recent(), out), out)


@lru_cache(maxsize=1)
def wholes_table() -> Wholes:
    """The special cases, with the words into which their signs alone split them."""
    table, parts = special_cases(), cuts()
    cases = [case.encode() for case in parts]
    chunks = find_words(np.cumsum([0, *map(len, cases)]), np.frombuffer(b"".join(cases), np.uint8))
    data = np.frombuffer(b"".join(cases), np.uint8)
    none = table._replace(keys=np.zeros_like(table.keys), sieve=np.zeros_like(table.sieve))
    out = room_for_spans(len(chunks.doc_offsets), len(data))
    none = input_record(Wholes, none)
    tables = content_table(), sign_table(), none, unit_hashes()
    words = first_spans(Words, cut_words(chunks, data, *tables, no_recent(), out), out)
    num_tokens = np.diff(words.doc_offsets)
    is_split = (num_tokens > 1) & (num_tokens >= [*map(len, parts.values())])
    firsts = words.doc_offsets[:-1][is_split]
    slots = {key: slot for slot, key in enumerate(table.keys.tolist()) if key}
    by_slot = np.zeros(len(table.keys), np.uint8)
    by_slot[[slots[key] for key in chunks.hashes.tolist()]] = np.where(is_split, num_tokens, 0)
    pairs = sieve_of(_pair(words.hashes[firsts], words.hashes[firsts + 1]))
    return input_record(Wholes, (table.keys, table.sizes, table.sieve, by_slot, pairs))


def _pair(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return first * _FACTOR + second


@kernel
def most_english_words(words: Words, wholes: Wholes) -> int:
    """An upper bound on the number of words: four per contraction, one per other chunk of letters, else one per byte."""
    _, _, lengths, hashes, _, flags = words
    keys, sieve = wholes.keys, wholes.sieve
    count = np.int64(0)
    for word in range(len(lengths)):
        if np.int64(flags[word]) & ~LETTER:
            count += lengths[word]
        elif lengths[word] <= _LONGEST_WHOLE and slot_of_hash(keys, sieve, hashes[word]) >= 0:
            count += 4
        else:
            count += 1
    return int(count)


@kernel
def cut_words(
    chunks: Words,
    data: UInt8s,
    classes: UInt8s,
    signs: UInt16s,
    wholes: Wholes,
    units: UInt64s,
    recent: RecentOut,
    out: SpansOut,
) -> int:
    """Fills `out`, which has room for `most_english_words` words, and returns the number of words.

    One loop nest above 40 lines: cut into functions that take the records, it is slower. `chunks`:
    the words between white space. `classes`, `signs`, `wholes`: `content_table`, `sign_table`,
    `wholes_table`. `units`: hashes of units of measure, sorted. `recent`: `no_recent`."""
    chunk_offsets, chunk_starts, chunk_lengths, chunk_hashes, chunk_chars, chunk_flags = chunks
    keys, sizes, sieve, pairs = wholes.keys, wholes.sizes, wholes.sieve, wholes.pairs
    recent_hashes, recent_firsts, recent_stops = recent
    doc_offsets, starts, lengths, hashes, chars, flags = out
    word = np.int64(0)
    doc_offsets[0] = 0
    for doc in range(len(chunk_offsets) - 1):
        for chunk in range(chunk_offsets[doc], chunk_offsets[doc + 1]):
            start, stop = chunk_starts[chunk], chunk_starts[chunk] + chunk_lengths[chunk]
            slot = np.int64(-1)
            if stop - start <= _LONGEST_WHOLE:
                slot = slot_of_hash(keys, sieve, chunk_hashes[chunk])
            if slot >= 0:
                word = _write_parts(data, start, slot, sizes, classes, word, starts, lengths, hashes, chars, flags)
                continue
            if not np.int64(chunk_flags[chunk]) & ~LETTER:
                starts[word], lengths[word], hashes[word] = start, stop - start, chunk_hashes[chunk]
                chars[word], flags[word] = chunk_chars[chunk], chunk_flags[chunk]
                word += 1
                continue
            if is_word_and_sign(data, start, stop, signs):
                key, first, slot = hash_without_last(chunk_hashes[chunk], data[stop - 1]), word, np.int64(-1)
                if stop - 1 - start <= _LONGEST_WHOLE:
                    slot = slot_of_hash(keys, sieve, key)
                if slot >= 0:
                    word = _write_parts(data, start, slot, sizes, classes, word, starts, lengths, hashes, chars, flags)
                else:
                    starts[word], lengths[word], hashes[word] = start, stop - 1 - start, key
                    chars[word], flags[word] = stop - 1 - start, LETTER
                    word += 1
                word = write_word(data, stop - 1, stop, classes, word, starts, lengths, hashes, chars, flags)
                if slot >= 0 and _may_be_split(first, word, hashes, pairs):
                    word = _join_split(data, classes, wholes, first, word, starts, lengths, hashes, chars, flags)
                continue
            entry = np.int64(chunk_hashes[chunk] >> _RECENT_SHIFT)
            begun, ended = recent_firsts[entry], recent_stops[entry]
            if recent_hashes[entry] == chunk_hashes[chunk] and _is_chunk(data, start, stop, begun, ended, starts, lengths):
                moved = start - starts[begun]
                for earlier in range(begun, ended):
                    starts[word], lengths[word], hashes[word] = starts[earlier] + moved, lengths[earlier], hashes[earlier]
                    chars[word], flags[word] = chars[earlier], flags[earlier]
                    word += 1
                continue
            recent_hashes[entry], recent_firsts[entry] = chunk_hashes[chunk], word
            first = word
            top = len(starts)  # suffixes wait at the end of the arrays, the last one found first
            is_cut = False  # the chunk as a whole is no special case
            while start < stop:
                slot = _slot_of_bytes(data, start, stop, keys, sieve) if is_cut else np.int64(-1)
                if slot >= 0:
                    break
                is_cut = True
                prefix = prefix_bytes(data, start, stop, signs)
                suffix = np.int64(0)
                if prefix > 0:
                    slot = _slot_of_bytes(data, start + prefix, stop, keys, sieve)
                    if slot < 0:
                        suffix = np.int64(suffix_bytes(data, start + prefix, stop, signs, units))
                        slot = _slot_of_bytes(data, start, stop - suffix, keys, sieve) if suffix > 0 else slot
                        prefix = 0 if slot >= 0 else prefix
                    if prefix > 0:
                        word = write_word(data, start, start + prefix, classes, word, starts, lengths, hashes, chars, flags)
                        start += prefix
                        if slot >= 0:
                            break
                else:
                    suffix = np.int64(suffix_bytes(data, start, stop, signs, units))
                if suffix > 0:
                    top -= 1
                    stop -= suffix
                    starts[top], lengths[top] = stop, suffix
                elif prefix == 0:
                    break
                if slot >= 0:
                    break
            if slot >= 0 and start < stop:
                word = _write_parts(data, start, slot, sizes, classes, word, starts, lengths, hashes, chars, flags)
            elif start < stop:
                word = _write_infixes(data, start, stop, classes, signs, word, starts, lengths, hashes, chars, flags)
            while top < len(starts):
                begin, size = starts[top], lengths[top]
                word = write_word(data, begin, begin + size, classes, word, starts, lengths, hashes, chars, flags)
                top += 1
            if _may_be_split(first, word, hashes, pairs):
                word = _join_split(data, classes, wholes, first, word, starts, lengths, hashes, chars, flags)
            recent_stops[entry] = word
        doc_offsets[doc + 1] = word
    return int(word)


@inline
def _is_chunk(data, start, stop, first, last, starts, lengths) -> Any:
    """Whether the words [first, last) have the bytes [start, stop) together."""
    if first == last:
        return False
    begin = starts[first]
    if starts[last - 1] + lengths[last - 1] - begin != stop - start:
        return False
    for offset in range(stop - start):
        if data[begin + offset] != data[start + offset]:
            return False
    return True


@inline
def slot_of_hash(keys, sieve, key) -> Any:
    """The slot of the special case with this hash, or -1."""
    bit = np.int64(key >> _SIEVE_SHIFT)
    if not (sieve[bit >> 3] >> np.uint8(bit & 7)) & 1:
        return np.int64(-1)
    return slot_of_key(keys, len(keys), key)


@inline
def _slot_of_bytes(data, start, stop, keys, sieve) -> Any:
    if stop - start > _LONGEST_WHOLE or stop <= start:
        return np.int64(-1)
    return slot_of_hash(keys, sieve, hash_bytes(data, start, stop))


@inline
def _write_parts(data, start, slot, sizes, classes, word, starts, lengths, hashes, chars, flags) -> Any:
    """Writes the parts of a contraction, or the single part of a string kept whole."""
    for part in range(sizes.shape[1]):
        if sizes[slot, part] == 0:
            break
        word = write_word(data, start, start + sizes[slot, part], classes, word, starts, lengths, hashes, chars, flags)
        start += sizes[slot, part]
    return word


@inline
def _write_infixes(data, start, stop, classes, signs, word, starts, lengths, hashes, chars, flags) -> Any:
    """Writes the bytes between prefixes and suffixes, split at the signs inside."""
    offset, begin, before, checked = start, start, np.uint16(0), False
    while offset < stop:
        code, size = decode(data, offset, stop)
        cut = infix_bytes(data, offset, size, code, before, stop, signs)
        if cut > 0 and not checked:
            checked = True
            if is_address(data, start, stop, signs):
                break
        if cut > 0 and offset > start:
            if offset > begin:
                word = write_word(data, begin, offset, classes, word, starts, lengths, hashes, chars, flags)
            word = write_word(data, offset, offset + cut, classes, word, starts, lengths, hashes, chars, flags)
            begin = offset + cut
        before = signs[code]
        offset += cut if cut > 0 else size
    return write_word(data, begin, stop, classes, word, starts, lengths, hashes, chars, flags) if begin < stop else word


@inline
def _may_be_split(first, stop, hashes, pairs) -> Any:
    """Whether two of the words [first, stop) in a row may begin a special case."""
    for word in range(first, stop - 1):
        bit = np.int64((hashes[word] * _FACTOR + hashes[word + 1]) >> _SIEVE_SHIFT)
        if (pairs[bit >> 3] >> np.uint8(bit & 7)) & 1:
            return True
    return False


@inline
def _join_split(data, classes, wholes, first, stop, starts, lengths, hashes, chars, flags) -> Any:
    """Joins the words among [first, stop) that are the parts of special cases, and returns the new stop.

    Of special cases that overlap the one of most words counts, then the first. No special case gets more words than it had.
    """
    word, out = first, first
    while word < stop:
        size, slot = _split_case(data, wholes, word, stop, starts, lengths)
        for later in range(word + 1, min(word + size, stop)):
            if _split_case(data, wholes, later, stop, starts, lengths)[0] > size:
                size = 0
        if size > 0:
            out = _write_parts(data, starts[word], slot, wholes.sizes, classes, out, starts, lengths, hashes, chars, flags)
            word += size
            continue
        starts[out], lengths[out], hashes[out] = starts[word], lengths[word], hashes[word]
        chars[out], flags[out] = chars[word], flags[word]
        word, out = word + 1, out + 1
    return out


@inline
def _split_case(data, wholes, word, stop, starts, lengths) -> tuple[Any, Any]:
    """The most words from `word` on that are a special case, and its slot; (0, -1) for none."""
    size, best = np.int64(0), np.int64(-1)
    last = word + 1
    while last < stop and starts[last] + lengths[last] - starts[word] <= _LONGEST_WHOLE:
        key = hash_bytes(data, starts[word], starts[last] + lengths[last])
        slot = np.int64(slot_of_key(wholes.keys, len(wholes.keys), key))
        if slot >= 0 and wholes.num_tokens[slot] == last + 1 - word:
            size, best = last + 1 - word, slot
        last += 1
    return size, best
