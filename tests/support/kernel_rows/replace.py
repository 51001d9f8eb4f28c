"""Rows of `datapipe/kernels/text/replace.py`: spans at random in the texts."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from datapipe.kernels.redact.stand_ins import REPLACEMENT_BYTES
from datapipe.kernels.text import replace as kernels
from tests.oracles import replace as oracle
from tests.support.kernel_table import Case, Row


def spans_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Up to three spans in every text, ascending: starts and stops."""
    generator = case.generator
    cuts = [np.unique(generator.integers(start, stop + 1, 6)) for start, stop in zip(case.offsets[:-1], case.offsets[1:])]
    starts = [cut for cuts_of_doc in cuts for cut in cuts_of_doc[0 : len(cuts_of_doc) // 2 * 2 : 2]]
    stops = [cut for cuts_of_doc in cuts for cut in cuts_of_doc[1::2]]
    return np.array(starts, np.int64), np.array(stops, np.int64)


def _replace_arguments(case: Case) -> list[Any]:
    starts, stops = spans_of(case)
    rows = case.generator.integers(0, 256, (len(starts), REPLACEMENT_BYTES)).astype(np.uint8)
    lengths = case.generator.integers(0, REPLACEMENT_BYTES + 1, len(starts))
    num_bytes = int(case.offsets[-1] - case.offsets[0] - (stops - starts).sum() + lengths.sum())
    outputs = [np.empty(len(case.offsets), np.int64), np.empty(num_bytes, np.uint8)]
    return [case.offsets, case.data, starts, stops, rows, lengths, *outputs]


def _replace_expected(
    offsets: np.ndarray, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, rows: np.ndarray, lengths: np.ndarray
) -> tuple[None, list[Any]]:
    texts = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        mine = [span for span in range(len(starts)) if begin <= starts[span] < end]
        spans = [(int(starts[i] - begin), int(stops[i] - begin), rows[i, : lengths[i]].tobytes()) for i in mine]
        texts.append(oracle.replaced(data[begin:end].tobytes(), spans))
    return None, [list(accumulate(map(len, texts), initial=0)), list(b"".join(texts))]


ROWS = [Row(kernel=kernels.replace_spans, arguments=_replace_arguments, oracle=_replace_expected, num_outputs=2)]
