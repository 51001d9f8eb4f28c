"""Rows of `datapipe/kernels/text/normalize.py`, for each setting of its two switches."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from datapipe.kernels.text import normalize
from datapipe.kernels.text.unicode_classes import composition_table, plain_sizes, stable_table
from tests.oracles import normalize as oracle
from tests.oracles.words import characters
from tests.support.kernel_table import Case, Row


def _texts(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start:stop].tobytes() for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]


def _survey_arguments(fix_newlines: bool, strip_control: bool) -> Callable[[Case], Sequence[Any]]:
    actions = normalize.actions(fix_newlines, strip_control)
    return lambda case: [
        *(case.offsets, case.data, actions, stable_table("NFC"), fix_newlines, strip_control),
        np.zeros(len(case.texts), np.uint8),
    ]


def _survey(
    offsets: np.ndarray, data: np.ndarray, _: np.ndarray, stable: np.ndarray, fix_newlines: bool, strip_control: bool
) -> tuple[Any, Sequence[Any]]:
    texts = _texts(offsets, data)
    touched = [oracle.is_touched(text, fix_newlines, strip_control) for text in texts]
    unstable = [any(not stable[ord(character)] for _, character, _ in characters(text)) for text in texts]
    return None, [[is_touched | 2 * is_unstable for is_touched, is_unstable in zip(touched, unstable, strict=True)]]


def _unstable_arguments(case: Case) -> Sequence[Any]:
    """Spans from the start of each text to some character of it."""
    rng, starts = random.Random(case.seed), case.offsets[:-1].copy()
    lengths = [rng.choice([0, *(index + size for index, _, size in characters(text))]) for text in case.texts]
    stops, ends, out = starts + np.array(lengths, np.int64), case.offsets[1:].copy(), np.zeros(len(starts), np.uint8)
    return [starts, stops, ends, case.data, composition_table(), plain_sizes(), out]


def _unstable(
    starts: np.ndarray, stops: np.ndarray, ends: np.ndarray, data: np.ndarray, table: np.ndarray, _: np.ndarray
) -> tuple[Any, Sequence[Any]]:
    found = []
    for start, stop, end in zip(starts, stops, ends, strict=True):
        kinds = [int(table[ord(character)]) for _, character, _ in characters(data[start:end].tobytes())]
        found.append(oracle.may_change(kinds, len(data[start:stop].tobytes().decode())))
    return None, [found]


def _rewrite_arguments(fix_newlines: bool, strip_control: bool) -> Callable[[Case], Sequence[Any]]:
    actions = normalize.actions(fix_newlines, strip_control)
    return lambda case: [
        *(case.offsets, case.data, actions, fix_newlines, strip_control),
        *(np.zeros(len(case.offsets), np.int64), np.zeros(len(case.data), np.uint8)),
    ]


def _rewrite(
    offsets: np.ndarray, data: np.ndarray, _: np.ndarray, fix_newlines: bool, strip_control: bool
) -> tuple[Any, Sequence[Any]]:
    texts = [oracle.rewritten(text, fix_newlines, strip_control) for text in _texts(offsets, data)]
    return None, [np.cumsum([0, *map(len, texts)]), list(b"".join(texts))]


ROWS = [
    Row(kernel=normalize.find_unstable, arguments=_unstable_arguments, oracle=_unstable, valid_only=True),
    *(
        row
        for fix, strip in product((True, False), repeat=2)
        for row in (
            Row(kernel=normalize.survey, arguments=_survey_arguments(fix, strip), oracle=_survey, variant=f"{fix}-{strip}"),
            Row(
                kernel=normalize.rewrite,
                arguments=_rewrite_arguments(fix, strip),
                oracle=_rewrite,
                variant=f"{fix}-{strip}",
                num_outputs=2,
            ),
        )
    ),
]
