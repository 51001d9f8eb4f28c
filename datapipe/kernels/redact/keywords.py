"""Finds the keywords of several tables in one pass over the bytes: where each begins, in any case of ASCII letters.

    bytes  ->  a class of 64 each  ->  three classes in a row  ->  a filter of 2**18 bits  ->  a tree of keywords  ->  hits

No keyword begins at most bytes: the filter, 32 KiB, answers for them without an unpredictable
branch. The cost is linear: a walk of the tree is as long as the longest keyword at most.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import Int32s, Int32sOut, Int64s, Int64sOut, UInt8s, input_record

_CLASSES = 64
_WINDOW = np.uint32((1 << 18) - 1)
_1, _2, _3_ = np.uint64(1), np.uint64(2), np.uint64(3)
_14, _FACTOR, _WORD = np.uint64(14), np.uint64(0x9E3779B1), np.uint64((1 << 32) - 1)
_3, _6, _7 = np.uint32(3), np.uint32(6), np.uint32(7)
_CAPACITY = 1 << 16
_SIGNS = "-_.:/=~|\"'+@?&;<>$%#!{(, "
"""Signs of keywords, a class each; all other bytes but letters and digits are one class. Class 0 is none."""


class Keywords(NamedTuple):
    """Keywords as a tree: an input of kernels."""

    classes: UInt8s  # (256,), the class of each byte
    # bits, short: (2**18 / 8,), a bit for three classes with which a keyword begins; of keywords of
    # three characters or fewer
    bits: UInt8s
    short: UInt8s
    hashed: UInt8s  # like bits, a bit for the hash of the first four classes of each longer keyword
    # (num_nodes * 64,), the node behind a node and a class; 0 where there is none. Node 0 is the root.
    children: Int32s
    ends: Int32s  # (num_nodes,), the number of the keyword that ends at a node; -1 where none does
    most_at_a_byte: int  # keywords that may begin at one byte: each is the start of the next


class Hits(NamedTuple):
    """Keywords in texts, in text order: `positions` (num_hits,) int64 where each begins, `numbers` (num_hits,) int32."""

    positions: Int64s
    numbers: Int32s


class HitsOut(NamedTuple):
    """Outputs of `find_keywords`: (capacity,) starts of hits, numbers of their keywords, and where to go on."""

    positions: Int64sOut
    numbers: Int32sOut
    next_start: Int64sOut


def find_hits(offsets: np.ndarray, data: np.ndarray, table: Keywords) -> Iterator[Hits]:
    """The hits in documents from `columns.text_buffers`, 65,536 at a time."""
    start, capacity = int(offsets[0]), _CAPACITY + table.most_at_a_byte
    while start < offsets[-1]:
        out = HitsOut(np.empty(capacity, np.int64), np.empty(capacity, np.int32), np.empty(1, np.int64))
        num_hits = find_keywords(offsets, data, start, table, out)
        start = int(out.next_start[0])
        if num_hits:
            yield input_record(Hits, (out.positions[:num_hits], out.numbers[:num_hits]))


def keyword_numbers(tables: Sequence[Sequence[str]]) -> dict[str, int]:
    """A number for each keyword, by its small letters: those of the first table first, each keyword once."""
    folded = dict.fromkeys(word.lower() for table in tables for word in table)
    return {word: number for number, word in enumerate(folded)}


def _classes() -> np.ndarray:
    table = np.full(256, len(_SIGNS) + 37, np.uint8)
    for number, char in enumerate("abcdefghijklmnopqrstuvwxyz0123456789" + _SIGNS):
        table[[ord(char), ord(char.upper())]] = number + 1
    return table


def keyword_table(numbers: dict[str, int]) -> Keywords:
    """The tree of keywords. Bytes beyond letters, digits and the signs above are one class: a hit with them may be none."""
    classes = _classes()
    steps, ends = dict[tuple[int, int], int](), dict[int, int]()
    bits, short, hashed = (np.zeros(1 << 18, np.bool_) for _ in range(3))
    for word, number in numbers.items():
        node, path = 0, classes[np.frombuffer(word.encode(), np.uint8)].tolist()
        for place in path:
            node = steps.setdefault((node, place), len(steps) + 1)
        ends[node] = number
        window = sum(place << shift for place, shift in zip(path, (12, 6, 0)))
        windows = slice(window, window + (1 << max(0, 18 - 6 * len(path))))
        bits[windows] = True
        short[windows] |= len(path) < 4
        if len(path) > 3:
            hashed[_hash(np.uint32(window), np.uint32(path[3]))] = True
    children, numbered = np.zeros((len(steps) + 1, _CLASSES), np.int32), np.full(len(steps) + 1, -1, np.int32)
    numbered[list(ends)] = list(ends.values())
    depths = [0]  # by node, keywords on its path
    for (parent, place), node in steps.items():
        children[parent, place] = node
        depths.append(depths[parent] + (node in ends))
    packed = [np.packbits(table, bitorder="little") for table in (bits, short, hashed)]
    return input_record(Keywords, (classes, *packed, children.ravel(), numbered, max(depths)))


@inline
def _hash(window, following) -> Any:
    """A hash of 18 bits of four classes."""
    return np.uint32((np.uint64(window << _6 | following) * _FACTOR & _WORD) >> _14)


@inline
def _has_bit(bits, number) -> Any:
    return bits[number >> _3] >> (number & _7) & np.uint8(1) != 0


@inline
def _walk(data, start, end, classes, children, ends, number, positions, numbers) -> Any:
    """Writes the keywords that begin at `start` from entry `number` on, the shortest first; returns the number after them."""
    node, j = np.int64(0), start
    while j < end:
        node = np.int64(children[node * 64 + np.int64(classes[data[j]])])
        if node == 0:
            break
        if ends[node] >= 0:
            positions[number], numbers[number] = start, ends[node]
            number += 1
        j += 1
    return number


@kernel
def find_keywords(offsets: Int64s, data: UInt8s, start: int, table: Keywords, out: HitsOut) -> int:
    """Finds keywords from `start` on, in text order, the shortest first; returns their number.
    It ends where hits may no longer fit; `start` is then the `next_start` of the call before."""
    positions, numbers = out.positions, out.numbers
    classes, bits, short, hashed = table.classes, table.bits, table.short, table.hashed
    children, ends = table.children, table.ends
    most, num_hits, document, end = len(positions) - table.most_at_a_byte, 0, 0, np.uint64(offsets[-1])
    window, last = np.uint32(0), max(end, _2) - _2
    j = np.uint64(start)
    for ahead in range(start, start + 2):
        window = window << _6 | (np.uint32(classes[data[ahead]]) if ahead < offsets[-1] else np.uint32(0))
    while j < end:  # the window reads over the ends of documents, a walk does not
        following = classes[data[j + _2]] if j < last else np.uint8(0)
        window = (window << _6 | np.uint32(following)) & _WINDOW
        if _has_bit(bits, window) and (
            _has_bit(short, window) or (j + _3_ < end and _has_bit(hashed, _hash(window, np.uint32(classes[data[j + _3_]]))))
        ):
            while np.int64(j) >= offsets[document + 1]:
                document += 1
            num_hits = _walk(data, np.int64(j), offsets[document + 1], classes, children, ends, num_hits, positions, numbers)
            if num_hits > most:
                out.next_start[0] = j + _1
                return int(num_hits)
        j += _1
    out.next_start[0] = offsets[-1]
    return int(num_hits)
