"""Rows of `datapipe/kernels/filters/line_rules.py`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.filters import line_rules
from datapipe.kernels.text.marks import mark_table
from datapipe.kernels.text.words import Lines, find_lines
from datapipe.kernels.types import input_record
from tests.oracles import line_rules as oracle
from tests.support.kernel_table import Case, Row

_SPICES = (
    "items in cart",
    "Items In Cart items in cart",
    "items in carts",
    "Read more...",
    "read more »»»",
    "Read more..",
    "\nSign-in",
    "\nSIGN-IN\u3000",
    "sign-in",
    "\n12 Likes\n",
    "\n(1,234.5k comments!)\n",
    "\n3m_ views\n",
    "\n7 viewsé\n",
    "\n.5 views\n",
    "\nSHOUTING IT É\n",
    "\n12345 ²\n",
    "\n| | --|\n",
    "\n  a\u00a0\n",
)


def _lines(case: Case) -> tuple[Case, Lines]:
    """The texts with some words replaced by strings that the rules test, and their lines."""
    rng = random.Random(case.seed)
    texts = [[rng.choice(_SPICES).encode() if rng.random() < 0.2 else word for word in text.split(b" ")] for text in case.texts]
    case = Case(texts=tuple(b" ".join(words) for words in texts), seed=case.seed)
    with np.errstate(over="ignore"):
        return case, find_lines(case.offsets, case.data)


def _limits(seed: int) -> line_rules.Limits:
    rng = random.Random(seed)
    return line_rules.Limits(
        max_uppercase=0.5,
        max_numeric=rng.choice([0.5, 0.999999]),
        counters=rng.random() < 0.8,
        min_words=rng.choice([0, 2]),
        max_phrase_words=rng.choice([10, 4]),
        loose_dots=rng.random() < 0.5,
    )


def _symbols(seed: int) -> str:
    return random.Random(seed).choice(["", "|-"])


def _texts_of(starts: np.ndarray, lengths: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start : start + length].tobytes() for start, length in zip(starts, lengths, strict=True)]


def _classify_arguments(case: Case) -> Sequence[Any]:
    case, lines = _lines(case)
    counts = [np.empty(len(lines.starts), np.int32) for _ in range(2)]
    tables = [mark_table(), line_rules.symbol_table(_symbols(case.seed)), _limits(case.seed)]
    return [lines, case.data, *tables, *counts, line_rules.room_for_edits(lines)]


def _classified(lines: Lines, data: np.ndarray, *tables: Any) -> tuple[Any, Sequence[Any]]:
    _, table, limits = tables
    symbols = "".join(map(chr, np.flatnonzero(table == 1)))
    rows = [oracle.classified(line, limits, symbols) for line in _texts_of(lines.starts, lines.lengths, data)]
    sizes = [len(rest) for *_, rest in rows]
    starts = np.cumsum([0, *sizes], dtype=np.int64)[:-1]
    rests = np.frombuffer(b"".join(rest for *_, rest in rows), np.uint8)
    reasons, before, after = ([row[column] for row in rows] for column in range(3))
    return None, [before, after, reasons, starts, sizes, rests]


def _sum_arguments(case: Case) -> Sequence[Any]:
    case, lines = _lines(case)
    number = len(lines.starts)
    reasons = case.generator.integers(0, line_rules.NUM_REASONS, number).astype(np.uint8)
    before, after = (case.generator.integers(0, 99, number).astype(np.int32) for _ in range(2))
    return [lines.doc_offsets, reasons, before, after, np.empty((len(case.texts), line_rules.NUM_SUMS), np.int64)]


def _sum(doc_offsets: np.ndarray, *arrays: np.ndarray) -> tuple[Any, Sequence[Any]]:
    rows = []
    for start, stop in zip(doc_offsets[:-1], doc_offsets[1:], strict=True):
        reasons, before, after = (array[start:stop].tolist() for array in arrays)
        rows.append([*(reasons.count(reason) for reason in range(line_rules.NUM_REASONS)), sum(before), sum(after)])
    return None, [np.array(rows, np.int64)]


def _write_arguments(case: Case) -> Sequence[Any]:
    case, lines = _lines(case)
    limits = _limits(case.seed)
    rows = [oracle.classified(line, limits, _symbols(case.seed)) for line in _texts_of(lines.starts, lines.lengths, case.data)]
    sizes = np.array([len(rest) for *_, rest in rows], np.int32)
    edits = np.frombuffer(bytearray(b"".join(rest for *_, rest in rows)), np.uint8)
    reasons = np.array([reason for reason, *_ in rows], np.uint8)
    keep = (case.generator.random(len(case.texts)) < 0.9).view(np.uint8)
    rest_starts = np.cumsum([0, *sizes], dtype=np.int64)[:-1]
    line_edits = input_record(line_rules.LineEdits, (reasons, rest_starts, sizes, edits))
    outputs = [np.empty(len(case.offsets), np.int64), np.empty(len(case.data), np.uint8)]
    return [case.offsets, case.data, lines, line_edits, keep, mark_table(), *outputs]


def _write(
    offsets: np.ndarray, data: np.ndarray, given: Lines, line_edits: line_rules.LineEdits, *arrays: np.ndarray
) -> tuple[Any, Sequence[Any]]:
    doc_offsets, starts, lengths, *_ = given
    (reasons, rest_starts, sizes, edits), keep = line_edits, arrays[0]
    rests, texts = _texts_of(rest_starts, sizes, edits), []
    for doc, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        lines = [
            (int(starts[line] - begin), int(starts[line] + lengths[line] - begin), int(reasons[line]), rests[line])
            for line in range(doc_offsets[doc], doc_offsets[doc + 1])
        ]
        texts.append(oracle.written(data[begin:end].tobytes(), lines) if keep[doc] else b"")
    return None, [np.cumsum([0, *map(len, texts)]), np.frombuffer(b"".join(texts), np.uint8)]


ROWS = [
    Row(kernel=line_rules.classify_lines, arguments=_classify_arguments, oracle=_classified, num_outputs=3),
    Row(kernel=line_rules.sum_documents, arguments=_sum_arguments, oracle=_sum),
    Row(kernel=line_rules.write_texts, arguments=_write_arguments, oracle=_write, num_outputs=2),
]
