"""What a tokenizer makes of texts: bytes per token, tokens per word, by source and language; which ids it never uses.

    batch, ids ─▶ Meter ─▶ token counts, a bit for each id       added over tasks ─▶ `described`, `unused_tokens`

Words are runs without white space, so tokens per word say little where a script writes no spaces (Chinese, Thai). All numbers
are sums of integers over documents and the union of bits, so neither cuts nor workers show. Novels are counted at 63 MB/s on
one core of a busy machine (2026-11), most of it finding words; memory is one byte an id.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from datapipe.columns import compute as pc
from datapipe.metrics import Fertility, TokenCounts
from datapipe.stage.documents import DocumentBatch

LANGUAGE = "language"
"""The column that documents carry their language in."""

_EXAMPLES = 10
_REPLACED = "\N{REPLACEMENT CHARACTER}"


class Meter:
    """Counts what was encoded.

    Attributes:
        fertility: the counts so far.
        used: (vocab_size,) bool, the ids that occurred.
    """

    def __init__(self, vocab_size: int) -> None:
        self.fertility = Fertility()
        self.used = np.zeros(vocab_size, np.bool_)

    def add(self, batch: DocumentBatch, ids: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        """
        Args:
            ids, offsets: of the batch's texts, as `Encoder.encode` gives them.
        """
        self.used[ids] = True
        # counts: (num_docs, 4) int64
        lengths = [np.ones(batch.num_docs, np.int64), *map(np.diff, (batch.buffers[0], batch.words.doc_offsets, offsets))]
        counts = np.stack(lengths, axis=1)
        self.fertility.total.add(TokenCounts(*counts.sum(axis=0).tolist()))
        languages = _languages(batch)
        if languages is None or self.fertility.languages is None:
            return
        codes, names = languages
        sums = np.zeros((len(names), 4), np.int64)
        np.add.at(sums, codes, counts)
        for name, row in zip(names, sums.tolist()):
            self.fertility.add_language(name, TokenCounts(*row))

    @property
    def used_ids(self) -> bytes:
        """`used` as bits, eight ids a byte."""
        return np.packbits(self.used).tobytes()


def _languages(batch: DocumentBatch) -> tuple[NDArray[np.int64], list[str]] | None:
    """Each document's language as a number (num_docs,), and their names; None where documents carry no text of that name."""
    at = batch.record.schema.get_field_index(LANGUAGE)
    if at < 0:
        return None
    column = batch.record.column(at)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    encoded = pc.dictionary_encode(pc.fill_null(column, ""))
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def merged_ids(vocab_size: int, parts: Iterable[bytes]) -> NDArray[np.bool_]:
    """The ids that any part used: (vocab_size,) bool."""
    used = np.zeros((vocab_size + 7) // 8, np.uint8)
    for part in parts:
        used |= np.frombuffer(part, np.uint8)
    return np.unpackbits(used, count=vocab_size).astype(np.bool_)


def described(fertility: Fertility) -> dict[str, Any]:
    """Counts with their ratios, for report.json."""
    found = fertility.languages
    by_name = None if found is None else {name: _ratios(counts) for name, counts in sorted(found.items())}
    return {**_ratios(fertility.total), "languages": by_name}


def _ratios(counts: TokenCounts) -> dict[str, Any]:
    return {
        **counts.to_json(),
        "bytes_per_token": round(counts.bytes / counts.tokens, 4) if counts.tokens else None,
        "tokens_per_word": round(counts.tokens / counts.words, 4) if counts.words else None,
    }


def unused_tokens(tokenizer_json: bytes, used: NDArray[np.bool_]) -> dict[str, Any]:
    """How many tokens never occurred, and ten of them from all over the vocabulary. Special tokens never occur in text."""
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    tokens = {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    unused = [number for number in np.flatnonzero(~used).tolist() if number in tokens and number not in special]
    picked = unused[:: max(1, -(-len(unused) // _EXAMPLES))]
    shown = [(number, tokenizer.decode([number])) for number in picked]
    examples = [{"id": number, "token": text if text and _REPLACED not in text else tokens[number]} for number, text in shown]
    return {"count": len(unused), "examples": examples}
