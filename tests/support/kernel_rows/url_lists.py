"""Rows of `datapipe/kernels/filters/url_lists.py`: every other URL, host or word of a case is in the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from datapipe.kernels.filters import url_lists as kernels
from tests.oracles import url_lists as oracle
from tests.support.kernel_rows.url import column, urls
from tests.support.kernel_table import Case, Row

_PATTERNS = (b"a", b"com", b"example com", b"www", b"80", b"the", b"e", b"be", b"80 a", b"\xc3\xa9", b"ref", b"the a", b"he")
_FIRST_SOFT = 5


def _texts(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start:stop].tobytes() for start, stop in zip(starts, stops)]


def _ranges(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    offsets, data = column(urls(case))
    return offsets[:-1], offsets[1:], data


def _hashes(texts: list[bytes]) -> np.ndarray:
    return np.array([oracle.hashed(text) for text in texts], np.uint64)


def _hash_arguments(case: Case) -> list[Any]:
    starts, stops, data = _ranges(case)
    return [starts, stops, data, np.empty(len(starts), np.uint64)]


def _hash_expected(*ranges: np.ndarray) -> tuple[None, list[Any]]:
    return None, [_hashes(_texts(*ranges))]


def _fill_arguments(case: Case) -> list[Any]:
    hashes = _hashes(urls(case))
    return [hashes, np.zeros(1 << max(1, (2 * len(hashes)).bit_length()), np.uint64)]


def _fill_expected(hashes: np.ndarray) -> tuple[None, list[Any]]:
    size = 1 << max(1, (2 * len(hashes)).bit_length())
    return None, [np.array(oracle.table(hashes.tolist(), size), np.uint64)]


def _find_arguments(case: Case) -> list[Any]:
    hashes = _hashes(urls(case))
    return [hashes, kernels.hash_table(hashes[::2].copy()), np.empty(len(hashes), np.uint8)]


def _find_expected(hashes: np.ndarray, table: np.ndarray) -> tuple[None, list[Any]]:
    return None, [[key in set(table.tolist()) for key in hashes.tolist()]]


def _domain_arguments(case: Case) -> list[Any]:
    starts, stops, data = _ranges(case)
    domains = [oracle.domains(host)[-2:] for host in _texts(starts, stops, data)]
    listed = sorted({parents[0] for parents in domains if parents})[::2]
    return [starts, stops, data, kernels.hash_table(_hashes(listed)), np.empty(len(starts), np.uint8)]


def _domain_expected(starts: np.ndarray, stops: np.ndarray, data: np.ndarray, table: np.ndarray) -> tuple[None, list[Any]]:
    listed = set(table.tolist())
    return None, [[any(map(listed.__contains__, map(oracle.hashed, oracle.domains(h)))) for h in _texts(starts, stops, data)]]


def _word_arguments(whole: bool) -> Callable[[Case], list[Any]]:
    patterns = [b" " + pattern + b" " for pattern in _PATTERNS] if whole else [entry.replace(b" ", b"") for entry in _PATTERNS]
    made = kernels.automaton(patterns)

    def arguments(case: Case) -> list[Any]:
        offsets, data = column(urls(case))
        return [offsets, data, made, _FIRST_SOFT, whole, np.empty((len(case.texts), 2), np.int64)]

    return arguments


def _word_expected(offsets: np.ndarray, data: np.ndarray, *rest: Any) -> tuple[None, list[Any]]:
    whole = rest[-1]
    patterns = [b" " + pattern + b" " for pattern in _PATTERNS] if whole else [entry.replace(b" ", b"") for entry in _PATTERNS]
    occurring = [oracle.occurring(patterns, text, whole) for text in _texts(offsets[:-1], offsets[1:], data)]
    return None, [[[sum(entry[:_FIRST_SOFT]), sum(entry[_FIRST_SOFT:])] for entry in occurring]]


ROWS = [
    Row(kernel=kernels.hash_backwards, arguments=_hash_arguments, oracle=_hash_expected),
    Row(kernel=kernels.fill_table, arguments=_fill_arguments, oracle=_fill_expected),
    Row(kernel=kernels.find_hashes, arguments=_find_arguments, oracle=_find_expected),
    Row(kernel=kernels.find_domains, arguments=_domain_arguments, oracle=_domain_expected),
    Row(kernel=kernels.count_words, arguments=_word_arguments(whole=True), oracle=_word_expected, variant="whole"),
    Row(kernel=kernels.count_words, arguments=_word_arguments(whole=False), oracle=_word_expected, variant="parts"),
]
