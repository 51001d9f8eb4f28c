"""What `dedup.substring` emits: the pieces of documents as passages, and the anchors by which their windows meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE
from datapipe.kernels.dedup import substring
from datapipe.kernels.dedup.substring_tokens import TokenRules, token_rules
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.tables import key_hash
from stages.dedup._cutting import cut_rows

_ROOM_PIECES, _ROOM_ANCHORS = 1 << 13, 1 << 17

ANCHORS = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("span", pa.uint64(), nullable=False),
        pa.field("rank", pa.uint16(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("size", pa.uint32(), nullable=False),
        pa.field("piece", pa.uint32(), nullable=False),
        pa.field("trims", pa.uint8(), nullable=False),
    ]
)
"""The gram's hash and the span's, and where the span is in the text. `trims`: bytes of characters that its ends cut."""

PASSAGES = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("rank", pa.uint16(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("piece", pa.uint32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("text", pa.large_binary(), nullable=False),
    ]
)
"""The text of a piece, which begins at byte `start` of its document; met by document."""

TEXTS = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("rank", pa.uint16(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("text", pa.large_binary(), nullable=False),
    ]
)
"""Whole texts, or the parts between their seams, which begin at byte `start`; in the order that decides which copy is first.
Those of one hash are compared with each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grams:
    """How texts are cut: tokens that are bytes or words, of a window, of a gram, and how many windows are a piece."""

    by_bytes: bool
    length: int

    @property
    def gram(self) -> int:
        """Of words a third of a window. Of bytes more, since a third of 50 is a phrase that meets everywhere: with 22 for 17
        there are a fifth more anchors, and 0.9 instead of 2.3 million windows to compare in 20 MB."""
        return 4 * self.length // 9 if self.by_bytes else (self.length + 2) // 3

    @property
    def piece_tokens(self) -> int:
        """So that a piece is about 64 KiB."""
        return 1 << 16 if self.by_bytes else 1 << 13

    @property
    def most_windows(self) -> int:
        """Of one anchor."""
        return self.length - self.gram + 1

    @property
    def rules(self) -> TokenRules:
        """What kernels take for a token."""
        return token_rules(self.by_bytes)

    @property
    def sizes(self) -> substring.WindowSizes:
        """How kernels take tokens together."""
        return substring.window_sizes(self.length, self.gram, self.piece_tokens)


def emitted(batch: DocumentBatch, grams: Grams, keep: str, rank: np.uint16) -> dict[str, pa.RecordBatch]:
    """The anchors and passages of a batch, and the cuts that are known before anything has met: echoes of a piece of itself."""
    offsets, data = batch.buffers
    pieces, anchors, halves, echoes = _selected(batch, grams)
    keys = columns.key_matrix(batch.keys)
    echoed = anchors[:, 4] >= substring.ECHOED
    anchors[echoed, 4] -= substring.ECHOED
    if keep == "none":
        documents, _, starts, sizes, trims = anchors[echoed].T
        first_ones = np.column_stack([documents, starts + trims % 16, starts + sizes - trims // 16])
        echoes = np.concatenate([echoes, first_ones])
    documents, starts, stops = echoes.T
    begins = offsets[documents]
    return {
        "anchors": _anchors(anchors, halves, offsets, keys, rank),
        "passages": _passages(pieces, offsets, data, keys, rank),
        "cuts": cut_rows(columns.keys_from(keys[documents]), starts - begins, stops - begins),
    }


def _selected(batch: DocumentBatch, grams: Grams) -> list[np.ndarray]:
    """What `substring.select_anchors` finds in all parts of documents: pieces; anchors, (num_anchors, 5) int64: document,
    number of the piece, first byte, bytes, trims; their halves; echoes, (num_echoes, 3) int64: document, first byte, last."""
    parts, (_, data) = batch.parts, batch.buffers
    room = substring.AnchorsOut(
        np.empty((_ROOM_PIECES, substring.NUM_PIECE), np.int64),
        np.empty((_ROOM_ANCHORS, substring.NUM_ANCHOR), np.int64),
        np.empty((_ROOM_ANCHORS, 2), np.uint64),
        np.empty((_ROOM_ANCHORS, substring.NUM_ECHO), np.int64),
    )
    rules, sizes = grams.rules, grams.sizes
    scratch = substring.scratch_for(sizes)
    state, num_pieces = np.array([0, parts.offsets[0], 0, 0, 0], np.int64), 0
    found: list[tuple[np.ndarray, ...]] = [tuple(one[:0] for one in room)]
    while state[0] < len(parts.documents):
        recent = substring.recent_anchors()
        num_anchors = substring.select_anchors(parts.offsets, data, rules, sizes, scratch, recent, state, room)
        counts = (state[3], num_anchors, num_anchors, state[4])
        pieces, anchors, halves, echoes = (one[:count].copy() for one, count in zip(room, counts))
        anchors[:, 0] += num_pieces
        echoes[:, 0] += num_pieces
        num_pieces += len(pieces)
        found.append((pieces, anchors, halves, echoes))
    pieces, anchors, halves, echoes = (np.concatenate(part) for part in zip(*found))
    pieces[:, 0] = parts.documents[pieces[:, 0]]
    pieces[:, 1] = np.arange(num_pieces) - np.searchsorted(pieces[:, 0], pieces[:, 0])  # of the document, not of the part
    echoes[:, 0] = pieces[echoes[:, 0], 0]
    return [pieces, np.column_stack([pieces[anchors[:, 0], :2], anchors[:, 1:]]), halves, echoes]


def whole_texts(batch: DocumentBatch, rank: np.uint16) -> pa.RecordBatch:
    """Rows of TEXTS. Their hash is 0, until the engine keeps sources apart by it."""
    (offsets, data), parts = batch.buffers, batch.parts
    arrays = [
        pa.array(np.zeros(len(parts.documents), np.uint64)),
        pa.array(np.full(len(parts.documents), rank)),
        columns.keys_from(columns.key_matrix(batch.keys)[parts.documents]),
        pa.array(parts.offsets[:-1] - offsets[parts.documents]),
        columns.texts_from(parts.offsets, data).view(pa.large_binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TEXTS)


def _anchors(rows: np.ndarray, halves: np.ndarray, offsets: np.ndarray, keys: np.ndarray, rank: np.uint16) -> pa.RecordBatch:
    """Rows of ANCHORS of (num_anchors, 5) int64: document, number of the piece, first byte, bytes, trims."""
    documents, numbers, starts, sizes, trims = rows.T
    arrays = [
        pa.array(np.ascontiguousarray(halves[:, 0])),
        pa.array(np.ascontiguousarray(halves[:, 1])),
        pa.array(np.full(len(rows), rank)),
        columns.keys_from(keys[documents]),
        pa.array(starts - offsets[documents]),
        pa.array(sizes.astype(np.uint32)),
        pa.array(numbers.astype(np.uint32)),
        pa.array(trims.astype(np.uint8)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ANCHORS)


def _passages(pieces: np.ndarray, offsets: np.ndarray, data: np.ndarray, keys: np.ndarray, rank: np.uint16) -> pa.RecordBatch:
    documents, numbers, starts, stops = (np.ascontiguousarray(column) for column in pieces.T)
    text_offsets = np.concatenate([[0], np.cumsum(stops - starts)])
    text = np.empty(int(text_offsets[-1]), np.uint8)
    substring.copy_spans(starts, stops, data, text)
    whose = columns.keys_from(keys[documents])
    arrays = [
        pa.array(key_hash(whose)),
        pa.array(np.full(len(pieces), rank)),
        whose,
        pa.array(numbers.astype(np.uint32)),
        pa.array(starts - offsets[documents]),
        columns.texts_from(text_offsets, text).view(pa.large_binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=PASSAGES)
