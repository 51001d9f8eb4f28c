"""Counts the words of texts, as a pattern splits them: all that training needs to know of a text.

texts ── cut by the pattern's kernel ──▶ words ──▶ distinct words with their counts ── summed over texts and tasks

Long texts are cut before, where every byte-level pattern cuts:

    … the lazy dog …      a letter, one space, a letter: the space begins a new word of the pattern
             ^ cut

A pre-token of the GPT-2, cl100k, o200k and Llama 3 patterns never holds a letter followed by a space. It also never begins
after a space that a letter follows. The words of the chunks are therefore those of the whole text. Text without such a space
(without ASCII words: Chinese, base64) is not cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.tokens.encoder import slices_of
from datapipe.tokens.patterns import cut

COUNTED = pa.schema([pa.field("word", pa.large_binary(), nullable=False), pa.field("count", pa.int64(), nullable=False)])

LONGEST_WORD = 1 << 16
"""Bytes. A longer word counts as its pieces: the time of training grows with the square of a word's length. Where a text is one
word, as a genome is, its pieces teach as much. Without such words the result is that of the trainer of `tokenizers`."""

_CHUNK_BYTES, _SLICE_BYTES = 256 << 10, 4 << 20
"""Texts are cut into chunks, and go to the kernel in slices: it needs 8 bytes for each byte."""

_WINDOW_BYTES = 64 << 10
"""A space to cut at is looked for in so many bytes at a time."""

_MOST_UNSUMMED = 1 << 20
"""Rows that are kept before equal words among them are summed."""


class WordCounts:
    """The counts of words, summed. Memory is that of the distinct words."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._num_rows, self._num_distinct = 0, 0

    def add(self, counted: pa.RecordBatch | pa.Table) -> None:
        """Adds counts, in the columns of `COUNTED`."""
        self._parts.append(pa.Table.from_batches([counted]) if isinstance(counted, pa.RecordBatch) else counted)
        self._num_rows += counted.num_rows
        if self._num_rows > 2 * self._num_distinct + _MOST_UNSUMMED:
            self.total()

    def total(self) -> pa.Table:
        """The columns of `COUNTED`, each word once, in the order in which they came first."""
        table = pa.concat_tables([COUNTED.empty_table(), *self._parts])
        if len(self._parts) > 1:
            summed = table.group_by("word", use_threads=False).aggregate([("count", "sum")])
            table = summed.select(["word", "count_sum"]).rename_columns(COUNTED.names).cast(COUNTED)
        self._parts, self._num_rows, self._num_distinct = [table], table.num_rows, table.num_rows
        return table


def counted_words(texts: pa.Array, pattern: str) -> Iterator[pa.RecordBatch]:
    """The words of some texts and how often each occurs, in the columns of `COUNTED`; a word may be in several batches.

    Args:
        texts: (num_docs,) large_string without nulls.
        pattern: a name of `patterns.PATTERNS`.
    """
    chunks, _ = cut_long_texts(columns.as_large_string(texts), _CHUNK_BYTES)
    for part in slices_of(chunks, _SLICE_BYTES):
        yield _counted(part, pattern)


def _counted(texts: pa.Array, pattern: str) -> pa.RecordBatch:
    offsets, data = columns.text_buffers(texts)
    num_bytes = int(offsets[-1] - offsets[0])
    ends = np.empty(num_bytes, np.int64)
    num_words = cut(pattern, offsets, data, ends)
    borders = _with_pieces(np.concatenate([offsets[:1], ends[:num_words]]), data)
    words = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(borders) - 1, [None, pa.py_buffer(borders), pa.py_buffer(data)]
    )
    counted = pc.value_counts(words)
    return pa.RecordBatch.from_arrays([counted.field("values"), counted.field("counts")], schema=COUNTED)


def _with_pieces(borders: np.ndarray, data: np.ndarray) -> np.ndarray:
    """The borders of words, (num_words + 1,) int64, with those of the pieces of long ones. Pieces end where characters do."""
    long_words = np.flatnonzero(np.diff(borders) > LONGEST_WORD)
    inserted = [_piece_ends(data, int(borders[word]), int(borders[word + 1])) for word in long_words]
    if not inserted:
        return borders
    places = np.repeat(long_words + 1, [len(each) for each in inserted])
    return np.insert(borders, places, np.concatenate(inserted))


def _piece_ends(data: np.ndarray, start: int, stop: int) -> list[int]:
    ends = []
    while stop - start > LONGEST_WORD:
        start += LONGEST_WORD
        while data[start] & 0xC0 == 0x80:
            start -= 1
        ends.append(start)
    return ends


def counted(texts: Iterable[pa.Array], pattern: str) -> pa.Table:
    """The distinct words of all texts, in the columns of `COUNTED`."""
    words = WordCounts()
    for array in texts:
        for part in counted_words(array, pattern):
            words.add(part)
    return words.total()


def cut_long_texts(texts: pa.Array, limit_bytes: int) -> tuple[pa.Array, np.ndarray]:
    """The texts, with those above `limit_bytes` cut into chunks: a chunk ends at the first cut after `limit_bytes`.

    Returns:
        chunks: (num_chunks,) large_string over the same bytes, in order.
        first_chunk: (num_docs + 1,) int64; document i consists of the chunks `first_chunk[i]` to `first_chunk[i + 1]`.
    """
    offsets, data = columns.text_buffers(texts)
    long_documents = np.flatnonzero(np.diff(offsets) > limit_bytes)
    cuts = [_cut_offsets(data, int(offsets[i]), int(offsets[i + 1]), limit_bytes) for i in long_documents]
    extra_chunks = np.zeros(len(offsets), np.int64)
    num_cuts = [len(document_cuts) for document_cuts in cuts]
    extra_chunks[long_documents + 1] = num_cuts
    first_chunk = np.arange(len(offsets)) + np.cumsum(extra_chunks)
    inserted_before = np.repeat(long_documents + 1, num_cuts)
    chunk_offsets = np.insert(offsets, inserted_before, np.concatenate([*cuts, np.zeros(0, np.int64)]))
    return columns.texts_from(chunk_offsets, data), first_chunk


def _cut_offsets(data: np.ndarray, start: int, stop: int, limit_bytes: int) -> np.ndarray:
    """The cuts of the text `data[start:stop]`: (num_cuts,) int64, ascending offsets in `data`."""
    cuts: list[int] = []
    while stop - start > limit_bytes:
        cut = _next_cut(data, start + limit_bytes, stop)
        if cut is None:
            break
        cuts.append(cut)
        start = cut
    return np.array(cuts, np.int64)


def _next_cut(data: np.ndarray, first: int, stop: int) -> int | None:
    """The first space at or after `first` with an ASCII letter on each side, both before `stop`."""
    for window in range(first, stop - 1, _WINDOW_BYTES):
        view = data[window - 1 : min(window + _WINDOW_BYTES, stop - 1) + 1]
        letter = ((view | 0x20) - np.uint8(ord("a"))) < 26  # bytes below "a" wrap around to values above 26
        spaces = np.flatnonzero(letter[:-2] & (view[1:-1] == ord(" ")) & letter[2:])
        if len(spaces):
            return window + int(spaces[0])
    return None
