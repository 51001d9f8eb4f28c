"""Spans of `length` tokens or bytes that are repeated: where to look for them, and their exact hashes where it pays to look.

    bytes  ->  tokens  ->  pieces of `piece_tokens` windows  ->  anchors: the least hash of a gram in every window
                                                            ->  at some anchors, the hashes of all windows that chose them

A window is `length` tokens in a row; a gram is a shorter run. Every window chooses the gram inside it whose hash is least, the
first of several (winnowing: Schleimer, Wilkerson and Aiken 2003), so windows that are equal choose equal grams, and it is
enough to compare windows whose anchors meet. Neighbours mostly choose the same gram: 2 anchors for length - gram + 2 tokens of
text, and each holds the run of windows that chose it, its span.

A token is a byte, or as `substring_tokens` has it. It owns the bytes up to the next one, so what is cut ends where the next
token begins.
Long documents are worked at piece by piece, which overlap by a window less a token, so memory is that of a piece.

Runs of tokens are hashed by differences of a prefix polynomial mod 2**64. Such hashes fail on words made for it, of 1,024
tokens and more (Thue-Morse); spans are below that for lengths up to `MAX_LENGTH`.

One core of a 2-core AMD EPYC lists tokens at 160 MB/s of web text, and selects anchors at 120 (of bytes: 64).
"""

from __future__ import annotations

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
    UInt8sOut,
    UInt64MatrixOut,
    UInt64s,
    UInt64sOut,
    input_record,
)
from datapipe.rng import GOLDEN

MAX_LENGTH = 500
NUM_PIECE, NUM_ANCHOR, NUM_ECHO = 4, 4, 3
"""Columns: document, number, first byte and last of a piece; piece, first byte, bytes and trims of an anchor's span; piece,
first byte and last of an echo."""

ECHOED = 256
"""Added to the trims of an anchor that has an echo in its piece."""

_SLOTS = 1 << 12

_RADIX = np.uint64(0xD1342543DE82EF9B)
_GRAM = GOLDEN
_0, _1 = np.uint64(0), np.uint64(1)


class WindowSizes(NamedTuple):
    """How tokens are taken together, an input of kernels.

    Attributes:
        length: tokens of a window.
        gram: tokens of a gram, at most `length`.
        piece_tokens: windows of a piece.
        powers: (2 * length + 1,) uint64, the powers of the radix that spans of windows need.
    """

    length: int
    gram: int
    piece_tokens: int
    powers: UInt64s


class AnchorSpans(NamedTuple):
    """Spans of anchors in passages, an input of kernels.

    Attributes:
        passages: (num_spans,) int64, the passage of each span, equal ones side by side.
        starts: (num_spans,) int64, its first byte in the passage.
        sizes: (num_spans,) int64, its bytes.
        grams: (num_spans,) uint64, the hash by which its anchor was met.
    """

    passages: Int64s
    starts: Int64s
    sizes: Int64s
    grams: UInt64s


class Scratch(NamedTuple):
    """Room for the tokens of a piece: its first bytes and hashes; the polynomial of the hashes; a queue of grams."""

    starts: Int64sOut
    hashes: UInt64sOut
    prefix: UInt64sOut
    queue_tokens: Int64sOut
    queue_values: UInt64sOut


class AnchorsOut(NamedTuple):
    """What `select_anchors` writes, in columns as told above.

    Attributes:
        pieces: (num_pieces, NUM_PIECE) int64; of documents of fewer tokens than a window there is none.
        anchors: (num_anchors, NUM_ANCHOR) int64, at least `piece_tokens` of them.
        halves: (num_anchors, 2) uint64: hash of the gram, hash of the span.
        echoes: (num_anchors, NUM_ECHO) int64, of whole characters.
    """

    pieces: Int64MatrixOut
    anchors: Int64MatrixOut
    halves: UInt64MatrixOut
    echoes: Int64MatrixOut


@lru_cache(maxsize=4)
def window_sizes(length: int, gram: int, piece_tokens: int) -> WindowSizes:
    """Windows of `length` tokens that choose a gram of `gram`, `piece_tokens` in a piece."""
    factors = np.full(2 * length + 1, _RADIX, np.uint64)
    factors[0] = 1
    return input_record(WindowSizes, (length, gram, piece_tokens, np.cumprod(factors, dtype=np.uint64)))


def recent_anchors() -> np.ndarray:
    """Room for where an anchor was last, for `select_anchors`: fresh for each call."""
    return np.full(_SLOTS, -1, np.int64)


def scratch_for(sizes: WindowSizes) -> Scratch:
    """Room for the tokens of any piece."""
    room = sizes.piece_tokens + sizes.length + 2
    return Scratch(
        starts=np.empty(room, np.int64),
        hashes=np.empty(room, np.uint64),
        prefix=np.empty(room, np.uint64),
        queue_tokens=np.empty(room, np.int64),
        queue_values=np.empty(room, np.uint64),
    )


@inline
def _sum_up(hashes, count, prefix) -> None:
    """The polynomial of the first i hashes, for every i up to `count`."""
    prefix[0] = _0
    for place in range(count):
        prefix[place + 1] = prefix[place] * _RADIX + hashes[place]


@inline
def _trims(data, start, stop) -> Any:
    """Bytes of characters that are cut by the ends of [start, stop): at its begin, plus 16 times at its end."""
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
    data, by_bytes, piece, base, found, first, stop, starts, prefix, powers, half, recent, anchors, halves, echo
) -> Any:
    """The tokens [first, stop) around the gram whose hash is half[0]: an anchor, or an echo of one of this piece.

    Returns whether it is an anchor; an echo goes on in `echo`, as first token and last. It takes arrays, not their records:
    each array that is taken out of a tuple is counted as used, and anchors cost a tenth more.
    """
    half[0] = mix64(half[0] ^ _GRAM)  # the least of many is small; this is even again
    half[1] = mix64(prefix[stop] - prefix[first] * powers[stop - first])
    slot = np.int64(half[0] & np.uint64(_SLOTS - 1))
    before = recent[slot]
    if before >= base and halves[before, 0] == half[0] and halves[before, 1] == half[1]:
        anchors[before, 3] |= ECHOED
        echo[0], echo[1] = first if echo[0] < 0 else echo[0], stop
        return False
    recent[slot] = found
    halves[found, 0], halves[found, 1] = half[0], half[1]
    anchors[found, 0], anchors[found, 1], anchors[found, 2] = piece, starts[first], starts[stop] - starts[first]
    anchors[found, 3] = _trims(data, starts[first], starts[stop]) if by_bytes else 0
    return True


@inline
def _end_echo(data, by_bytes, piece, starts, echo, echoes) -> None:
    """Writes the echo that goes on, if any."""
    if echo[0] >= 0:
        start, stop = starts[echo[0]], starts[echo[1]]
        trims = _trims(data, start, stop) if by_bytes else 0
        echoes[echo[2], 0], echoes[echo[2], 1], echoes[echo[2], 2] = piece, start + trims % 16, stop - trims // 16
        echo[0] = -1
        echo[2] += 1


@inline
def _winnow(data, by_bytes, piece, count, windows, scratch, recent, base, half, echo, out) -> Any:
    """Writes the anchors of the windows of `count` tokens after `base` others, and returns how many there are then."""
    length, gram, powers = windows.length, windows.gram, windows.powers
    anchors, halves, echoes = out.anchors, out.halves, out.echoes
    starts, prefix, places, values = scratch.starts, scratch.prefix, scratch.queue_tokens, scratch.queue_values
    found, head, tail, window_grams = base, np.int64(0), np.int64(0), length - gram + 1
    current, first, chosen = np.int64(-1), np.int64(0), _0
    for place in range(count - gram + 2):
        is_end = place > count - gram
        if not is_end:
            value = mix64(prefix[place + gram] - prefix[place] * powers[gram])
            while tail > head and values[tail - 1] > value:
                tail -= 1
            places[tail], values[tail] = place, value
            tail += 1
        window = place - window_grams + 1
        if window < 0:
            continue
        if not is_end and places[head] < window:
            head += 1
        if not is_end and places[head] == current:
            continue
        if current >= 0:
            half[0] = chosen
            stop = window - 1 + length
            is_anchor = _take_span(
                data, by_bytes, piece, base, found, first, stop, starts, prefix, powers, half, recent, anchors, halves, echo
            )
            if is_anchor:
                _end_echo(data, by_bytes, piece, starts, echo, echoes)
                found += 1
        if not is_end:
            current, first, chosen = places[head], window, values[head]
    _end_echo(data, by_bytes, piece, starts, echo, echoes)
    return found


@kernel
def select_anchors(
    offsets: Int64s,
    data: UInt8s,
    rules: TokenRules,
    windows: WindowSizes,
    scratch: Scratch,
    recent: Int64sOut,
    state: Int64sOut,
    out: AnchorsOut,
) -> int:
    """Finds the pieces of documents and their anchors, until there is no room for another piece; returns the anchors found.

    A span that says what another of its piece said is no anchor but an echo, where that is noticed: texts that repeat
    themselves would have an anchor for every token. Echoes side by side are one.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        rules: what a token is.
        windows: how many tokens a window, a gram and a piece have.
        scratch: `scratch_for(windows)`.
        recent: `recent_anchors()`.
        state: (5,) int64: document, byte and number of the next piece, which this moves on; pieces and echoes found.
        out: what is found.
    """
    by_bytes, length, piece_tokens = rules.by_bytes, windows.length, windows.piece_tokens
    starts, hashes, pieces = scratch.starts, scratch.hashes, out.pieces
    num_pieces, num_anchors, limit = np.int64(0), np.int64(0), piece_tokens + length
    half, echo = np.zeros(2, np.uint64), np.zeros(3, np.int64)
    echo[0] = -1
    doc, at, number = state[0], state[1], state[2]
    while doc < len(offsets) - 1 and num_pieces < len(pieces) and num_anchors + piece_tokens <= len(out.anchors):
        stop = offsets[doc + 1]
        count = find_tokens(data, at, stop, rules, limit, starts, hashes)
        goes_on = count == limit
        count -= goes_on
        following = starts[piece_tokens] if goes_on else stop
        if count >= length:
            starts[0] = at
            if not goes_on:
                starts[count] = stop
            _sum_up(hashes, count, scratch.prefix)
            pieces[num_pieces, 0], pieces[num_pieces, 1], pieces[num_pieces, 2] = doc, number, at
            pieces[num_pieces, 3] = starts[count]
            num_anchors = _winnow(data, by_bytes, num_pieces, count, windows, scratch, recent, num_anchors, half, echo, out)
            num_pieces += 1
        doc, number = (doc, number + 1) if goes_on else (doc + 1, np.int64(0))
        at = following
    state[0], state[1], state[2], state[3], state[4] = doc, at, number, num_pieces, echo[2]
    return int(num_anchors)


@kernel
def hash_windows(
    offsets: Int64s,
    data: UInt8s,
    rules: TokenRules,
    sizes: WindowSizes,
    spans: AnchorSpans,
    scratch: Scratch,
    windows: Int64MatrixOut,
    halves: UInt64MatrixOut,
) -> int:
    """The hashes of all windows of some spans; returns how many there are.

    Args:
        offsets, data: passages: texts of pieces, as `select_anchors` found them.
        rules, sizes, scratch: as there.
        spans: in the passages.
        windows: (num_windows, 3) int64: the span of each, its first byte in the passage and its bytes, whole characters alone.
        halves: (num_windows, 2) uint64.
    """
    by_bytes, length, starts, prefix = rules.by_bytes, sizes.length, scratch.starts, scratch.prefix
    found, before, count = np.int64(0), np.int64(-1), np.int64(0)
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
            trims = _trims(data, start, start + size) if by_bytes else 0
            windows[found, 0], windows[found, 1] = span, start + trims % 16 - begin
            windows[found, 2] = size - trims % 16 - trims // 16
            halves[found, 1] = mix64(prefix[first + length] - prefix[first] * sizes.powers[length])
            halves[found, 0] = mix64(spans.grams[span] + mix64(halves[found, 1] ^ _GRAM))
            found += 1
            first += 1
    return int(found)


@kernel
def list_tokens(
    offsets: Int64s, data: UInt8s, rules: TokenRules, starts: Int64sOut, hashes: UInt64sOut, documents: Int64sOut
) -> int:
    """Lists all tokens, with the hash and the document of each; returns how many.

    Args:
        offsets, data, rules: as for `select_anchors`.
        starts, documents: (num_bytes,) int64, the first byte and the document of each token; no more than bytes.
        hashes: (num_bytes,) uint64.
    """
    found = np.int64(0)
    for doc in range(len(offsets) - 1):
        stop = offsets[doc + 1]
        count = find_tokens(data, offsets[doc], stop, rules, stop - offsets[doc], starts[found:], hashes[found:])
        documents[found : found + count] = doc
        found += count
    return int(found)


@kernel
def copy_spans(starts: Int64s, stops: Int64s, data: UInt8s, out: UInt8sOut) -> None:
    """Copies the bytes [starts[i], stops[i]), (num_spans,) int64 each, one after another into `out`."""
    to = np.int64(0)
    for span in range(len(starts)):
        size = stops[span] - starts[span]
        out[to : to + size] = data[starts[span] : stops[span]]
        to += size
