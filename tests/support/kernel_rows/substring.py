"""Rows of `datapipe/kernels/dedup/substring.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from datapipe.kernels.dedup import substring as kernels
from datapipe.kernels.dedup.substring_tokens import token_rules
from datapipe.kernels.types import input_record
from tests.oracles import substring as oracle
from tests.support.kernel_table import Case, Row

_LENGTH, _GRAM, _CHUNK = 8, 3, 50


def _chosen(case: Case) -> Case:
    """Texts of a size that the oracle can take."""
    return Case(texts=tuple(text if len(text) < 5000 else text[:1800] for text in case.texts), seed=case.seed)


def _fixed(case: Case, by_bytes: bool) -> list[Any]:
    rules = token_rules(by_bytes)
    return [case.offsets, case.data, rules, kernels.window_sizes(_LENGTH, _GRAM, _CHUNK)]


def _select_arguments(by_bytes: bool) -> Callable[[Case], list[Any]]:
    def make(case: Case) -> list[Any]:
        case = _chosen(case)
        state, room = np.array([0, case.offsets[0], 0, 0, 0]), len(case.data) + _CHUNK
        outputs = [np.empty((room, kernels.CHUNK_COLUMNS), np.int64), np.empty((room, kernels.GRAM_COLUMNS), np.int64)]
        outputs += [np.empty((room, 2), np.uint64), np.empty((room, kernels.REPEAT_COLUMNS), np.int64)]
        fixed = _fixed(case, by_bytes)
        return [*fixed, kernels.scratch_for(fixed[-1]), kernels.recent_grams(), state, kernels.SelectionOut(*outputs)]

    return make


def _select_expected(by_bytes: bool) -> Callable[[Case], tuple[int, list[Any]]]:
    def expected(case: Case) -> tuple[int, list[Any]]:
        case = _chosen(case)
        chunks: list[list[int]] = []
        selected: list[list[int]] = []
        halves: list[list[int]] = []
        repeats: list[list[int]] = []
        for document, text in enumerate(case.texts):
            base, before = int(case.offsets[document]), len(chunks)
            some, found, repeated_spans = oracle.selected(text, by_bytes, _LENGTH, _GRAM, _CHUNK)
            chunks += [[document, number, base + start, base + stop] for number, start, stop in some]
            selected += [[before + chunk, base + start, size, partial] for chunk, start, size, partial, _, _ in found]
            halves += [[gram, span] for *_, gram, span in found]
            repeats += [[before + chunk, base + start, base + stop] for chunk, start, stop in repeated_spans]
        state = [len(case.texts), int(case.offsets[-1]), 0, len(chunks), len(repeats)]
        return len(selected), [state, chunks, selected, halves, repeats]

    return expected


def _window_arguments(by_bytes: bool) -> Callable[[Case], list[Any]]:
    """Every text of at most a chunk is a passage, and some of its windows are spans."""

    def make(case: Case) -> list[Any]:
        case = _passages(case)
        spans = _spans(case, by_bytes)
        columns = [np.array([span[index] for span in spans], np.int64) for index in range(3)]
        grams = np.arange(len(spans), dtype=np.uint64) * np.uint64(3**39)
        room = int(columns[2].sum())
        outputs = [np.empty((room, 3), np.int64), np.empty((room, 2), np.uint64)]
        fixed, spans = _fixed(case, by_bytes), input_record(kernels.GramSpans, (*columns, grams))
        return [*fixed, spans, kernels.scratch_for(fixed[-1]), *outputs]

    return make


def _passages(case: Case) -> Case:
    return Case(texts=tuple(text.decode()[: _CHUNK // 4].encode() for text in case.texts), seed=case.seed)


def _spans(case: Case, by_bytes: bool) -> list[tuple[int, int, int]]:
    """(passage, first byte, bytes) of runs of tokens that hold one window or several."""
    found, generator = [], case.generator
    for passage, text in enumerate(case.texts):
        token_bytes, begins = oracle.territories(text, by_bytes)
        for first in range(0, len(token_bytes) - _LENGTH + 1, 3):
            stop = min(len(token_bytes), first + _LENGTH + int(generator.integers(0, 4)))
            found.append((passage, begins[first], begins[stop] - begins[first]))
    return found


def _window_expected(by_bytes: bool) -> Callable[[Case], tuple[int, list[Any]]]:
    def expected(case: Case) -> tuple[int, list[Any]]:
        case = _passages(case)
        windows, halves = [], []
        for span, (passage, start, size) in enumerate(_spans(case, by_bytes)):
            text = case.texts[passage]
            token_bytes, begins = oracle.territories(text, by_bytes)
            hashes = [oracle.token_hash(token, by_bytes) for token in token_bytes]
            for index in range(len(token_bytes) - _LENGTH + 1):
                ends = begins[index], begins[index + _LENGTH]
                if ends[0] < start or ends[1] > start + size:
                    continue
                first, stop = oracle.whole_characters(text, *ends) if by_bytes else ends
                windows.append([span, first, stop - first])
                halves.append(oracle.window_hashes(hashes[index : index + _LENGTH], span * 3**39 % 2**64))
        return len(windows), [windows, halves]

    return expected


def _token_arguments(case: Case) -> list[Any]:
    case = _chosen(case)
    room = len(case.data)
    outputs = [np.empty(room, np.int64), np.empty(room, np.uint64), np.empty(room, np.int64)]
    return [case.offsets, case.data, token_rules(False), *outputs]


def _token_expected(case: Case) -> tuple[int, list[Any]]:
    case = _chosen(case)
    found = [
        (int(case.offsets[document]) + index, oracle.token_hash(token_bytes, False), document)
        for document, text in enumerate(case.texts)
        for index, token_bytes in oracle.tokens(text, False)
    ]
    return len(found), [[token[index] for token in found] for index in range(3)]


def _copy_arguments(case: Case) -> list[Any]:
    ends = np.sort(case.generator.integers(0, len(case.data) + 1, (9, 2)))
    starts, stops = np.ascontiguousarray(ends.T)
    return [starts, stops, case.data, np.empty(int((stops - starts).sum()), np.uint8)]


def _copy_expected(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    return None, [[byte for start, stop in zip(starts, stops) for byte in data[start:stop].tolist()]]


ROWS = [
    *(
        Row(
            kernel=kernels.select_grams,
            arguments=_select_arguments(by_bytes),
            oracle=_select_expected(by_bytes),
            num_outputs=2,
            variant="bytes" if by_bytes else "words",
            valid_only=True,
            from_case=True,
        )
        for by_bytes in (False, True)
    ),
    *(
        Row(
            kernel=kernels.hash_windows,
            arguments=_window_arguments(by_bytes),
            oracle=_window_expected(by_bytes),
            num_outputs=2,
            variant="bytes" if by_bytes else "words",
            valid_only=True,
            from_case=True,
        )
        for by_bytes in (False, True)
    ),
    Row(
        kernel=kernels.list_tokens,
        arguments=_token_arguments,
        oracle=_token_expected,
        num_outputs=3,
        valid_only=True,
        from_case=True,
    ),
    Row(kernel=kernels.copy_spans, arguments=_copy_arguments, oracle=_copy_expected),
]
