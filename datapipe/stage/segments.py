"""Segments: control tokens that a document means, and which parts of it a loss counts.

    [{"token": "<|im_start|>"}, {"text": "user\\nHi", "learn": False}, {"token": "<|im_end|>"}, {"text": "Hello!"}]

    text      user\\nHi\\nHello!            filters, deduplication and redaction see this
    segments  start 0   <|im_start|>      the token stands here
              start 0   text, unlearned   text of a segment begins here
              start 7   <|im_end|>        a line end stands for the token in the text
              start 8   text, learned

The column has a list for each document, ascending by `start`. A segment goes to the start of the next one. A line end stands
for a token between two texts, so that the words on both sides stay apart; it is no text of the document. Text before the first
segment is learned. An empty list is a plain text. Text never becomes a control token: only a stage that names one means it
(`tokens/segments.py`).

Segments stay with their text when stages edit it (`steps/edited_segments.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.columns import numbers, text_buffers
from datapipe.errors import StageError

SEGMENTS = "segments"
SEGMENT_TYPE = pa.struct([("start", pa.int64()), ("token", pa.string()), ("learned", pa.bool_())])
SEGMENTS_TYPE = pa.list_(SEGMENT_TYPE)

_STANDS_FOR_TOKEN = "\n"
_EXPECTED = 'expected a list such as [{"token": "<|user|>"}, {"text": "Hi", "learn": False}]'


class Segments(NamedTuple):
    """The segments of a batch, (num_segments,) each."""

    documents: np.ndarray  # int64, ascending
    starts: np.ndarray  # int64, in the bytes of the batch: `DocumentBatch.buffers`
    tokens: pa.Array  # string, null for text
    learned: np.ndarray  # bool

    @property
    def is_text(self) -> np.ndarray:
        return numbers(self.tokens.is_null())

    def column(self, offsets: np.ndarray) -> pa.Array:
        """The column of documents with texts at `offsets` (num_docs + 1,) int64."""
        values = (pa.array(self.starts - offsets[self.documents]), self.tokens, pa.array(self.learned))
        counts = np.bincount(self.documents, minlength=len(offsets) - 1)
        of_struct = pa.StructArray.from_arrays(values, fields=list(SEGMENT_TYPE))
        return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)), of_struct)


def segments_of(column: pa.Array, offsets: np.ndarray) -> Segments:
    """The segments in a column (num_docs,), for texts at `offsets` (num_docs + 1,) int64."""
    counts, values = np.diff(numbers(column.offsets)), column.flatten()
    documents = np.repeat(np.arange(len(counts)), counts)
    starts, tokens, learned = values.flatten()
    return Segments(documents, numbers(starts) + offsets[documents], tokens, numbers(learned))


def check_segments(column: pa.Array, texts: pa.Array | None) -> None:
    """Raises StageError for a column that a stage returns, if it is not one of segments of the returned texts."""
    if texts is None:
        raise StageError("column 'segments': found no column 'text' beside it. Return the texts that the segments belong to")
    if column.type != SEGMENTS_TYPE or column.null_count or any(part.null_count for part in column.flatten().flatten()[::2]):
        raise StageError(f"column 'segments': expected {SEGMENTS_TYPE} without nulls, as `datapipe.stage.SEGMENTS_TYPE`")
    offsets, data = text_buffers(texts)
    segments = segments_of(column, offsets)
    starts, ends = offsets[segments.documents], offsets[segments.documents + 1]
    same = segments.documents[1:] == segments.documents[:-1]
    outside = (segments.starts < starts) | (segments.starts > ends)
    outside[1:] |= same & (segments.starts[1:] < segments.starts[:-1])
    inside = ~outside & (segments.starts < ends)
    outside[inside] |= (data[segments.starts[inside]] & 0xC0) == 0x80  # within a character
    if outside.any():
        wrong = int(np.flatnonzero(outside)[0])
        raise StageError(
            f"column 'segments': found the start {segments.starts[wrong] - starts[wrong]} in a text of "
            f"{ends[wrong] - starts[wrong]} bytes, expected ascending starts of characters"
        )


def text_and_segments(listed: Any) -> tuple[str, list[dict[str, Any]]]:
    """The text of a document and its row of the column, from the list that a stage returns. Raises StageError."""
    if not isinstance(listed, Sequence) or isinstance(listed, str | bytes):
        raise StageError(f"segments: found {type(listed).__name__}, {_EXPECTED}")
    checked = [_checked(number, segment) for number, segment in enumerate(listed)]
    text, starts = _text_and_starts(checked)
    rows = zip(starts, checked)
    return text, [{"start": start, "token": each["token"], "learned": each["learn"]} for start, each in rows]


def _text_and_starts(segments: Sequence[Mapping[str, Any]]) -> tuple[str, list[int]]:
    """The text of a document, and the byte at which each segment begins. A line end stands for a token between two texts."""
    parts: list[str] = []
    starts: list[int] = []
    num_bytes, needs_line_end = 0, False
    for segment in segments:
        starts.append(num_bytes)
        text = _STANDS_FOR_TOKEN if needs_line_end and segment.get("token") is not None else segment.get("text", "")
        if text:
            parts.append(text)
            num_bytes += len(text) if text.isascii() else len(text.encode())
            needs_line_end = not text.endswith(_STANDS_FOR_TOKEN)
    return "".join(parts), starts


def _checked(number: int, segment: Any) -> dict[str, Any]:
    if type(segment) is dict or isinstance(segment, Mapping):  # the second takes longer than all else here
        text, token, learned = segment.get("text", ""), segment.get("token"), segment.get("learn", True)
        has_keys = ("text" in segment) != ("token" in segment) and len(segment) == 1 + ("learn" in segment)
        if (
            has_keys
            and isinstance(text, str)
            and (token is None or (isinstance(token, str) and token))
            and isinstance(learned, bool)
        ):
            return {"text": text, "token": token, "learn": learned}
    raise StageError(f"segments[{number}]: found {segment!r:.100}, {_EXPECTED}")
