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

_LENGTH, _GRAM, _PIECE = 8, 3, 50


def _chosen(case: Case) -> Case:
    """Texts of a size that the oracle can take."""
    return Case(texts=tuple(text if len(text) < 5000 else text[:1800] for text in case.texts), seed=case.seed)


def _fixed(case: Case, by_bytes: bool) -> list[Any]:
    rules = token_rules(by_bytes)
    return [case.offsets, case.data, rules, kernels.window_sizes(_LENGTH, _GRAM, _PIECE)]


def _anchor_arguments(by_bytes: bool) -> Callable[[Case], list[Any]]:
    def make(case: Case) -> list[Any]:
        case = _chosen(case)
        state, room = np.array([0, case.offsets[0], 0, 0, 0]), len(case.data) + _PIECE
        outputs = [np.empty((room, kernels.NUM_PIECE), np.int64), np.empty((room, kernels.NUM_ANCHOR), np.int64)]
        outputs += [np.empty((room, 2), np.uint64), np.empty((room, kernels.NUM_ECHO), np.int64)]
        fixed = _fixed(case, by_bytes)
        return [*fixed, kernels.scratch_for(fixed[-1]), kernels.recent_anchors(), state, kernels.AnchorsOut(*outputs)]

    return make


def _anchor_expected(by_bytes: bool) -> Callable[[Case], tuple[int, list[Any]]]:
    def expected(case: Case) -> tuple[int, list[Any]]:
        case = _chosen(case)
        pieces: list[list[int]] = []
        anchors: list[list[int]] = []
        halves: list[list[int]] = []
        echoes: list[list[int]] = []
        for document, text in enumerate(case.texts):
            base, before = int(case.offsets[document]), len(pieces)
            some, found, echoed = oracle.anchors(text, by_bytes, _LENGTH, _GRAM, _PIECE)
            pieces += [[document, number, base + start, base + stop] for number, start, stop in some]
            anchors += [[before + piece, base + start, size, trims] for piece, start, size, trims, _, _ in found]
            halves += [[gram, span] for *_, gram, span in found]
            echoes += [[before + piece, base + start, base + stop] for piece, start, stop in echoed]
        state = [len(case.texts), int(case.offsets[-1]), 0, len(pieces), len(echoes)]
        return len(anchors), [state, pieces, anchors, halves, echoes]

    return expected


def _window_arguments(by_bytes: bool) -> Callable[[Case], list[Any]]:
    """Every text of at most a piece is a passage, and some of its windows are spans."""

    def make(case: Case) -> list[Any]:
        case = _passages(case)
        spans = _spans(case, by_bytes)
        columns = [np.array([span[at] for span in spans], np.int64) for at in range(3)]
        grams = np.arange(len(spans), dtype=np.uint64) * np.uint64(3**39)
        room = int(columns[2].sum())
        outputs = [np.empty((room, 3), np.int64), np.empty((room, 2), np.uint64)]
        fixed, spans = _fixed(case, by_bytes), input_record(kernels.AnchorSpans, (*columns, grams))
        return [*fixed, spans, kernels.scratch_for(fixed[-1]), *outputs]

    return make


def _passages(case: Case) -> Case:
    return Case(texts=tuple(text.decode()[: _PIECE // 4].encode() for text in case.texts), seed=case.seed)


def _spans(case: Case, by_bytes: bool) -> list[tuple[int, int, int]]:
    """(passage, first byte, bytes) of runs of tokens that hold one window or several."""
    found, generator = [], case.generator
    for passage, text in enumerate(case.texts):
        said, begins = oracle.territories(text, by_bytes)
        for first in range(0, len(said) - _LENGTH + 1, 3):
            stop = min(len(said), first + _LENGTH + int(generator.integers(0, 4)))
            found.append((passage, begins[first], begins[stop] - begins[first]))
    return found


def _window_expected(by_bytes: bool) -> Callable[[Case], tuple[int, list[Any]]]:
    def expected(case: Case) -> tuple[int, list[Any]]:
        case = _passages(case)
        windows, halves = [], []
        for span, (passage, start, size) in enumerate(_spans(case, by_bytes)):
            text = case.texts[passage]
            said, begins = oracle.territories(text, by_bytes)
            hashes = [oracle.token_hash(token, by_bytes) for token in said]
            for at in range(len(said) - _LENGTH + 1):
                ends = begins[at], begins[at + _LENGTH]
                if ends[0] < start or ends[1] > start + size:
                    continue
                first, stop = oracle.whole_characters(text, *ends) if by_bytes else ends
                windows.append([span, first, stop - first])
                halves.append(oracle.window_hashes(hashes[at : at + _LENGTH], span * 3**39 % 2**64))
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
        (int(case.offsets[document]) + at, oracle.token_hash(said, False), document)
        for document, text in enumerate(case.texts)
        for at, said in oracle.tokens(text, False)
    ]
    return len(found), [[token[at] for token in found] for at in range(3)]


def _copy_arguments(case: Case) -> list[Any]:
    ends = np.sort(case.generator.integers(0, len(case.data) + 1, (9, 2)))
    starts, stops = np.ascontiguousarray(ends.T)
    return [starts, stops, case.data, np.empty(int((stops - starts).sum()), np.uint8)]


def _copy_expected(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    return None, [[byte for start, stop in zip(starts, stops) for byte in data[start:stop].tolist()]]


ROWS = [
    *(
        Row(
            kernel=kernels.select_anchors,
            arguments=_anchor_arguments(by_bytes),
            oracle=_anchor_expected(by_bytes),
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
