"""Rows of `datapipe/kernels/decontaminate/cutting.py`: matches at random places of the texts of a case."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.decontaminate import cutting as kernels
from tests.oracles import decontaminate as oracle
from tests.support.kernel_table import Case, Row

_MARGIN, _LEAST = 3, 4


def _places(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Up to two matches in every other document, at borders of characters."""
    rng, rows = case.generator, list[tuple[int, int, int]]()
    for number, text in enumerate(case.texts):
        borders = np.cumsum([0, *(len(character.encode()) for character in text.decode())]) + case.offsets[number]
        for _ in range(2 if len(borders) > 1 and number % 2 == 0 else 0):
            first, last = np.sort(rng.choice(borders, 2, replace=False)).tolist()
            rows.append((number, first, last))
    rows.sort()
    return tuple(np.array([row[part] for row in rows], np.int64) for part in range(3))  # type: ignore[return-value]


def _cut_arguments(case: Case) -> list[Any]:
    places = _places(case)
    room = 2 * len(places[0])
    out = kernels.Removed(*(np.empty(room, np.int64) for _ in range(3)), np.ones(len(case.texts), np.int64))
    return [case.offsets, case.data, *places, _MARGIN, _LEAST, out]


def _cut_expected(case: Case) -> tuple[int, list[Any]]:
    documents, starts, stops = (column.tolist() for column in _places(case))
    pieces, spans = [1] * len(case.texts), list[tuple[int, int, int]]()
    for document in sorted(set(documents)):
        text, begin = case.texts[document].decode(), int(case.offsets[document])
        borders = np.cumsum([0, *(len(character.encode()) for character in text)]) + begin
        of_byte = {int(byte): place for place, byte in enumerate(borders)}
        own = [(of_byte[starts[row]], of_byte[stops[row]]) for row, each in enumerate(documents) if each == document]
        kept = oracle.pieces(text, own, _MARGIN, _LEAST)
        pieces[document] = len(kept)
        edges = [0, *(edge for piece in kept for edge in piece), len(text)]
        gaps = list(zip(edges[::2], edges[1::2]))
        for number, (start, stop) in enumerate(gaps):
            if start < stop:
                spans.append((int(borders[start]), int(borders[stop]), 2 if 0 < number < len(gaps) - 1 else 0))
    return len(spans), [*(np.array([span[part] for span in spans], np.int64) for part in range(3)), pieces]


ROWS = [Row(kernel=kernels.cut_around, arguments=_cut_arguments, oracle=_cut_expected, from_case=True, valid_only=True)]
