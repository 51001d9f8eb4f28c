"""Fills texts into the gaps of forms: the columns of a batch, without a Python object for a piece of text.

form of each document ─▶ its pieces: constants, gaps ─┬─▶ spans of bytes ─▶ texts
texts of all gaps ─▶ a span for each gap ─────────────┘                └──▶ segments: `datapipe/stage/segments.py`
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from datapipe.columns import texts_from
from datapipe.kernels.text.json_strings import quoted
from datapipe.kernels.text.replace import copy_spans
from datapipe.kernels.text.strip import strip_spans
from datapipe.stage.segments import Segments

RAW, STRIPS_START, STRIPS_END, ESCAPED = 0, 1, 2, 4

_SLOT, _STRIPS, _START, _STOP, _TOKEN, _LEARNED = range(6)
_CONSTANT, _WITHIN, _TEXT = -1, -2, -1
_LINE_END = 10


class Gap(NamedTuple):
    """Where a text goes, which white space around it does not, and whether it is escaped as JSON has it between quotes."""

    slot: int
    strips: int


class Form(NamedTuple):
    """Segments with gaps."""

    constants: bytes
    pieces: np.ndarray
    """(num_pieces, 6) int64. The slot of a gap, or `_CONSTANT`, and what it strips. The span of a constant, for a token a line
    end. The token of the segment that the piece begins, or `_TEXT`, and whether it is learned; `_WITHIN` where none begins."""
    tokens: tuple[str, ...]
    made: Sequence[Any] = ()
    """What fills the slots behind those of a conversation: objects in other forms (`forms.py`)."""

    @classmethod
    def of(cls, segments: Iterable[tuple[Mapping[str, Any], Sequence[str | Gap]]], made: Sequence[Any] = ()) -> Self:
        """The form of segments, each {text or token, learn}, and the parts of their texts."""
        constants, pieces, tokens = bytearray(), list[tuple[int, ...]](), list[str]()
        for segment, parts in segments:
            kind, learned, token = _TEXT, int(segment["learn"]), segment.get("token")
            if token is not None:
                kind = len(tokens)
                tokens.append(token)
            for part in parts if token is None else "\n":
                constant = part.encode() if isinstance(part, str) else b""
                slot, strips = (_CONSTANT, RAW) if isinstance(part, str) else part
                pieces.append((slot, strips, len(constants), len(constants) + len(constant), kind, learned))
                constants += constant
                kind = _WITHIN
        return cls(bytes(constants), np.array(pieces, np.int64).reshape(-1, 6), tuple(tokens), made)

    @classmethod
    def of_segments(cls, segments: Iterable[Mapping[str, Any]]) -> Self:
        """A form without gaps."""
        return cls.of((segment, [segment.get("text", "")]) for segment in segments)


NOTHING = Form.of(())


class Filling:
    """The forms of the documents of a batch, and the texts for their gaps."""

    def __init__(self, num_docs: int, offsets: np.ndarray, data: np.ndarray) -> None:
        """`offsets`, `data`: texts for gaps that are known, (num_texts + 1,) int64 from 0 and bytes, with room for other bytes:
        where it is too small, all are copied."""
        self._offsets, self._data = offsets, data
        self._forms, self._texts = [NOTHING], list[str]()
        self._numbers: dict[int, int] = {}  # of forms, by identity
        self._form_of, self._first_slots = np.zeros((2, num_docs), np.int64)

    def add(self, form: Form, rows: np.ndarray | int, first_slots: np.ndarray | int) -> None:
        """`first_slots`: the number of the first text of each document."""
        number = self._numbers.setdefault(id(form), len(self._forms))
        self._form_of[rows], self._first_slots[rows] = number, first_slots
        self._forms += [form] if number == len(self._forms) else []

    def add_texts(self, form: Form, row: int, texts: Sequence[str]) -> None:
        self.add(form, row, len(self._offsets) - 1 + len(self._texts))
        self._texts += texts

    def columns(self) -> tuple[pa.Array, pa.Array]:
        """The texts of the documents, and their segments."""
        texts = [text.encode() for text in self._texts]
        ends = self._offsets[-1] + np.cumsum([len(text) for text in texts], dtype=np.int64)
        offsets = np.append(self._offsets, ends)
        own = _with_behind(self._data, int(self._offsets[-1]), np.frombuffer(b"".join(texts), np.uint8))
        inner_starts, inner_stops = np.empty((2, len(offsets) - 1), np.int64)
        strip_spans(offsets, own, inner_starts, inner_stops)

        # documents, slot, …: (num_pieces,), of all documents
        counts = np.array([len(form.pieces) for form in self._forms])
        firsts, of_form = np.cumsum(counts) - counts, counts[self._form_of]
        documents = np.repeat(np.arange(len(of_form)), of_form)
        begins = np.cumsum(of_form) - of_form
        index = np.arange(len(documents)) + np.repeat(firsts[self._form_of] - begins, of_form)
        slot, strips, starts, stops, tokens, learned = (column[index] for column in self._all_pieces(int(offsets[-1])))
        gaps = np.flatnonzero(slot != _CONSTANT)
        slots = slot[gaps] + self._first_slots[documents[gaps]]
        starts[gaps] = np.where(strips[gaps] & STRIPS_START, inner_starts[slots], offsets[slots])
        stops[gaps] = np.where(strips[gaps] & STRIPS_END, inner_stops[slots], offsets[slots + 1])

        constants = np.frombuffer(b"".join(form.constants for form in self._forms), np.uint8)
        escaped = _escape(gaps[strips[gaps] & ESCAPED != 0], starts, stops, own, int(offsets[-1]) + len(constants))
        source = _with_behind(own, int(offsets[-1]), np.concatenate([constants, escaped]))
        _leave_out_line_ends(tokens, documents, starts, stops, source)
        ends = np.append(0, np.cumsum(stops - starts))
        copied, text_offsets = np.empty(ends[-1], np.uint8), ends[np.append(begins, len(documents))]
        copy_spans(starts, stops, source, copied)
        names = pa.array([name for form in self._forms for name in form.tokens], pa.string())
        of_segments = np.flatnonzero(tokens != _WITHIN)
        chosen = pa.array(tokens[of_segments], mask=tokens[of_segments] == _TEXT)
        segments = Segments(documents[of_segments], ends[of_segments], names.take(chosen), learned[of_segments] != 0)
        return texts_from(text_offsets, copied), segments.column(text_offsets)

    def _all_pieces(self, num_bytes: int) -> np.ndarray:
        """The pieces of all forms, (6, num_pieces), with the numbers of tokens in all forms. Their constants lie behind
        `num_bytes`."""
        pieces, num_tokens = [], 0
        for form in self._forms:
            shifted = form.pieces.copy()
            shifted[:, (_START, _STOP)] += num_bytes
            shifted[shifted[:, _TOKEN] >= 0, _TOKEN] += num_tokens
            pieces.append(shifted)
            num_bytes, num_tokens = num_bytes + len(form.constants), num_tokens + len(form.tokens)
        return np.ascontiguousarray(np.concatenate(pieces).T)


def _with_behind(data: np.ndarray, num_bytes: int, others: np.ndarray) -> np.ndarray:
    """The first bytes of some, with others behind them."""
    if num_bytes + len(others) > len(data):
        return np.concatenate([data[:num_bytes], others])
    data[num_bytes : num_bytes + len(others)] = others
    return data


def _escape(pieces: np.ndarray, starts: np.ndarray, stops: np.ndarray, data: np.ndarray, num_before: int) -> np.ndarray:
    """The texts of pieces as JSON has them, which will lie behind `num_before` bytes: their spans are between the quotes."""
    offsets = np.append(0, np.cumsum(stops[pieces] - starts[pieces]))
    copied = np.empty(offsets[-1], np.uint8)
    copy_spans(starts[pieces], stops[pieces], data, copied)
    ends, written = quoted(offsets, copied)
    starts[pieces], stops[pieces] = num_before + ends[:-1] + 1, num_before + ends[1:] - 1
    return written


def _leave_out_line_ends(
    tokens: np.ndarray, documents: np.ndarray, starts: np.ndarray, stops: np.ndarray, source: np.ndarray
) -> None:
    """Empties the spans of tokens at the begin of a document, behind a token, and behind a line end."""
    counts = np.flatnonzero((tokens >= 0) | (starts < stops))
    is_token = tokens[counts] >= 0
    needs = np.zeros(len(counts), np.bool_)
    needs[1:] = ~is_token[:-1] & (documents[counts][1:] == documents[counts][:-1])
    needs[1:] &= source[stops[counts][:-1] - 1] != _LINE_END
    left_out = counts[is_token & ~needs]
    stops[left_out] = starts[left_out]
