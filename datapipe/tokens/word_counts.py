"""Counts the words of texts, as a pattern splits them: all that training needs to know of a text.

texts ── cut by the pattern's kernel ──▶ words ──▶ distinct words with their counts ── summed over texts and tasks
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.kernels.tokens.word_sums import sum_words
from datapipe.tokens.encoder import slices_of
from datapipe.tokens.patterns import cut

COUNTED = columns.full_schema(word=pa.large_binary(), count=pa.int64())

LONGEST_WORD = 1 << 16
"""Bytes. A longer word counts as its pieces: the time of training grows with the square of a word's length, and pieces of a
genome teach as much. Without such words the result is that of the trainer of `tokenizers`."""

_SLICE_BYTES = 2 << 20  # bytes of text per call of the kernel, which needs 8 bytes for each of them
_MOST_UNSUMMED = 1 << 20  # rows that are kept before equal words among them are summed
_BATCH_ROWS = 1 << 15  # of a sum. Files have these batches, and their checksums enter fingerprints


class WordCounts:
    """The counts of words, summed. Memory is that of the distinct words."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._num_rows, self._num_distinct = 0, 0

    def add(self, counted: pa.RecordBatch | pa.Table) -> None:
        self._parts.append(pa.Table.from_batches([counted]) if isinstance(counted, pa.RecordBatch) else counted)
        self._num_rows += counted.num_rows
        if self._num_rows > 2 * self._num_distinct + _MOST_UNSUMMED:
            self.total()

    def total(self) -> pa.Table:
        """The columns of `COUNTED`, each word once, in the order in which they came first."""
        table = pa.concat_tables([COUNTED.empty_table(), *self._parts])
        if len(self._parts) > 1:
            batches = pa.Table.from_batches([_summed(table)]).to_batches(max_chunksize=_BATCH_ROWS)
            table = pa.Table.from_batches(batches, COUNTED)
        self._parts, self._num_rows, self._num_distinct = [table], table.num_rows, table.num_rows
        return table


def counted_words(texts: pa.Array, pattern: str) -> Iterator[pa.RecordBatch]:
    """Words and their counts, in the columns of `COUNTED`; a word may be in several batches."""
    for part in slices_of(_in_chunks(columns.as_large_string(texts)), _SLICE_BYTES):
        yield _counted(part, pattern)


def _in_chunks(texts: pa.Array) -> pa.Array:
    """The texts, long ones in chunks. A chunk begins with a space between ASCII letters: there every pattern begins a word."""
    offsets, data = columns.text_buffers(texts)
    long_texts = np.flatnonzero(np.diff(offsets) > _SLICE_BYTES)
    cuts = [cut for number in long_texts for cut in _cuts(data, int(offsets[number]), int(offsets[number + 1]))]
    return columns.texts_from(np.sort(np.concatenate([offsets, np.array(cuts, np.int64)])), data)


def _cuts(data: np.ndarray, start: int, stop: int) -> Iterator[int]:
    """At most one offset for each `_SLICE_BYTES` of a text: none where no space is between letters, as in Chinese."""
    for first in range(start + _SLICE_BYTES, stop, _SLICE_BYTES):
        block = data[first - 1 : min(first + _SLICE_BYTES, stop)]
        is_letter = ((block | 0x20) - np.uint8(ord("a"))) < 26  # bytes below "a" wrap around to values above 26
        spaces = np.flatnonzero(is_letter[:-2] & (block[1:-1] == ord(" ")) & is_letter[2:])
        if len(spaces):
            yield first + int(spaces[0])


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


def _summed(table: pa.Table) -> pa.RecordBatch:
    """Each word once, in the order in which they came first, with the sum of its counts."""
    words, counts = columns.contiguous(table["word"]), columns.numbers(table["count"])
    firsts, sums = np.empty(len(counts), np.int64), np.empty(len(counts), np.int64)
    num_distinct = sum_words(*columns.text_buffers(words), counts, firsts, sums)
    distinct = words.take(pa.array(firsts[:num_distinct]))
    return pa.RecordBatch.from_arrays([distinct, pa.array(sums[:num_distinct])], schema=COUNTED)


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
