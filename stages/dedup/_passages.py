"""The tables that `dedup.substring` emits, under names of columns that indexes on disk have:

batch  ->  anchors    one row a selected gram: its hash, the hash of its span, and where the span is
       ->  passages   one row a chunk (`piece`): its text, for windows that have to be compared
       ->  cuts       self-repeats: spans that repeat an earlier span of the same chunk
"""

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE, full_schema
from datapipe.dataclass import dataclass
from datapipe.kernels.dedup import substring
from datapipe.kernels.dedup.substring_tokens import TokenRules, token_rules
from datapipe.kernels.text.replace import copy_spans
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.tables import key_hash
from stages.dedup._cutting import cut_rows

_ROOM_CHUNKS, _ROOM_SELECTED = 1 << 13, 1 << 17

SELECTED_GRAMS = full_schema(
    hash=pa.uint64(),
    span=pa.uint64(),
    rank=pa.uint16(),
    key=KEY_TYPE,
    start=pa.int64(),
    size=pa.uint32(),
    piece=pa.uint32(),
    trims=pa.uint8(),
)
"""Hash of the gram, hash of its span, and the span's start and size in bytes. `trims`: bytes of
characters that cross the ends of the span, those at the start plus 16 times those at the end."""

PASSAGES = full_schema(
    hash=pa.uint64(), rank=pa.uint16(), key=KEY_TYPE, piece=pa.uint32(), start=pa.int64(), text=pa.large_binary()
)
"""The text of a chunk from byte `start` of its document. Rows are exchanged by document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Windowing:
    """The sizes of windows, grams and chunks. `length`: bytes or words of a window."""

    by_bytes: bool
    length: int

    @property
    def gram(self) -> int:
        """Tokens of a gram: of words a third of a window, of bytes 4/9: 22 bytes instead of 17 select a fifth more grams, and
        leave 0.9 instead of 2.3 million windows to compare in 20 MB of text."""
        return 4 * self.length // 9 if self.by_bytes else (self.length + 2) // 3

    @property
    def chunk_tokens(self) -> int:
        """Windows of a chunk, which is about 64 KiB of text."""
        return 1 << 16 if self.by_bytes else 1 << 13

    @property
    def rules(self) -> TokenRules:
        """What is a token, as kernels take it."""
        return token_rules(self.by_bytes)

    @property
    def sizes(self) -> substring.WindowSizes:
        """How tokens are grouped, as kernels take it."""
        return substring.window_sizes(self.length, self.gram, self.chunk_tokens)


def emit_rows(batch: DocumentBatch, windowing: Windowing, keep: str, rank: np.uint16) -> dict[str, pa.RecordBatch]:
    """The selected grams and passages of a batch, and the cuts that need no comparison: self-repeats of a chunk."""
    offsets, data = batch.buffers
    chunks, selected, halves, repeats = _select(batch, windowing)
    keys = columns.key_matrix(batch.keys)
    has_repeat = selected[:, 4] >= substring.SELF_REPEATED
    selected[has_repeat, 4] -= substring.SELF_REPEATED
    if keep == "none":
        documents, _, starts, sizes, partial = selected[has_repeat].T
        first_copies = np.column_stack([documents, starts + partial % 16, starts + sizes - partial // 16])
        repeats = np.concatenate([repeats, first_copies])
    documents, starts, stops = repeats.T
    begins = offsets[documents]
    return {
        "anchors": _selected_rows(selected, halves, offsets, keys, rank),
        "passages": _passages(chunks, offsets, data, keys, rank),
        "cuts": cut_rows(columns.keys_from(keys[documents]), starts - begins, stops - begins),
    }


def _select(batch: DocumentBatch, windowing: Windowing) -> list[np.ndarray]:
    """Chunks (num_chunks, 4) int64: document, number, start and stop byte. Selected grams (num_selected, 5) int64: document,
    number of the chunk, start byte, bytes, partial bytes; (num_selected, 2) uint64: hash of the gram, of the span.
    Self-repeats (num_repeats, 3) int64: document, start and stop byte."""
    parts, (_, data) = batch.parts, batch.buffers
    room = substring.SelectionOut(
        np.empty((_ROOM_CHUNKS, substring.CHUNK_COLUMNS), np.int64),
        np.empty((_ROOM_SELECTED, substring.GRAM_COLUMNS), np.int64),
        np.empty((_ROOM_SELECTED, 2), np.uint64),
        np.empty((_ROOM_SELECTED, substring.REPEAT_COLUMNS), np.int64),
    )
    rules, sizes = windowing.rules, windowing.sizes
    scratch = substring.scratch_for(sizes)
    state, num_chunks = np.array([0, parts.offsets[0], 0, 0, 0], np.int64), 0
    collected: list[tuple[np.ndarray, ...]] = [tuple(output[:0] for output in room)]
    while state[0] < len(parts.documents):
        recent = substring.recent_grams()
        num_selected = substring.select_grams(parts.offsets, data, rules, sizes, scratch, recent, state, room)
        counts = (state[3], num_selected, num_selected, state[4])
        chunks, selected, halves, repeats = (output[:count].copy() for output, count in zip(room, counts))
        selected[:, 0] += num_chunks
        repeats[:, 0] += num_chunks
        num_chunks += len(chunks)
        collected.append((chunks, selected, halves, repeats))
    chunks, selected, halves, repeats = (np.concatenate(part) for part in zip(*collected))
    chunks[:, 0] = parts.documents[chunks[:, 0]]
    # numbered in the document, not in the part
    chunks[:, 1] = np.arange(num_chunks) - np.searchsorted(chunks[:, 0], chunks[:, 0])
    repeats[:, 0] = chunks[repeats[:, 0], 0]
    return [chunks, np.column_stack([chunks[selected[:, 0], :2], selected[:, 1:]]), halves, repeats]


def _selected_rows(
    rows: np.ndarray, halves: np.ndarray, offsets: np.ndarray, keys: np.ndarray, rank: np.uint16
) -> pa.RecordBatch:
    """Rows of SELECTED_GRAMS. `rows`: (num_selected, 5) int64: document, number of the chunk, start
    byte, bytes, partial bytes."""
    documents, numbers, starts, sizes, partial = rows.T
    ranks, row_keys = np.full(len(rows), rank), columns.keys_from(keys[documents])
    arrays = [*halves.T, ranks, row_keys, starts - offsets[documents], sizes, numbers, partial]
    return pa.RecordBatch.from_arrays(arrays, schema=SELECTED_GRAMS)


def _passages(chunks: np.ndarray, offsets: np.ndarray, data: np.ndarray, keys: np.ndarray, rank: np.uint16) -> pa.RecordBatch:
    documents, numbers, starts, stops = (np.ascontiguousarray(column) for column in chunks.T)
    text_offsets = np.concatenate([[0], np.cumsum(stops - starts)])
    text = np.empty(int(text_offsets[-1]), np.uint8)
    copy_spans(starts, stops, data, text)
    chunk_keys = columns.keys_from(keys[documents])
    ranks, texts = np.full(len(chunks), rank), columns.texts_from(text_offsets, text).view(pa.large_binary())
    arrays = [key_hash(chunk_keys), ranks, chunk_keys, numbers, starts - offsets[documents], texts]
    return pa.RecordBatch.from_arrays(arrays, schema=PASSAGES)
