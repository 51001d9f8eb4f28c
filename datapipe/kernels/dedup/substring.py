"""Repeated spans of `length` tokens or bytes: selects the grams by which spans are compared, and hashes their windows.

    bytes  ->  tokens  ->  chunks of `chunk_tokens` windows  ->  selected grams: the least hash of a gram in every window
                                                            ->  for some of them, the hashes of all windows that select them

A window is `length` consecutive tokens; a gram is a shorter run. Every window selects the gram inside it with the least
hash, the first of several (winnowing: Schleimer, Wilkerson and Aiken 2003). Equal windows select equal grams, so only
windows with the same selected gram are compared. Text of `length - gram + 2` tokens has two selected grams on average. The
span of a selected gram is the run of windows that selected it.

A token (`substring_tokens.py`) owns the bytes up to the next token. Chunks of long documents
overlap by one window less a token, so memory is bounded by the chunk.

Runs of tokens are hashed by differences of a prefix polynomial mod 2**64. Thue-Morse words of 1,024
tokens and more make such hashes collide; spans are shorter than that up to `MAX_LENGTH`.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.dedup.substring_tokens import TokenRules, find_tokens
from datapipe.kernels.hashing import mix64
from datapipe.kernels.text.unicode_classes import is_continuation
from datapipe.kernels.types import (
    Int64MatrixOut,
    Int64s,
    Int64sOut,
    UInt8s,
    UInt64MatrixOut,
    UInt64s,
    UInt64sOut,
    input_record,
    room_for,
)
from datapipe.rng import GOLDEN

MAX_LENGTH = 500
CHUNK_COLUMNS, GRAM_COLUMNS, REPEAT_COLUMNS = 4, 4, 3
"""Columns of the outputs. Chunk: document, number, start and stop byte. Selected gram: chunk, then
start byte, size in bytes and partial bytes of its span. Self-repeat: chunk, start and stop byte."""

SELF_REPEATED = 256
"""Added to the partial bytes of a selected gram whose span is repeated later in its chunk."""

_SLOTS = 1 << 12

_RADIX = np.uint64(0xD1342543DE82EF9B)
_GRAM = GOLDEN
_0, _1 = np.uint64(0), np.uint64(1)


class WindowSizes(NamedTuple):
    length: int  # tokens of a window
    gram: int  # tokens of a gram, at most `length`
    chunk_tokens: int  # windows of a chunk
    powers: UInt64s  # (2 * length + 1,), powers of the radix, for spans of windows


class GramSpans(NamedTuple):
    """Spans of selected grams in passages, (num_spans,) each: an input of kernels."""

    passages: Int64s  # int64; equal passages are adjacent
    # starts, sizes: bytes in the passage
    starts: Int64s
    sizes: Int64s
    grams: UInt64s  # the hash of the gram that the span belongs to


class Scratch(NamedTuple):
    """Buffers for one chunk: start bytes and hashes of tokens, prefix polynomial, and a queue of grams."""

    starts: Int64sOut
    hashes: UInt64sOut
    prefix: UInt64sOut
    queue_tokens: Int64sOut
    queue_values: UInt64sOut


class SelectionOut(NamedTuple):
    chunks: Int64MatrixOut  # (max_chunks, CHUNK_COLUMNS); a document with fewer tokens than a window has none
    selected: Int64MatrixOut  # (max_selected, GRAM_COLUMNS); `max_selected` is at least `chunk_tokens`
    halves: UInt64MatrixOut  # (max_selected, 2): hash of the gram, hash of the span
    repeats: Int64MatrixOut  # (max_selected, REPEAT_COLUMNS), spans of whole characters


@lru_cache(maxsize=4)
def window_sizes(length: int, gram: int, chunk_tokens: int) -> WindowSizes:
    factors = np.full(2 * length + 1, _RADIX, np.uint64)
    factors[0] = 1
    return input_record(WindowSizes, (length, gram, chunk_tokens, np.cumprod(factors, dtype=np.uint64)))


def recent_grams() -> np.ndarray:
    """The table of recently selected grams for one call of `select_grams`: (num_slots,) int64, all -1."""
    return np.full(_SLOTS, -1, np.int64)


def scratch_for(sizes: WindowSizes) -> Scratch:
    return room_for(Scratch, sizes.chunk_tokens + sizes.length + 2)


@inline
def _sum_up(hashes, count, prefix) -> None:
    """Writes the prefix polynomial: `prefix[i]` is that of the first i hashes, for i from 0 to `count`."""
    prefix[0] = _0
    for token in range(count):
        prefix[token + 1] = prefix[token] * _RADIX + hashes[token]


@inline
def _partial_bytes(data, start, stop) -> Any:
    """Bytes in [start, stop) of characters that cross its ends: those at the start, plus 16 times those at the end."""
    front, back = np.int64(0), np.int64(1)
    while front < 3 and start + front < stop and is_continuation(data[start + front]):
        front += 1
    while back < 4 and stop - back > start and is_continuation(data[stop - back]):
        back += 1
    lead = data[stop - back]
    size = 4 if lead >= 0xF0 else (3 if lead >= 0xE0 else (2 if lead >= 0xC0 else 1))
    return front + 16 * (back if size > back else 0)


@inline
def _take_span(
    data, by_bytes, chunk, base, row, first, stop, starts, prefix, powers, half, recent, selected, halves, repeat
) -> Any:
    """Writes the span of tokens [first, stop) as a selected gram, or extends `repeat` where this chunk has an equal span;
    returns whether it wrote a gram. `half[0]`: the hash of the gram; `repeat`: first and stop token, and the number of
    self-repeats. With a record instead of arrays, selection is a tenth slower."""
    half[0] = mix64(half[0] ^ _GRAM)  # the least of many hashes is small; mixing spreads it over all 64 bits
    half[1] = mix64(prefix[stop] - prefix[first] * powers[stop - first])
    slot = np.int64(half[0] & np.uint64(_SLOTS - 1))
    earlier = recent[slot]
    if earlier >= base and halves[earlier, 0] == half[0] and halves[earlier, 1] == half[1]:
        selected[earlier, 3] |= SELF_REPEATED
        repeat[0], repeat[1] = first if repeat[0] < 0 else repeat[0], stop
        return False
    recent[slot] = row
    halves[row, 0], halves[row, 1] = half[0], half[1]
    selected[row, 0], selected[row, 1], selected[row, 2] = chunk, starts[first], starts[stop] - starts[first]
    selected[row, 3] = _partial_bytes(data, starts[first], starts[stop]) if by_bytes else 0
    return True


@inline
def _end_repeat(data, by_bytes, chunk, starts, repeat, repeats) -> None:
    if repeat[0] >= 0:
        start, stop = starts[repeat[0]], starts[repeat[1]]
        partial = _partial_bytes(data, start, stop) if by_bytes else 0
        repeats[repeat[2], 0], repeats[repeat[2], 1], repeats[repeat[2], 2] = chunk, start + partial % 16, stop - partial // 16
        repeat[0] = -1
        repeat[2] += 1


@inline
def _push(queued, values, head, tail, token, value) -> Any:
    """Appends a gram to the queue [head, tail) without the queued grams of greater values; returns the new tail."""
    while tail > head and values[tail - 1] > value:
        tail -= 1
    queued[tail], values[tail] = token, value
    return tail + 1


@inline
def _winnow(data, by_bytes, chunk, count, windows, scratch, recent, base, half, repeat, out) -> Any:
    """Writes the selected grams of the windows of `count` tokens behind row `base`, and returns the number of rows then."""
    length, gram, powers = windows.length, windows.gram, windows.powers
    rows, halves, repeats = out.selected, out.halves, out.repeats
    starts, prefix, queued, values = scratch.starts, scratch.prefix, scratch.queue_tokens, scratch.queue_values
    num_rows, head, tail, window_grams = base, np.int64(0), np.int64(0), length - gram + 1
    current, first, chosen = np.int64(-1), np.int64(0), _0
    for token in range(count - gram + 2):
        is_end = token > count - gram
        if not is_end:
            value = mix64(prefix[token + gram] - prefix[token] * powers[gram])
            tail = _push(queued, values, head, tail, token, value)
        window = token - window_grams + 1
        if window < 0:
            continue
        if not is_end and queued[head] < window:
            head += 1
        if not is_end and queued[head] == current:
            continue
        if current >= 0:
            half[0] = chosen
            stop = window - 1 + length
            is_selected = _take_span(
                data, by_bytes, chunk, base, num_rows, first, stop, starts, prefix, powers, half, recent, rows, halves, repeat
            )
            if is_selected:
                _end_repeat(data, by_bytes, chunk, starts, repeat, repeats)
                num_rows += 1
        if not is_end:
            current, first, chosen = queued[head], window, values[head]
    _end_repeat(data, by_bytes, chunk, starts, repeat, repeats)
    return num_rows


@kernel
def select_grams(
    offsets: Int64s,
    data: UInt8s,
    rules: TokenRules,
    windows: WindowSizes,
    scratch: Scratch,  # `scratch_for(windows)`
    recent: Int64sOut,  # `recent_grams()`
    # (5,): document, byte and number of the next chunk (read and updated); chunks and self-repeats written
    state: Int64sOut,
    out: SelectionOut,
) -> int:
    """Writes chunks and their grams, until a chunk does not fit; returns the number of grams.

    A span equal to an earlier span of its chunk becomes a self-repeat, as far as the table `recent`
    remembers: a text that repeats itself would otherwise select a gram for every token. Adjacent
    self-repeats are merged. `scratch`, `recent`: `scratch_for(windows)`, `recent_grams()`. `state`: (5,):
    document, byte and number of the next chunk (read and updated); chunks and self-repeats written.
    """
    by_bytes, length, chunk_tokens = rules.by_bytes, windows.length, windows.chunk_tokens
    starts, hashes, chunks = scratch.starts, scratch.hashes, out.chunks
    num_chunks, num_selected, limit = np.int64(0), np.int64(0), chunk_tokens + length
    half, repeat = np.zeros(2, np.uint64), np.zeros(3, np.int64)
    repeat[0] = -1
    doc, position, number = state[0], state[1], state[2]
    while doc < len(offsets) - 1 and num_chunks < len(chunks) and num_selected + chunk_tokens <= len(out.selected):
        stop = offsets[doc + 1]
        count = find_tokens(data, position, stop, rules, limit, starts, hashes)
        continues = count == limit
        count -= continues
        next_position = starts[chunk_tokens] if continues else stop
        if count >= length:
            starts[0] = position
            if not continues:
                starts[count] = stop
            _sum_up(hashes, count, scratch.prefix)
            chunks[num_chunks, 0], chunks[num_chunks, 1], chunks[num_chunks, 2] = doc, number, position
            chunks[num_chunks, 3] = starts[count]
            num_selected = _winnow(data, by_bytes, num_chunks, count, windows, scratch, recent, num_selected, half, repeat, out)
            num_chunks += 1
        doc, number = (doc, number + 1) if continues else (doc + 1, np.int64(0))
        position = next_position
    state[0], state[1], state[2], state[3], state[4] = doc, position, number, num_chunks, repeat[2]
    return int(num_selected)


@kernel
def hash_windows(
    # offsets, data: passages, which are the texts of chunks as `select_grams` writes them; the
    # spans are in them
    # offsets, data: passages, which are the texts of chunks as `select_grams` writes them; the spans are in
    # them
    offsets: Int64s,
    data: UInt8s,
    rules: TokenRules,
    sizes: WindowSizes,
    spans: GramSpans,
    scratch: Scratch,
    # (num_windows, 3): span, start byte in the passage and size in bytes, of whole characters
    # (num_windows, 3): span, start byte in the passage and size in bytes, of whole characters
    windows: Int64MatrixOut,
    # (num_windows, 2), the hash of each window; the first half depends on the gram too
    # (num_windows, 2), the hash of each window; the first half depends on the gram too
    halves: UInt64MatrixOut,
) -> int:
    """Writes the hashes of all windows of the spans; returns the number of windows."""
    by_bytes, length, starts, prefix = rules.by_bytes, sizes.length, scratch.starts, scratch.prefix
    num_windows, before, count = np.int64(0), np.int64(-1), np.int64(0)
    for span in range(len(spans.passages)):
        passage = spans.passages[span]
        begin, stop = offsets[passage], offsets[passage + 1]
        if passage != before:
            before = passage
            count = find_tokens(data, begin, stop, rules, len(starts) - 2, starts, scratch.hashes)
            starts[0], starts[count] = begin, stop
            _sum_up(scratch.hashes, count, prefix)
        first = np.searchsorted(starts[:count], begin + spans.starts[span])
        end = begin + spans.starts[span] + spans.sizes[span]
        while first + length <= count and starts[first + length] <= end:
            start, size = starts[first], starts[first + length] - starts[first]
            partial = _partial_bytes(data, start, start + size) if by_bytes else 0
            windows[num_windows, 0], windows[num_windows, 1] = span, start + partial % 16 - begin
            windows[num_windows, 2] = size - partial % 16 - partial // 16
            halves[num_windows, 1] = mix64(prefix[first + length] - prefix[first] * sizes.powers[length])
            halves[num_windows, 0] = mix64(spans.grams[span] + mix64(halves[num_windows, 1] ^ _GRAM))
            num_windows += 1
            first += 1
    return int(num_windows)
