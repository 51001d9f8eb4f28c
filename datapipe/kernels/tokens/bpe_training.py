"""Training of byte-pair encoding: from counted words to the merges, the most frequent pair first.

    words, counts ──▶ pairs with their counts, and the words that hold them ──▶ heap
                                    ▲                                             │ most frequent pair; of equal ones the least
                                    └── pairs that the new token forms ◀── merged in its words ──▶ one merge

A pair that leaves the heap with an old count goes back with the new one, so each merge costs what changes.

The algorithm, and every tie, is that of Hugging Face `tokenizers` (`models/bpe/trainer.rs`, Sennrich et al. 2016): a pair
that overlaps itself merges from the left, two pairs that spell one token share its id, and the count of a merged pair stays
and is added to where such a pair forms again. Counts have 64 bits here, and 32 there.
"""

from heapq import heappop, heappush, heapreplace
from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import hash_bytes, mix64
from datapipe.kernels.types import Int32sOut, Int64s, UInt8s

_32 = np.uint64(32)
_PAIRS, _ENTRIES, _TOUCHED, _NEIGHBOURS = 0, 1, 2, 3
"""Of `sizes`: pairs seen, entries of their lists, pairs of this merge, tokens before, after."""

_FIRST_ROOM = 1 << 12


@inline
def _longer(array) -> Any:
    longer = np.empty(2 * len(array), array.dtype)
    longer[: len(array)] = array
    return longer


@inline
def _pair_of(a, b) -> Any:
    return np.uint64(a) << _32 | np.uint64(b)


@inline
def _slot_of(pair, slots, pairs) -> Any:
    mask = np.uint64(len(slots) - 1)
    slot = mix64(pair) & mask
    while slots[slot] >= 0 and pairs[slots[slot]] != pair:
        slot = (slot + np.uint64(1)) & mask
    return slot


@inline
def _more_slots(slots, pairs, num_pairs) -> Any:
    more = np.full(2 * len(slots), -1, np.int32)
    for number in range(num_pairs):
        more[_slot_of(pairs[number], more, pairs)] = number
    return more


@inline
def _number_of(pair, slots, pairs, pair_counts, heads, rounds, sizes) -> Any:
    """The number of a pair; a new one where it was never seen."""
    slot = _slot_of(pair, slots, pairs)
    number = slots[slot]
    if number < 0:
        number = np.int32(sizes[_PAIRS])
        sizes[_PAIRS] += 1
        slots[slot], pairs[number] = number, pair
        pair_counts[number], heads[number], rounds[number] = 0, -1, -1
    return number


@inline
def _note_word(lists, place, word, words_of, following, sizes) -> None:
    """Adds a word to the list that begins at `lists[place]`, if it was not the last to be added."""
    head = lists[place]
    if head < 0 or words_of[head] != word:
        entry = sizes[_ENTRIES]
        sizes[_ENTRIES] += 1
        words_of[entry], following[entry], lists[place] = word, head, entry


@inline
def _touch(number, rounds, now, touched, sizes) -> None:
    if rounds[number] != now:
        rounds[number] = now
        touched[sizes[_TOUCHED]] = number
        sizes[_TOUCHED] += 1


@inline
def _note_neighbour(side, symbol, count, word, sums, lists, neighbours, words_of, following, sizes) -> None:
    """Adds a token beside a merged pair to the sums of its side."""
    place = side * (len(sums) >> 1) + symbol
    if sums[place] == 0:
        lists[place] = -1
        neighbours[side * (len(sums) >> 1) + sizes[_NEIGHBOURS + side]] = symbol
        sizes[_NEIGHBOURS + side] += 1
    sums[place] += count
    _note_word(lists, place, word, words_of, following, sizes)


@kernel
def join_pairs(
    offsets: Int64s, symbols: Int32sOut, counts: Int64s, letters: UInt8s, limit: int, min_count: int, merges: Int32sOut
) -> int:
    """Joins pairs until there are `limit` tokens, or no pair occurs `min_count` times. Returns the
    number of merges; -1 where `merges` has no room for all.

    Args:
        offsets: (num_words + 1,) int64, of the words in `symbols`.
        symbols: (num_bytes,) int32, the ids of the bytes of the words, from 1 on; overwritten.
        counts: (num_words,) int64, how often each word occurs.
        letters: (num_letters,) uint8, the byte of each id from 1 on. New tokens get the ids behind.
        limit: ids in all, with 0.
        merges: (3 * most merges,) int32 output: left, right and joined id of each.
    """
    num_words, num_tokens, num_merges = len(counts), len(letters) + 1, 0
    lengths = np.empty(num_words, np.int64)
    slots = np.full(2 * _FIRST_ROOM, -1, np.int32)
    pairs, pair_counts = np.empty(_FIRST_ROOM, np.uint64), np.empty(_FIRST_ROOM, np.int64)
    heads, rounds, touched = np.empty(_FIRST_ROOM, np.int64), np.empty(_FIRST_ROOM, np.int64), np.empty(_FIRST_ROOM, np.int32)
    words_of, following = np.empty(_FIRST_ROOM, np.int32), np.empty(_FIRST_ROOM, np.int64)
    heap: list[Any] = [(np.int64(0), np.uint64(0), np.int32(0)) for _ in range(0)]  # empty, of a type that is known
    sizes = np.zeros(_NEIGHBOURS + 2, np.int64)
    sums, lists, neighbours = np.zeros(2 * limit, np.int64), np.empty(2 * limit, np.int64), np.empty(2 * limit, np.int32)

    spelling = np.empty(_FIRST_ROOM, np.uint8)
    spelled = np.zeros(2, np.int64)  # where the spelling of each token begins, by id
    token_slots = np.full(2 * _FIRST_ROOM, -1, np.int32)
    for token in range(1, num_tokens):
        spelling[token - 1] = letters[token - 1]
        if token + 1 >= len(spelled):
            spelled = _longer(spelled)
        spelled[token + 1] = token
        slot = _token_slot(spelling, token - 1, token, token_slots, spelled)
        token_slots[slot] = token
    end = num_tokens - 1

    for word in range(num_words):
        start, stop = offsets[word], offsets[word + 1]
        lengths[word] = stop - start
        while sizes[_PAIRS] + stop - start > len(pairs):
            slots = _more_slots(slots, pairs, sizes[_PAIRS])
            pairs, pair_counts, heads = _longer(pairs), _longer(pair_counts), _longer(heads)
            rounds, touched = _longer(rounds), _longer(touched)
        while sizes[_ENTRIES] + stop - start > len(words_of):
            words_of, following = _longer(words_of), _longer(following)
        for place in range(start, stop - 1):
            pair = _pair_of(symbols[place], symbols[place + 1])
            number = _number_of(pair, slots, pairs, pair_counts, heads, rounds, sizes)
            pair_counts[number] += counts[word]
            _note_word(heads, number, word, words_of, following, sizes)
            _touch(number, rounds, 0, touched, sizes)

    now = 0
    while True:
        for place in range(sizes[_TOUCHED]):
            number = touched[place]
            if pair_counts[number] > 0:
                heappush(heap, (-pair_counts[number], pairs[number], number))
        sizes[_TOUCHED] = 0
        if num_tokens >= limit or len(heap) == 0:
            return num_merges
        count, pair, number = heap[0]
        if -count != pair_counts[number]:
            heapreplace(heap, (-pair_counts[number], pair, number))
            continue
        if -count < max(1, min_count):
            return num_merges
        heappop(heap)
        entry = heads[number]
        if entry < 0:  # it was in the heap twice, and has merged
            continue
        heads[number] = -1
        left, right = np.int32(pair >> _32), np.int32(pair & np.uint64(0xFFFFFFFF))

        while end + (spelled[left + 1] - spelled[left]) + (spelled[right + 1] - spelled[right]) > len(spelling):
            spelling = _longer(spelling)
        stop = end
        for part in (left, right):
            for place in range(spelled[part], spelled[part + 1]):
                spelling[stop] = spelling[place]
                stop += 1
        slot = _token_slot(spelling, end, stop, token_slots, spelled)
        joined = token_slots[slot]
        if joined < 0:
            joined = np.int32(num_tokens)
            token_slots[slot] = joined
            num_tokens += 1
            if num_tokens >= len(spelled):
                spelled = _longer(spelled)
            spelled[num_tokens] = stop
            end = stop
            if 2 * num_tokens > len(token_slots):
                token_slots = np.full(2 * len(token_slots), -1, np.int32)
                for token in range(1, num_tokens):
                    token_slots[_token_slot(spelling, spelled[token], spelled[token + 1], token_slots, spelled)] = token
        if 3 * num_merges + 3 > len(merges):
            return -1
        merges[3 * num_merges], merges[3 * num_merges + 1], merges[3 * num_merges + 2] = left, right, joined
        num_merges += 1

        while entry >= 0:
            word, entry = words_of[entry], following[entry]
            while sizes[_ENTRIES] + 2 * lengths[word] > len(words_of):
                words_of, following = _longer(words_of), _longer(following)
            lengths[word] = _merge_in_word(
                word, offsets[word], lengths[word], left, right, joined, counts[word], symbols, sums, lists, neighbours,
                words_of, following, sizes,
            )  # fmt: skip
        while sizes[_PAIRS] + 2 * (sizes[_NEIGHBOURS] + sizes[_NEIGHBOURS + 1]) > len(pairs):
            slots = _more_slots(slots, pairs, sizes[_PAIRS])
            pairs, pair_counts, heads = _longer(pairs), _longer(pair_counts), _longer(heads)
            rounds, touched = _longer(rounds), _longer(touched)
        now += 1
        for side in range(2):
            for place in range(sizes[_NEIGHBOURS + side]):
                neighbour = neighbours[side * limit + place]
                gone = _pair_of(right, neighbour) if side else _pair_of(neighbour, left)
                formed = _pair_of(joined, neighbour) if side else _pair_of(neighbour, joined)
                total, sums[side * limit + neighbour] = sums[side * limit + neighbour], 0
                pair_counts[_number_of(gone, slots, pairs, pair_counts, heads, rounds, sizes)] -= total
                number = _number_of(formed, slots, pairs, pair_counts, heads, rounds, sizes)
                pair_counts[number] += total
                heads[number] = _joined_lists(lists[side * limit + neighbour], heads[number], following)
                _touch(number, rounds, now, touched, sizes)
            sizes[_NEIGHBOURS + side] = 0


@inline
def _joined_lists(head, other, following) -> Any:
    """The list that begins at `head` with the entries of another behind its own. There are others where a pair forms again."""
    if other >= 0:
        last = head
        while following[last] >= 0:
            last = following[last]
        following[last] = other
    return head


@inline
def _merge_in_word(
    word, start, length, left, right, joined, count, symbols, sums, lists, neighbours, words_of, following, sizes
) -> Any:
    """Merges a pair wherever a word holds it, from the left, and sums up what stands beside it; the new length of the word."""
    place, kept = 0, 0
    while place < length:
        symbol = symbols[start + place]
        if symbol != left or place + 1 >= length or symbols[start + place + 1] != right:
            symbols[start + kept] = symbol
            place, kept = place + 1, kept + 1
            continue
        if kept > 0:
            _note_neighbour(0, symbols[start + kept - 1], count, word, sums, lists, neighbours, words_of, following, sizes)
        place += 2
        if place < length:
            _note_neighbour(1, symbols[start + place], count, word, sums, lists, neighbours, words_of, following, sizes)
        symbols[start + kept] = joined
        kept += 1
    return kept


@inline
def _token_slot(spelling, start, stop, token_slots, spelled) -> Any:
    """The slot of the token that is spelled by the bytes [start, stop) of `spelling`, or the free one where it belongs."""
    mask = np.uint64(len(token_slots) - 1)
    slot = hash_bytes(spelling, start, stop) & mask
    while token_slots[slot] >= 0:
        first, last = spelled[token_slots[slot]], spelled[token_slots[slot] + 1]
        if last - first == stop - start:
            place = 0
            while place < stop - start and spelling[first + place] == spelling[start + place]:
                place += 1
            if place == stop - start:
                break
        slot = (slot + np.uint64(1)) & mask
    return slot
