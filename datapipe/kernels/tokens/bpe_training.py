"""Training of byte-pair encoding: from counted words to the merges, the most frequent pair first.

    words, counts ──▶ pairs with their counts, and the words that hold them ──▶ heap
                                    ▲                                             │ most frequent pair; of equal ones the least
                                    └── pairs that the new token forms ◀── merged in its words ──▶ one merge

A pair that leaves the heap with an old count goes back with the new one, so each merge costs what changes.

Most time goes into fetching words that are far apart in memory. So a word lies beside its length and its count, and the
words of a pair are listed one after the other, so that several are fetched at once. Chained lists, with lengths, counts and
tokens in separate arrays, took three times as long (4.1 s instead of 1.3 for 426,000 words, 2026-11).

The algorithm, and every tie, is that of Hugging Face `tokenizers` (`models/bpe/trainer.rs`, Sennrich et al. 2016): a pair
that overlaps itself merges from the left, two pairs that spell one token share its id, and the count of a merged pair stays
and is added to where such a pair forms again. Counts have 64 bits here, and 32 there.
"""

from heapq import heappop, heappush, heapreplace
from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import hash_bytes, mix64
from datapipe.kernels.tokens.memory import prefetch
from datapipe.kernels.types import Int32sOut, Int64s, UInt8s

_HEAD = 3
"""Numbers before the tokens of a word: how many tokens it has, and the halves of its count, the lower one first."""

_LOWER_HALF = 0xFFFFFFFF
_PAIR, _COUNT, _START, _STOP = 0, 1, 2, 3
"""Of `pairs`, for each pair, in half a cache line: its ids, its count, and the part of `listed` that has its words."""

_PAIRS, _TOUCHED, _EVENTS, _NEIGHBOURS = 0, 1, 2, 3
"""Of `sizes`: pairs seen, pairs of this merge, tokens beside it, and different ones of these before and after."""

_SUM, _NUMBER, _LAST, _END = 0, 1, 2, 3
"""Of `beside`, for each token before and after a merged pair: the sum of counts, the number of words that hold it there, the
last of these, and the end of the part of `listed` that has them."""

_FIRST_ROOM = 1 << 12
_AHEAD = 8  # words that are fetched before they are merged: 16 take as long, none a third longer
_USUAL_BYTES = 28  # of the head of a word and its first tokens, which half of the words have in two cache lines


@inline
def _longer(array) -> Any:
    longer = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


@inline
def _pair_of(a, b) -> Any:
    return np.int64(a) << 32 | np.int64(b)


@inline
def _pairs_beside(behind, neighbour, left, right, joined) -> Any:
    """The pairs of a token behind a merged pair, or before it, that are gone and that are formed."""
    if behind:
        return _pair_of(right, neighbour), _pair_of(joined, neighbour)
    return _pair_of(neighbour, left), _pair_of(neighbour, joined)


@inline
def _first_slot(pair, slots) -> Any:
    return mix64(np.uint64(pair)) & np.uint64(len(slots) - 1)


@inline
def _slot_of(pair, slots, pairs) -> Any:
    mask = np.uint64(len(slots) - 1)
    slot = _first_slot(pair, slots)
    while slots[slot] >= 0 and pairs[slots[slot], _PAIR] != pair:
        slot = (slot + np.uint64(1)) & mask
    return slot


@inline
def _more_slots(slots, pairs, num_pairs) -> Any:
    more = np.full(2 * len(slots), -1, np.int32)
    for number in range(num_pairs):
        more[_slot_of(pairs[number, _PAIR], more, pairs)] = number
    return more


@inline
def _number_of(pair, slots, pairs, sizes) -> Any:
    """The number of a pair; a new one where it was never seen."""
    slot = _slot_of(pair, slots, pairs)
    number = slots[slot]
    if number < 0:
        number = np.int32(sizes[_PAIRS])
        sizes[_PAIRS] += 1
        slots[slot], pairs[number, _PAIR] = number, pair
        pairs[number, _COUNT], pairs[number, _START], pairs[number, _STOP] = 0, 0, 0
    return number


@inline
def _fetch_pair(pair, slots, pairs) -> None:
    """Fetches what the first slot of a pair leads to: its own numbers, but for those behind another pair."""
    number = np.int64(slots[_first_slot(pair, slots)])
    if number >= 0:
        prefetch(pairs.ctypes.data + pairs.itemsize * 4 * number)


@inline
def _touch(number, touched, sizes) -> None:
    touched[sizes[_TOUCHED]] = number
    sizes[_TOUCHED] += 1


@inline
def _count_of(word, words) -> Any:
    return np.int64(words[word + 1]) | np.int64(words[word + 2]) << 32


@inline
def _laid_out(offsets, data, counts, ids) -> Any:
    """All words, each with its head, (num_bytes + _HEAD * num_words,) uint32."""
    words = np.empty(offsets[-1] - offsets[0] + _HEAD * len(counts), np.uint32)
    end = 0
    for word in range(len(counts)):
        words[end] = np.uint32(offsets[word + 1] - offsets[word])
        words[end + 1], words[end + 2] = np.uint32(counts[word] & _LOWER_HALF), np.uint32(counts[word] >> 32)
        end += _HEAD
        for place in range(offsets[word], offsets[word + 1]):
            words[end] = ids[data[place]]
            end += 1
    return words


@inline
def _count_bytes(words, side, sums, ends, last) -> None:
    """Sums up the counts of all pairs of bytes, and the words that hold each, (side * side,) int64 by the ids of the pair."""
    word = 0
    while word < len(words):
        count, stop = _count_of(word, words), word + _HEAD + np.int64(words[word])
        for place in range(word + _HEAD, stop - 1):
            pair = np.int64(words[place]) * side + np.int64(words[place + 1])
            sums[pair] += count
            if last[pair] != word:
                last[pair] = word
                ends[pair] += 1
        word = stop


@inline
def _list_words(words, side, ends, last) -> Any:
    """The words that hold each pair of bytes, pair after pair, each word once. `ends` gets the end of each pair's words."""
    total = 0
    for pair in range(len(ends)):
        total += ends[pair]
        ends[pair] = total - ends[pair]
    listed = np.empty(max(total, _FIRST_ROOM), np.int64)
    word = 0
    while word < len(words):
        stop = word + _HEAD + np.int64(words[word])
        for place in range(word + _HEAD, stop - 1):
            pair = np.int64(words[place]) * side + np.int64(words[place + 1])
            if last[pair] != word:
                last[pair] = word
                listed[ends[pair]] = word
                ends[pair] += 1
        word = stop
    return listed


@kernel
def join_pairs(
    offsets: Int64s, data: UInt8s, counts: Int64s, letters: UInt8s, limit: int, min_count: int, merges: Int32sOut
) -> int:
    """Joins pairs until there are `limit` tokens, or no pair occurs `min_count` times. Returns the
    number of merges; -1 where `merges` has no room for all.

    Args:
        offsets: (num_words + 1,) int64, of the words in `data`.
        counts: (num_words,) int64, how often each word occurs.
        letters: (num_letters,) uint8, the byte of each id from 1 on. New tokens get the ids behind.
        limit: ids in all, with 0.
        merges: (3 * most merges,) int32 output: left, right and joined id of each.
    """
    num_tokens, num_merges, side = len(letters) + 1, 0, len(letters) + 1
    ids = np.zeros(256, np.uint32)
    spelling = np.empty(_FIRST_ROOM, np.uint8)
    spelled = np.zeros(_FIRST_ROOM, np.int64)  # where the spelling of each token begins, by id
    token_slots = np.full(2 * _FIRST_ROOM, -1, np.int32)
    for token in range(1, num_tokens):
        ids[letters[token - 1]], spelling[token - 1], spelled[token + 1] = token, letters[token - 1], token
        token_slots[_token_slot(spelling, token - 1, token, token_slots, spelled)] = token
    end = num_tokens - 1

    words = _laid_out(offsets, data, counts, ids)
    first_sums, first_ends = np.zeros(side * side, np.int64), np.zeros(side * side, np.int64)
    _count_bytes(words, side, first_sums, first_ends, np.full(side * side, -1, np.int64))
    listed = _list_words(words, side, first_ends, np.full(side * side, -1, np.int64))
    num_listed = first_ends[-1]

    room = max(_FIRST_ROOM, side * side)
    slots = np.full(1 << 18, -1, np.int32)
    pairs, touched = np.empty((room, 4), np.int64), np.empty(room, np.int32)
    heap: list[Any] = [(np.int64(0), np.int64(0), np.int32(0)) for _ in range(0)]  # empty, of a type that is known
    sizes = np.zeros(_NEIGHBOURS + 2, np.int64)
    beside, neighbours = np.zeros((2 * limit, 4), np.int64), np.empty(2 * limit, np.int32)
    event_sides, event_words = np.empty(_FIRST_ROOM, np.int32), np.empty(_FIRST_ROOM, np.int64)

    for pair in range(side * side):
        start = first_ends[pair - 1] if pair else 0
        if first_ends[pair] > start:
            number = _number_of(_pair_of(pair // side, pair % side), slots, pairs, sizes)
            pairs[number, _COUNT], pairs[number, _START], pairs[number, _STOP] = first_sums[pair], start, first_ends[pair]
            _touch(number, touched, sizes)

    while True:
        for place in range(sizes[_TOUCHED]):
            number = touched[place]
            if pairs[number, _COUNT] > 0:
                heappush(heap, (-pairs[number, _COUNT], pairs[number, _PAIR], number))
        sizes[_TOUCHED] = 0
        if num_tokens >= limit or len(heap) == 0:
            return num_merges
        count, joint, number = heap[0]
        if -count != pairs[number, _COUNT]:
            heapreplace(heap, (-pairs[number, _COUNT], joint, number))
            continue
        if -count < max(1, min_count):
            return num_merges
        heappop(heap)
        start, stop = pairs[number, _START], pairs[number, _STOP]
        if start == stop:  # it was in the heap twice, as a pair of two equal tokens may be, and has merged
            continue
        pairs[number, _STOP] = start
        left, right = joint >> 32, joint & _LOWER_HALF

        while end + (spelled[left + 1] - spelled[left]) + (spelled[right + 1] - spelled[right]) > len(spelling):
            spelling = _longer(spelling)
        spelling_stop = end
        for part in (left, right):
            for place in range(spelled[part], spelled[part + 1]):
                spelling[spelling_stop] = spelling[place]
                spelling_stop += 1
        slot = _token_slot(spelling, end, spelling_stop, token_slots, spelled)
        joined = np.int64(token_slots[slot])
        if joined < 0:
            joined = np.int64(num_tokens)
            token_slots[slot] = joined
            num_tokens += 1
            if num_tokens >= len(spelled):
                spelled = _longer(spelled)
            spelled[num_tokens] = spelling_stop
            end = spelling_stop
            if 2 * num_tokens > len(token_slots):
                token_slots = np.full(2 * len(token_slots), -1, np.int32)
                for token in range(1, num_tokens):
                    token_slots[_token_slot(spelling, spelled[token], spelled[token + 1], token_slots, spelled)] = token
        if 3 * num_merges + 3 > len(merges):
            return -1
        merges[3 * num_merges], merges[3 * num_merges + 1], merges[3 * num_merges + 2] = left, right, joined
        num_merges += 1

        sizes[_EVENTS] = 0
        for place in range(start, stop):
            word = listed[place]
            ahead = words.ctypes.data + words.itemsize * listed[min(place + _AHEAD, stop - 1)]
            prefetch(ahead)
            prefetch(ahead + _USUAL_BYTES)
            while sizes[_EVENTS] + np.int64(words[word]) > len(event_words):
                event_sides, event_words = _longer(event_sides), _longer(event_words)
            _merge_in_word(
                word, left, right, joined, limit, words, beside, neighbours, event_sides, event_words, sizes
            )  # fmt: skip
        while sizes[_PAIRS] + 2 * (sizes[_NEIGHBOURS] + sizes[_NEIGHBOURS + 1]) > len(pairs):
            pairs, touched = _longer(pairs), _longer(touched)
        while 2 * len(pairs) > len(slots):
            slots = _more_slots(slots, pairs, sizes[_PAIRS])
        for behind in range(2):
            for place in range(behind * limit, behind * limit + sizes[_NEIGHBOURS + behind]):
                gone, formed = _pairs_beside(behind, neighbours[place], left, right, joined)
                prefetch(slots.ctypes.data + slots.itemsize * np.int64(_first_slot(gone, slots)))
                prefetch(slots.ctypes.data + slots.itemsize * np.int64(_first_slot(formed, slots)))
            for place in range(behind * limit, behind * limit + sizes[_NEIGHBOURS + behind]):
                gone, formed = _pairs_beside(behind, neighbours[place], left, right, joined)
                _fetch_pair(gone, slots, pairs)
                _fetch_pair(formed, slots, pairs)
            for place in range(behind * limit, behind * limit + sizes[_NEIGHBOURS + behind]):
                gone, formed = _pairs_beside(behind, neighbours[place], left, right, joined)
                of_side = behind * limit + neighbours[place]
                pairs[_number_of(gone, slots, pairs, sizes), _COUNT] -= beside[of_side, _SUM]
                number = _number_of(formed, slots, pairs, sizes)
                pairs[number, _COUNT] += beside[of_side, _SUM]
                _touch(number, touched, sizes)
                start, stop = pairs[number, _START], pairs[number, _STOP]
                known = stop - start  # words of a pair that forms again
                while num_listed + known + beside[of_side, _NUMBER] > len(listed):
                    listed = _longer(listed)
                for known_place in range(known):
                    listed[num_listed + known_place] = listed[start + known_place]
                pairs[number, _START], beside[of_side, _END] = num_listed, num_listed + known
                num_listed += known + beside[of_side, _NUMBER]
                pairs[number, _STOP], beside[of_side, _SUM], beside[of_side, _NUMBER] = num_listed, 0, 0
            for event in range(sizes[_EVENTS]):
                of_side = event_sides[event]
                if of_side >= limit if behind else of_side < limit:
                    listed[beside[of_side, _END]] = event_words[event]
                    beside[of_side, _END] += 1
            sizes[_NEIGHBOURS + behind] = 0


@inline
def _merge_in_word(word, left, right, joined, limit, words, beside, neighbours, event_sides, event_words, sizes) -> None:
    """Merges a pair wherever a word holds it, from the left, and sums up what stands beside it."""
    length, first, count = np.int64(words[word]), word + _HEAD, _count_of(word, words)
    place, kept = 0, 0
    while place < length:
        symbol = words[first + place]
        if symbol != left or place + 1 >= length or words[first + place + 1] != right:
            words[first + kept] = symbol
            place, kept = place + 1, kept + 1
            continue
        if kept > 0:
            before = np.int64(words[first + kept - 1])
            _note_neighbour(0, before, count, word, limit, beside, neighbours, event_sides, event_words, sizes)
        place += 2
        if place < length:
            behind = np.int64(words[first + place])
            _note_neighbour(1, behind, count, word, limit, beside, neighbours, event_sides, event_words, sizes)
        words[first + kept] = joined
        kept += 1
    words[word] = kept


@inline
def _note_neighbour(side, symbol, count, word, limit, beside, neighbours, event_sides, event_words, sizes) -> None:
    """Adds a token beside a merged pair to the sums of its side, and the word to those that hold it there."""
    place = side * limit + symbol
    if beside[place, _NUMBER] == 0:
        beside[place, _LAST] = -1
        neighbours[side * limit + sizes[_NEIGHBOURS + side]] = symbol
        sizes[_NEIGHBOURS + side] += 1
    beside[place, _SUM] += count
    if beside[place, _LAST] != word:
        beside[place, _LAST] = word
        beside[place, _NUMBER] += 1
        event_sides[sizes[_EVENTS]], event_words[sizes[_EVENTS]] = place, word
        sizes[_EVENTS] += 1


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
