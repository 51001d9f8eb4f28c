"""Compares a column of URLs with lists: hosts with all their subdomains, whole URLs, words, and parts of words.

    hosts, URLs  ->  64-bit hashes in an open-addressing table  ->  is the URL, its host, or a parent domain listed?
    words        ->  an Aho-Corasick automaton as a table       ->  which words occur: one pass for any number of words

A word is a run of ASCII letters and digits, in any case, and bytes above 127. The search for parts
of words ignores other bytes, so `ab` matches in `a-b`. An entry of several words matches where they
follow each other. With a million entries, one URL in 10^13 matches by an accident of hashes.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import FNV_BASIS, find_slot, fnv_step, mix64, num_slots_for
from datapipe.kernels.types import (
    Int32Matrix,
    Int32s,
    Int64MatrixOut,
    Int64s,
    UInt8s,
    UInt8sOut,
    UInt64s,
    UInt64sOut,
    input_record,
)

_DOT = np.uint8(ord("."))
_0, _1 = np.uint64(0), np.uint64(1)
_APART, _OTHER = 0, 1
"""Classes of bytes: bytes that separate words, and bytes of words that no entry has. Each other class is one letter."""


def hash_table(hashes: np.ndarray) -> np.ndarray:
    """An open-addressing table of the hashes (num_entries,) uint64, at most half full; 0 is a free slot."""
    table = np.zeros(num_slots_for(len(hashes)), np.uint64)
    fill_table(hashes, table)
    return table


def hashes_of(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> np.ndarray:
    """The hash of each range of bytes, (num_ranges,) uint64; see `hash_backwards`."""
    out = np.empty(len(starts), np.uint64)
    hash_backwards(starts, stops, data, out)
    return out


@kernel
def hash_backwards(starts: Int64s, stops: Int64s, data: UInt8s, out: UInt64sOut) -> None:
    """Hashes ranges of `data` backwards: a host's hash passes those of its parents; never 0."""
    for index in range(len(starts)):
        hashed = FNV_BASIS
        for offset in range(stops[index] - 1, starts[index] - 1, -1):
            hashed = fnv_step(hashed, data[offset])
        out[index] = _finished(hashed)


@kernel
def fill_table(hashes: UInt64s, table: UInt64sOut) -> None:
    """Inserts hashes other than 0 into an open-addressing table of at least twice as many slots, a power of 2."""
    for index in range(len(hashes)):
        table[find_slot(table, len(table), hashes[index])] = hashes[index]


@kernel
def find_hashes(hashes: UInt64s, table: UInt64s, out: UInt8sOut) -> None:
    """Whether each hash is in the table: `out` (num_hashes,) uint8."""
    for index in range(len(hashes)):
        out[index] = np.uint8(table[find_slot(table, len(table), hashes[index])] != _0)


@kernel
def find_domains(starts: Int64s, stops: Int64s, data: UInt8s, table: UInt64s, out: UInt8sOut) -> None:
    """Whether each host of `data`, or a parent domain, is in the `hash_table`; no empty ones."""
    for host in range(len(starts)):
        hashed, is_listed = FNV_BASIS, False
        for offset in range(stops[host] - 1, starts[host] - 1, -1):
            hashed = fnv_step(hashed, data[offset])
            if offset == starts[host] or data[offset - 1] == _DOT:
                whole = _finished(hashed)
                is_listed = is_listed or table[find_slot(table, len(table), whole)] == whole
        out[host] = np.uint8(is_listed)


@inline
def _finished(hashed) -> Any:
    mixed = mix64(hashed)
    return mixed if mixed != _0 else _1


class Automaton(NamedTuple):
    """Finds many words in one pass, an input of kernels. State 0 is the start."""

    classes: UInt8s  # (256,), the class of each byte
    steps: Int32Matrix  # (num_states, num_classes), the next state
    patterns: Int32s  # (num_states,), the longest pattern that ends in a state, -1 where none does
    # (num_states,), the state of the next shorter pattern that ends at the same byte, 0 where there is none
    links: Int32s
    num_patterns: int  # number of patterns


def words_in(entry: bytes) -> bytes:
    """The words of an entry in lower case, separated by one blank."""
    return b" ".join(re.findall(rb"[a-z0-9\x80-\xff]+", entry.lower()))


def automaton(patterns: Sequence[bytes]) -> Automaton:
    """The automaton of distinct patterns. None is empty; all consist of bytes of words in lower case, and blanks."""
    classes = np.full(256, _OTHER, np.uint8)
    apart = [byte for byte in range(128) if not chr(byte).isalnum()]
    letters = sorted({*b"".join(patterns)} - {*apart})
    classes[letters] = np.arange(len(letters)) + 2
    for byte in range(0x41, 0x5B):
        classes[byte] = classes[byte + 32]
    classes[apart] = _APART
    children: list[dict[int, int]] = [{}]
    ends: dict[int, int] = {}
    for number, pattern in enumerate(patterns):
        state = 0
        for kind in classes[np.frombuffer(pattern, np.uint8)].tolist():
            if kind not in children[state]:
                children[state][kind] = len(children)
                children.append({})
            state = children[state][kind]
        ends[state] = number
    return _with_failures(classes, len(letters) + 2, children, ends, len(patterns))


def _with_failures(
    classes: np.ndarray, num_classes: int, children: list[dict[int, int]], ends: dict[int, int], num_patterns: int
) -> Automaton:
    """The automaton of a trie: where a state has no step, its longest suffix in the trie decides."""
    steps = np.zeros((len(children), num_classes), np.int32)
    patterns, links = np.full(len(children), -1, np.int32), np.zeros(len(children), np.int32)
    patterns[list(ends)] = list(ends.values())
    queue = deque([(0, 0)])  # a state, and its longest suffix
    while queue:
        state, suffix = queue.popleft()
        steps[state] = steps[suffix]
        links[state] = suffix if patterns[suffix] >= 0 else links[suffix]
        for kind, child in children[state].items():
            queue.append((child, int(steps[suffix, kind]) if state else 0))
        steps[state, list(children[state])] = list(children[state].values())
    return input_record(Automaton, (classes, steps, patterns, links, num_patterns))


@kernel
def count_words(offsets: Int64s, data: UInt8s, automaton: Automaton, first_soft: int, whole: bool, out: Int64MatrixOut) -> None:
    """Counts the distinct patterns that occur in each text: `out` (num_docs, 2) int64, those below `first_soft` in the first
    column. `whole` patterns have a blank before, between and after their words; else bytes that separate words are ignored."""
    classes, steps, patterns, links, _ = automaton
    seen = np.full(patterns.max() + 1, -1, np.int64)
    for doc in range(len(offsets) - 1):
        out[doc, 0], out[doc, 1] = 0, 0
        state = np.int64(steps[0, _APART]) if whole else np.int64(0)
        apart = True
        for offset in range(offsets[doc], offsets[doc + 1] + 1):
            kind = np.int64(classes[data[offset]]) if offset < offsets[doc + 1] else np.int64(_APART)
            if kind == _APART and (apart or not whole):
                continue
            apart = kind == _APART
            state = np.int64(steps[state, kind])
            ending = state if patterns[state] >= 0 else np.int64(links[state])
            while ending > 0:
                pattern = patterns[ending]
                if seen[pattern] != doc:
                    seen[pattern] = doc
                    out[doc, np.int64(pattern >= first_soft)] += 1
                ending = np.int64(links[ending])
