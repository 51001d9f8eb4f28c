"""Finds the keywords of several tables in one pass over the bytes: where each begins, in any case of ASCII letters.

    bytes  ->  a class of 64 each  ->  four classes in a row  ->  a filter  ->  a tree of keywords  ->  hits

No keyword begins at most bytes: the filter answers for four of them with one branch. The cost is
linear: a walk of the tree is as long as the longest keyword at most.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import Int32s, Int32sOut, Int64s, Int64sOut, UInt8s, input_record

_CLASSES = 64
_THREE = np.uint64((1 << 18) - 1)
_0, _1, _2, _3, _4, _5, _6, _7, _12, _18, _24 = (np.uint64(number) for number in (0, 1, 2, 3, 4, 5, 6, 7, 12, 18, 24))
_CAPACITY = 1 << 16
_SIGNS = "-_.:/=~|\"'+@?&;<>$%#!{(, "
"""Signs of keywords, a class each; all other bytes but letters and digits are one class. Class 0 is none."""


class Keywords(NamedTuple):
    """Keywords as a tree: an input of kernels."""

    classes: UInt8s  # (256,), the class of each byte
    # (2**18,), by the first three classes of a keyword: a bit for the lower three bits of the fourth
    filter: UInt8s
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
    passing = np.zeros(1 << 18, np.uint8)
    for word, number in numbers.items():
        node, path = 0, classes[np.frombuffer(word.encode(), np.uint8)].tolist()
        for place in path:
            node = steps.setdefault((node, place), len(steps) + 1)
        ends[node] = number
        window = sum(place << shift for place, shift in zip(path, (12, 6, 0)))
        windows = slice(window, window + (1 << max(0, 18 - 6 * len(path))))
        passing[windows] |= 1 << (path[3] & 7) if len(path) > 3 else 0xFF
    children, numbered = np.zeros((len(steps) + 1, _CLASSES), np.int32), np.full(len(steps) + 1, -1, np.int32)
    numbered[list(ends)] = list(ends.values())
    depths = [0]  # by node, keywords on its path
    for (parent, place), node in steps.items():
        children[parent, place] = node
        depths.append(depths[parent] + (node in ends))
    return input_record(Keywords, (classes, passing, children.ravel(), numbered, max(depths)))


@inline
def _next_four(data, j, classes, window) -> Any:
    """The window with the classes of the next four bytes, six bits each."""
    first, second = np.uint64(classes[data[j]]), np.uint64(classes[data[j + _1]])
    third, fourth = np.uint64(classes[data[j + _2]]), np.uint64(classes[data[j + _3]])
    return window << _24 | (first << _18 | second << _12) | (third << _6 | fourth)


@inline
def _may_begin(passing, four) -> Any:
    """1 in the lowest bit where a keyword may begin with the lowest four classes of a window."""
    return passing[four >> _6 & _THREE] >> np.uint8(four & _7)


@kernel
def find_keywords(offsets: Int64s, data: UInt8s, start: int, table: Keywords, out: HitsOut) -> int:
    """Finds keywords from `start` on, in text order, the shortest first; returns their number.
    It ends where hits may no longer fit; `start` is then the `next_start` of the call before."""
    positions, numbers = out.positions, out.numbers
    classes, passing, children, ends = table.classes, table.filter, table.children, table.ends
    most, num_hits, document, end = len(positions) - table.most_at_a_byte, 0, 0, np.uint64(offsets[-1])
    j, window = np.uint64(start), _0
    for ahead in range(start, min(start + 3, offsets[-1])):
        window = window << _6 | np.uint64(classes[data[ahead]])
    while j < end:
        while j + _7 <= end:  # the window reads over the ends of documents, a walk does not
            window = _next_four(data, j + _3, classes, window)
            passed = _may_begin(passing, window >> _18) | _may_begin(passing, window >> _12)
            if (passed | _may_begin(passing, window >> _6) | _may_begin(passing, window)) & np.uint8(1):
                break
            j += _4
        is_last, stop = j + _7 > end, min(end, j + _4)
        while j < stop:
            if is_last or _may_begin(passing, window >> _6 * (stop - j - _1)) & np.uint8(1):
                while np.int64(j) >= offsets[document + 1]:
                    document += 1
                node, position = np.int64(0), np.int64(j)
                while position < offsets[document + 1]:
                    node = np.int64(children[node * 64 + np.int64(classes[data[position]])])
                    if node == 0:
                        break
                    if ends[node] >= 0:
                        positions[num_hits], numbers[num_hits] = j, ends[node]
                        num_hits += 1
                    position += 1
            j += _1
            if num_hits > most:
                out.next_start[0] = j
                return int(num_hits)
    out.next_start[0] = offsets[-1]
    return int(num_hits)
