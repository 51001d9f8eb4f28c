"""Rows of `datapipe/kernels/tokens/pack.py`: each text is a document of one token more than its bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from datapipe.kernels.tokens import pack as kernels
from tests.oracles import pack as oracle
from tests.support.kernel_table import Case, Row

_LENGTH = 37
"""Tokens of a row: no power of two, and less than the bytes of most texts."""


_POWER = 64
"""The same for kernels that need a power of two."""


def _lengths(case: Case) -> np.ndarray:
    return np.minimum(np.diff(case.offsets), 700) + 1


def _chunk_lengths(case: Case) -> np.ndarray:
    return np.array([length for _, _, length in oracle.split_documents(_lengths(case).tolist(), _LENGTH)], np.int32)


def _chunk_outputs(num_chunks: int) -> list[np.ndarray]:
    return [np.empty(num_chunks, np.int64), np.empty(num_chunks, np.int64), np.empty(num_chunks, np.int32)]


def _split_arguments(case: Case) -> list[Any]:
    return [_lengths(case), _LENGTH, *_chunk_outputs(len(_chunk_lengths(case)))]


def _columns(chunks: list[oracle.Chunk]) -> list[list[int]]:
    return [[chunk[field] for chunk in chunks] for field in range(3)]


def _split_expected(lengths: np.ndarray, sequence_length: int) -> tuple[None, list[Any]]:
    return None, _columns(oracle.split_documents(lengths.tolist(), sequence_length))


def _powers_arguments(case: Case) -> list[Any]:
    lengths, min_chunk = _lengths(case), int(case.generator.integers(1, 9))
    chunks = oracle.split_by_powers(lengths.tolist(), _POWER, min_chunk)
    return [lengths, _POWER, min_chunk, *_chunk_outputs(len(chunks))]


def _powers_expected(lengths: np.ndarray, sequence_length: int, min_chunk: int) -> tuple[None, list[Any]]:
    return None, _columns(oracle.split_by_powers(lengths.tolist(), sequence_length, min_chunk))


def _stream_arguments(case: Case) -> list[Any]:
    lengths = _lengths(case)
    num_rows = -(-int(lengths.sum()) // _LENGTH)
    return [lengths, _LENGTH, *_chunk_outputs(len(lengths) + num_rows), np.zeros(num_rows + 1, np.int64)]


def _stream_expected(lengths: np.ndarray, sequence_length: int) -> tuple[int, list[Any]]:
    rows = oracle.cut_stream(lengths.tolist(), sequence_length)
    chunks = [chunk for row in rows for chunk in row]
    return len(chunks), [*_columns(chunks), list(accumulate(map(len, rows), initial=0))]


def _by_length_arguments(case: Case) -> list[Any]:
    lengths = _chunk_lengths(case)
    return [lengths, np.zeros(_LENGTH + 2, np.int64), np.empty(len(lengths), np.int64)]


def _by_length_expected(lengths: np.ndarray, positions: np.ndarray) -> tuple[None, list[Any]]:
    return None, [oracle.by_length(lengths.tolist())]


def _best_fit_arguments(case: Case) -> list[Any]:
    lengths = _chunk_lengths(case)
    count = len(lengths)
    tree = np.zeros(2 << _LENGTH.bit_length(), np.uint8)
    rooms = np.full(_LENGTH + 1, -1, np.int64)
    return [
        lengths,
        case.generator.permutation(count),
        _LENGTH,
        tree,
        rooms,
        np.empty(count, np.int64),
        np.empty(count, np.int64),
    ]


def _best_fit_expected(lengths: np.ndarray, order: np.ndarray, sequence_length: int, *_: np.ndarray) -> tuple[int, list[Any]]:
    rows = oracle.best_fit(lengths.tolist(), order.tolist(), sequence_length)
    return max(rows, default=-1) + 1, [rows]


def _by_row_arguments(case: Case) -> list[Any]:
    num_chunks = len(_chunk_lengths(case))
    num_rows = num_chunks // 3 + 1
    rows = case.generator.integers(0, num_rows, num_chunks)
    return [rows, np.empty(num_rows, np.int64), np.zeros(num_rows + 1, np.int64), np.empty(num_chunks, np.int64)]


def _by_row_expected(rows: np.ndarray, positions: np.ndarray) -> tuple[None, list[Any]]:
    return None, list(oracle.by_row(rows.tolist(), len(positions)))


def _fill_arguments(dtype: type) -> Callable[[Case], list[Any]]:
    def arguments(case: Case) -> list[Any]:
        tokens = np.concatenate([case.data, case.data[::-1]]).astype(dtype)
        num_rows = len(case.texts)
        offsets = np.cumsum([0, *case.generator.integers(0, 4, num_rows)], dtype=np.int64)
        lengths = case.generator.integers(1, _LENGTH // 3, offsets[-1]).astype(np.int32)
        starts = case.generator.integers(0, len(tokens) - np.minimum(lengths, len(tokens)) + 1)
        lengths = np.minimum(lengths, len(tokens)).astype(np.int32)
        return [tokens, starts, lengths, offsets, 5, _LENGTH, np.empty(num_rows * _LENGTH, dtype)]

    return arguments


def _fill_expected(
    tokens: np.ndarray, starts: np.ndarray, lengths: np.ndarray, offsets: np.ndarray, pad: int, sequence_length: int
) -> tuple[None, list[Any]]:
    chunks = list(zip(starts.tolist(), lengths.tolist()))
    rows = [chunks[start:stop] for start, stop in zip(offsets[:-1], offsets[1:])]
    filled = oracle.fill_rows(tokens.tolist(), rows, pad, sequence_length)
    return None, [[token for row in filled for token in row]]


ROWS = [
    Row(kernel=kernels.split_documents, arguments=_split_arguments, oracle=_split_expected, num_outputs=3),
    Row(kernel=kernels.split_by_powers, arguments=_powers_arguments, oracle=_powers_expected, num_outputs=3),
    Row(kernel=kernels.cut_stream, arguments=_stream_arguments, oracle=_stream_expected, num_outputs=4),
    Row(kernel=kernels.by_length, arguments=_by_length_arguments, oracle=_by_length_expected),
    Row(kernel=kernels.best_fit, arguments=_best_fit_arguments, oracle=_best_fit_expected),
    Row(kernel=kernels.by_row, arguments=_by_row_arguments, oracle=_by_row_expected, num_outputs=2),
    Row(kernel=kernels.fill_rows_16, arguments=_fill_arguments(np.uint16), oracle=_fill_expected),
    Row(kernel=kernels.fill_rows_32, arguments=_fill_arguments(np.uint32), oracle=_fill_expected),
]
