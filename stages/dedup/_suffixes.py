"""Repeated spans by a suffix array: all texts in memory, with the suffixes sorted, so that equal windows are adjacent.

texts  ->  token numbers, 0 between texts  ->  suffix array, longest common prefixes  ->  groups of equal windows  ->  spans
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.kernels.dedup import substring
from datapipe.kernels.dedup.substring_tokens import token_rules
from stages.dedup._passages import Windowing


def repeated_spans(texts: pa.Array, windowing: Windowing, keep: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The windows to remove: document, start and stop byte of each, (num_windows,) int64.

    Args:
        texts: (num_docs,) large_binary; the order decides which copy is the first.
        grams: what a token is, and the tokens of a window.
        keep: "first" or "none".
    """
    offsets, data = columns.text_buffers(texts)
    starts, hashes, documents = _tokens(offsets, data, windowing.by_bytes)
    ids, token_of_id = _joined(hashes, documents)
    chosen = token_of_id[np.flatnonzero(_repeated(ids, windowing.length, keep))]
    chunk_keys, last = documents[chosen], chosen + windowing.length
    # a token owns the bytes up to the next token; the first token of a document also owns the bytes before it
    is_first = (chosen == 0) | (documents[chosen - 1] != chunk_keys)
    is_last = (last == len(starts)) | (documents[np.minimum(last, len(starts) - 1)] != chunk_keys)
    first_bytes = np.where(is_first, offsets[chunk_keys], starts[chosen])
    last_bytes = np.where(is_last, offsets[chunk_keys + 1], starts[np.minimum(last, len(starts) - 1)])
    if windowing.by_bytes:
        first_bytes, last_bytes = _whole_characters(data, first_bytes, last_bytes)
    return chunk_keys, first_bytes - offsets[chunk_keys], last_bytes - offsets[chunk_keys]


def _whole_characters(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spans without characters that cross their ends."""
    begins = np.append(np.flatnonzero(data & 0xC0 != 0x80), len(data))
    return begins[np.searchsorted(begins, starts)], begins[np.searchsorted(begins, stops, side="right") - 1]


def _tokens(offsets: np.ndarray, data: np.ndarray, by_bytes: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start byte, hash (of a byte: its value) and document of every token."""
    if by_bytes:
        documents = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return np.arange(offsets[0], offsets[-1]), data[offsets[0] : offsets[-1]], documents
    room = int(offsets[-1] - offsets[0])
    starts, hashes, documents = np.empty(room, np.int64), np.empty(room, np.uint64), np.empty(room, np.int64)
    count = substring.list_tokens(offsets, data, token_rules(False), starts, hashes, documents)
    return starts[:count], hashes[:count], documents[:count]


def _joined(hashes: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number each distinct token from 1 on, with a 0 after each document.

    Returns:
        ids: (num_ids,) uint32, the numbers.
        tokens: (num_ids,) int64, the token of each number; 0 after a document.
    """
    numbers = np.unique(hashes, return_inverse=True)[1] + 1
    positions = np.arange(len(hashes)) + documents
    ids = np.zeros(len(hashes) + int(documents[-1]) + 1 if len(documents) else 1, np.uint32)
    ids[positions] = numbers
    tokens = np.zeros(len(ids), np.int64)
    tokens[positions] = np.arange(len(hashes))
    return ids, tokens


def _repeated(ids: np.ndarray, length: int, keep: str) -> np.ndarray:
    """Where windows to remove begin: (num_ids,) bool. No window contains a 0."""
    library: Any = importlib.import_module("pydivsufsort")
    order = np.asarray(library.divsufsort(ids), np.int64)
    new = np.ones(
        len(order) + 1, np.bool_
    )  # whether the first `length` tokens of a suffix differ from those of the suffix before it
    new[1:] = np.asarray(library.kasai(ids, order.astype(np.int32))) < length
    firsts = np.flatnonzero(new[:-1])
    group, several = np.cumsum(new[:-1]) - 1, np.diff(firsts, append=len(order)) > 1
    removed = several[group] & (True if keep == "none" else order != np.minimum.reduceat(order, firsts)[group])
    chosen = np.zeros(len(ids), np.bool_)
    chosen[order] = removed
    zeros = np.concatenate([[0], np.cumsum(ids == 0)])
    last = np.minimum(np.arange(len(ids)) + length, len(ids))
    return chosen & (zeros[last] == zeros[:-1]) & (np.arange(len(ids)) + length <= len(ids))
