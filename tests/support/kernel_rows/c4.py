"""Rows of `datapipe/kernels/filters/c4.py`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.filters import c4, citations
from datapipe.kernels.text.marks import mark_table
from datapipe.kernels.text.words import Lines, find_lines
from datapipe.kernels.types import input_record
from tests.oracles import c4 as oracle
from tests.support.kernel_table import Case, Row

_SPICES = (
    b"[12]",
    b"[]",
    b"[1[2]3]",
    b"[edit]",
    b"[Edit]",
    b"[citation needed]",
    b"[citation",
    b"Lorem Ipsum",
    b"lorem",
    b"JavaScript",
    b"java script",
    b"{",
    b"Terms of Use",
    b"terms\x00of use",
    b"privacy POLICY",
    b"cookie policy",
    b"uses cookies",
    b"use of cookies",
    b"Use cookies",
    b"used cookies",
    b"cookies policy",
    b"...\n",
    b".\n",
    b'"\n',
    b"'\n",
    b"?\n",
)


def _lines(case: Case) -> tuple[Case, Lines]:
    """The texts with some words replaced by strings that the rules test, and their lines."""
    rng = random.Random(case.seed)
    texts = [[rng.choice(_SPICES) if rng.random() < 0.15 else word for word in text.split(b" ")] for text in case.texts]
    case = Case(texts=tuple(b" ".join(words) for words in texts), seed=case.seed)
    with np.errstate(over="ignore"):
        return case, find_lines(case.offsets, case.data)


def _texts_of(starts: np.ndarray, lengths: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start : start + length].tobytes() for start, length in zip(starts, lengths, strict=True)]


def _spans_of(lines: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of lines that each end with a newline."""
    lengths = np.array([len(line) for line in lines], np.int32)
    return np.cumsum([0, *(lengths + 1)], dtype=np.int64)[:-1], lengths


def _find_arguments(case: Case) -> Sequence[Any]:
    case, lines = _lines(case)
    brackets = np.flatnonzero(case.data == ord("["))
    return [lines, case.data, brackets, np.empty(len(brackets), np.int64)]


def _find(lines: Lines, data: np.ndarray, brackets: np.ndarray) -> tuple[Any, Sequence[Any]]:
    sizes = dict.fromkeys(brackets.tolist(), 0)
    for start, line in zip(lines.starts.tolist(), _texts_of(lines.starts, lines.lengths, data), strict=True):
        sizes |= {start + citation.start(): len(citation.group()) for citation in oracle.CITATION.finditer(line)}
    return sum(size > 0 for size in sizes.values()), [list(sizes.values())]


def _cut_arguments(case: Case) -> Sequence[Any]:
    case, lines = _lines(Case(texts=(b"one line", *case.texts), seed=case.seed))
    brackets = np.flatnonzero(case.data == ord("["))
    _, (sizes,) = _find(lines, case.data, brackets)
    stop = int(lines.starts[-1] + lines.lengths[-1])
    out = np.empty(stop - int(lines.starts[0]) - sum(sizes), np.uint8)
    brackets = [brackets, np.array(sizes, np.int64)]
    outputs = [np.empty(len(lines.starts), np.int64), np.empty(len(lines.starts), np.int32), out]
    return [lines, case.data, *brackets, *outputs]


def _cut(given: Lines, data: np.ndarray, *_: np.ndarray) -> tuple[Any, Sequence[Any]]:
    starts, lengths = given.starts, given.lengths
    lines = [oracle.without_citations(line) for line in _texts_of(starts, lengths, data)]
    between = [data[stop:start].tobytes() for stop, start in zip((starts + lengths)[:-1], starts[1:], strict=True)]
    texts = [line + gap for line, gap in zip(lines, [*between, b""], strict=True)]
    out_starts = np.cumsum([0, *map(len, texts)])[:-1]
    return None, [out_starts, [len(line) for line in lines], np.frombuffer(b"".join(texts), np.uint8)]


def _classify_arguments(case: Case) -> Sequence[Any]:
    case, lines = _lines(case)
    cleaned = [oracle.without_citations(line) for line in _texts_of(lines.starts, lines.lengths, case.data)]
    clean = np.frombuffer(b"".join(line + b"\n" for line in cleaned), np.uint8)
    flags = case.generator.integers(0, 2, 7) if case.seed % 2 else np.array([0, 1, 0, 1, 1, 1, 1])
    limits = c4.Limits(case.seed % 4, 7, *flags.astype(bool).tolist())
    clean_lines = input_record(citations.CleanLines, (*_spans_of(cleaned), clean))
    return [lines, case.data, clean_lines, mark_table(), limits, np.empty(len(cleaned), np.uint8)]


def _classified(
    lines: Lines, data: np.ndarray, clean: citations.CleanLines, _: np.ndarray, limits: c4.Limits
) -> tuple[Any, Sequence[Any]]:
    pairs = zip(_texts_of(lines.starts, lines.lengths, data), _texts_of(*clean), strict=True)
    return None, [[oracle.reason(line, without, list(map(int, limits))) for line, without in pairs]]


def _sum_arguments(case: Case) -> Sequence[Any]:
    case, lines = _lines(case)
    reasons = case.generator.integers(0, c4.NUM_REASONS, len(lines.starts)).astype(np.uint8)
    sentences = case.generator.integers(0, 9, len(lines.starts))
    out = np.empty((len(case.texts), c4.NUM_SUMS), np.int64)
    return [lines.doc_offsets, lines.lengths, lines.chars, reasons, sentences, 20, out]


def _sum(doc_offsets: np.ndarray, *arrays: Any) -> tuple[Any, Sequence[Any]]:
    lengths, chars, reasons, sentences, long_line_chars = arrays
    rows = []
    for start, stop in zip(doc_offsets[:-1], doc_offsets[1:], strict=True):
        by_reason = [int((reasons[start:stop] == reason).sum()) for reason in range(c4.NUM_REASONS)]
        kept = lengths[start:stop][reasons[start:stop] == c4.KEPT]
        joined = int(kept.sum()) + max(len(kept) - 1, 0)
        rows.append([*by_reason, int(sentences[start:stop].sum()), int((chars[start:stop] >= long_line_chars).sum()), joined])
    return None, [np.array(rows, np.int64)]


def _join_arguments(case: Case) -> Sequence[Any]:
    case, lines = _lines(case)
    kept = (case.generator.random(len(lines.starts)) < 0.7).view(np.uint8)
    keep = (case.generator.random(len(case.texts)) < 0.9).view(np.uint8)
    starts, lengths = lines.starts, lines.lengths
    if case.seed % 3 == 0:  # as citations leave white space at an edge
        starts, lengths = starts - 1, lengths + np.int32(1)
    out = np.empty(int(lengths.sum()) + len(lengths), np.uint8)
    clean = input_record(citations.CleanLines, (starts, lengths, case.data))
    return [lines.doc_offsets, clean, kept, keep, mark_table(), np.empty(len(case.offsets), np.int64), out]


def _join(doc_offsets: np.ndarray, clean: citations.CleanLines, *arrays: np.ndarray) -> tuple[Any, Sequence[Any]]:
    kept, keep, _ = arrays
    lines, texts = _texts_of(*clean), []
    for doc, (start, stop) in enumerate(zip(doc_offsets[:-1], doc_offsets[1:], strict=True)):
        texts.append(oracle.joined([lines[line] for line in range(start, stop) if kept[line]]) if keep[doc] else b"")
    offsets = np.cumsum([0, *map(len, texts)])
    return None, [offsets, np.frombuffer(b"".join(texts), np.uint8)]


ROWS = [
    Row(kernel=citations.find_citations, arguments=_find_arguments, oracle=_find),
    Row(kernel=citations.cut_citations, arguments=_cut_arguments, oracle=_cut, num_outputs=3),
    Row(kernel=c4.classify_lines, arguments=_classify_arguments, oracle=_classified),
    Row(kernel=c4.sum_documents, arguments=_sum_arguments, oracle=_sum),
    Row(kernel=c4.join_lines, arguments=_join_arguments, oracle=_join, num_outputs=2),
]
