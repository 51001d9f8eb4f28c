"""Repeated spans by a suffix array: all texts in memory, sorted by what follows each token, equal windows side by side."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.errors import UserError
from datapipe.kernels.dedup import substring
from datapipe.kernels.dedup.substring_tokens import token_rules
from stages.dedup._passages import Grams


def repeated_spans(texts: pa.Array, grams: Grams, keep: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The windows that go: document, first byte and last of each, (num_windows,) int64.

    Args:
        texts: large_binary, in the order that decides which copy is the first.
        grams: what a token is, and how many are a window.
        keep: "first" or "none".
    """
    offsets, data = columns.text_buffers(texts)
    starts, hashes, documents = _tokens(offsets, data, grams.by_bytes)
    ids, places = _joined(hashes, documents)
    chosen = places[np.flatnonzero(_repeated(ids, grams.length, keep))]
    whose, last = documents[chosen], chosen + grams.length
    # a token owns the bytes up to the next one, the first of a document those before it too
    is_first = (chosen == 0) | (documents[chosen - 1] != whose)
    is_last = (last == len(starts)) | (documents[np.minimum(last, len(starts) - 1)] != whose)
    first_bytes = np.where(is_first, offsets[whose], starts[chosen])
    last_bytes = np.where(is_last, offsets[whose + 1], starts[np.minimum(last, len(starts) - 1)])
    if grams.by_bytes:
        first_bytes, last_bytes = _whole_characters(data, first_bytes, last_bytes)
    return whose, first_bytes - offsets[whose], last_bytes - offsets[whose]


def _whole_characters(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spans without the characters that their ends cut."""
    begins = np.append(np.flatnonzero(data & 0xC0 != 0x80), len(data))
    return begins[np.searchsorted(begins, starts)], begins[np.searchsorted(begins, stops, side="right") - 1]


def _tokens(offsets: np.ndarray, data: np.ndarray, by_bytes: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First byte, hash (of a byte: itself) and document of every token."""
    if by_bytes:
        documents = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return np.arange(offsets[0], offsets[-1]), data[offsets[0] : offsets[-1]], documents
    room = int(offsets[-1] - offsets[0])
    starts, hashes, documents = np.empty(room, np.int64), np.empty(room, np.uint64), np.empty(room, np.int64)
    count = substring.list_tokens(offsets, data, token_rules(False), starts, hashes, documents)
    return starts[:count], hashes[:count], documents[:count]


def _joined(hashes: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tokens as numbers from 1 on with a 0 after each document, and the token at each place (after a document: none's)."""
    numbers = np.unique(hashes, return_inverse=True)[1] + 1
    places = np.arange(len(hashes)) + documents
    ids = np.zeros(len(hashes) + int(documents[-1]) + 1 if len(documents) else 1, np.uint32)
    ids[places] = numbers
    tokens = np.zeros(len(ids), np.int64)
    tokens[places] = np.arange(len(hashes))
    return ids, tokens


def _repeated(ids: np.ndarray, length: int, keep: str) -> np.ndarray:
    """Where windows begin that go: (num_ids,) bool. A window has no 0 in it."""
    library = _library()
    order = np.asarray(library.divsufsort(ids), np.int64)
    new = np.ones(len(order) + 1, np.bool_)  # whether a suffix begins otherwise than the one before
    new[1:] = np.asarray(library.kasai(ids, order.astype(np.int32))) < length
    firsts = np.flatnonzero(new[:-1])
    group, several = np.cumsum(new[:-1]) - 1, np.diff(firsts, append=len(order)) > 1
    gone = several[group] & (True if keep == "none" else order != np.minimum.reduceat(order, firsts)[group])
    chosen = np.zeros(len(ids), np.bool_)
    chosen[order] = gone
    zeros = np.concatenate([[0], np.cumsum(ids == 0)])
    last = np.minimum(np.arange(len(ids)) + length, len(ids))
    return chosen & (zeros[last] == zeros[:-1]) & (np.arange(len(ids)) + length <= len(ids))


def _library() -> Any:
    try:
        return importlib.import_module("pydivsufsort")
    except ImportError as error:
        raise UserError(
            "dedup.substring: method suffix_array needs the package pydivsufsort. Install datapipe[substring], or give method: "
            "exchange, which finds the same spans."
        ) from error
