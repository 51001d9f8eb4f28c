"""The fertility of a tokenizer: bytes per token and tokens per word, by source and language, and the ids that never occur.

    batch, ids ─▶ Meter ─▶ token counts, a bit for each id       added over tasks ─▶ `figures.py`

Words are runs without white space, so tokens per word mean little for Chinese or Thai. All numbers are sums over documents
or unions of bits, so the split of the work does not matter. Memory is one byte per id.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import compute as pc
from datapipe.kernels.text.word_counts import word_counts
from datapipe.stage.documents import DocumentBatch
from datapipe.token_counts import Fertility, TokenCounts

LANGUAGE = "language"  # the column with the language of a document
MAX_LANGUAGE_BYTES = 32
"""A column `language` with a longer value, or too many values, holds something else, and tokens are not counted by it."""


class Meter:
    """Counts encoded documents, and notes in `used`, (vocab_size,) bool, the ids that occurred."""

    def __init__(self, vocab_size: int, unknown_id: int | None = None) -> None:
        self.fertility, self._unknown_id = Fertility(), unknown_id
        self.used = np.zeros(vocab_size, np.bool_)

    def add(self, batch: DocumentBatch, ids: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns `TokenCounts`, (num_docs, 4). `ids`, `offsets`: of `Encoder.encode`."""
        self.used[ids] = True
        self.fertility.unknown += 0 if self._unknown_id is None else int(np.count_nonzero(ids == self._unknown_id))
        # counts: (num_docs, 4) int64
        num_bytes, words = np.diff(batch.buffers[0]), word_counts(*batch.buffers)
        counts = np.stack([np.ones(batch.num_docs, np.int64), num_bytes, words, np.diff(offsets)], axis=1)
        self.fertility.total.add(TokenCounts(*counts.sum(axis=0).tolist()))
        languages = _languages(batch)
        if languages is not None:
            self.fertility.languages.count(*languages, counts)
            if any(len(name.encode()) > MAX_LANGUAGE_BYTES for name in languages[1]):
                self.fertility.languages.by_name = None
        return counts

    @property
    def used_ids(self) -> bytes:
        """`used` as bits, eight ids a byte."""
        return np.packbits(self.used).tobytes()


def _languages(batch: DocumentBatch) -> tuple[NDArray[np.int64], list[str]] | None:
    """The language of each document as an index (num_docs,), and the names; None without a text column of that name."""
    index = batch.record.schema.get_field_index(LANGUAGE)
    if index < 0:
        return None
    column = batch.record.column(index)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    encoded = pc.dictionary_encode(pc.fill_null(column, ""))
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def merged_ids(vocab_size: int, parts: Iterable[bytes]) -> NDArray[np.bool_]:
    """The union of the used ids of all parts: (vocab_size,) bool."""
    used = np.zeros((vocab_size + 7) // 8, np.uint8)
    for part in parts:
        used |= np.frombuffer(part, np.uint8)
    return np.unpackbits(used, count=vocab_size).astype(np.bool_)
