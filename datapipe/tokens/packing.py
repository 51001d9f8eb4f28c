"""Packing documents into rows of exactly S tokens: which piece goes where, then the copy.

    lengths (num_docs,) ── pack ──▶ PackedRows ── assemble, rows in any order ──▶ a record batch of `schemas.sequences`

    best_fit   documents above S are cut into rows of S and a remainder; nothing else is ever cut (arXiv 2404.10830)
    concat     documents end to end, cut every S tokens

With lengths 14, 7, 5, 2, 3 and S = 8, best fit makes 4 rows: 8 of the 14; the 7; the other 6 and the 2; 5 and 3. Whatever the
method, a piece that stops short of the row's end is the end of its document. Both are a function of the lengths alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.kernels import pack as kernels
from datapipe.shards import schemas

Method = Literal["best_fit", "concat"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRows:
    """Rows as lists of pieces; in a row, pieces of best fit stand in the order of their documents.

    Attributes:
        piece_document: (num_pieces,) int64, index of the document.
        piece_start: (num_pieces,) int64, first token in its document.
        piece_length: (num_pieces,) int32, at least 1.
        row_offsets: (num_rows + 1,) int64 into the pieces.
    """

    piece_document: np.ndarray
    piece_start: np.ndarray
    piece_length: np.ndarray
    row_offsets: np.ndarray

    @property
    def num_rows(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def num_pieces(self) -> int:
        return len(self.piece_document)


def pack(lengths: np.ndarray, sequence_length: int, method: Method) -> PackedRows:
    """Rows for documents of `lengths` (num_docs,) int64 tokens, each at least 1 since the end-of-text token counts."""
    assert sequence_length >= 1, sequence_length
    assert len(lengths) == 0 or int(lengths.min()) >= 1, "a document without its end-of-text token"
    lengths = np.ascontiguousarray(lengths, np.int64)
    return _best_fit(lengths, sequence_length) if method == "best_fit" else _concat(lengths, sequence_length)


def _best_fit(lengths: np.ndarray, sequence_length: int) -> PackedRows:
    num_pieces = int((-(-lengths // sequence_length)).sum())
    document, start = np.empty(num_pieces, np.int64), np.empty(num_pieces, np.int64)
    length = np.empty(num_pieces, np.int32)
    kernels.split_documents(lengths, sequence_length, document, start, length)

    order = np.empty(num_pieces, np.int64)
    kernels.by_length(length, np.zeros(sequence_length + 2, np.int64), order)
    tree = np.zeros(2 << sequence_length.bit_length(), np.uint8)
    newest, older = np.full(sequence_length + 1, -1, np.int64), np.empty(num_pieces, np.int64)
    row = np.empty(num_pieces, np.int64)
    num_rows = kernels.best_fit(length, order, sequence_length, tree, newest, older, row)

    row_offsets = np.zeros(num_rows + 1, np.int64)
    kernels.by_row(row, np.empty(num_rows, np.int64), row_offsets, order)
    return PackedRows(
        piece_document=document[order], piece_start=start[order], piece_length=length[order], row_offsets=row_offsets
    )


def _concat(lengths: np.ndarray, sequence_length: int) -> PackedRows:
    num_rows = -(-int(lengths.sum()) // sequence_length)
    most_pieces = len(lengths) + num_rows
    document, start = np.empty(most_pieces, np.int64), np.empty(most_pieces, np.int64)
    length = np.empty(most_pieces, np.int32)
    row_offsets = np.zeros(num_rows + 1, np.int64)
    num_pieces = kernels.cut_stream(lengths, sequence_length, document, start, length, row_offsets)
    return PackedRows(
        piece_document=document[:num_pieces],
        piece_start=start[:num_pieces],
        piece_length=length[:num_pieces],
        row_offsets=row_offsets,
    )


def assemble(
    packed: PackedRows,
    row_order: np.ndarray,
    tokens: np.ndarray,
    doc_offsets: np.ndarray,
    keys: np.ndarray,
    pad_id: int,
    sequence_length: int,
) -> pa.RecordBatch:
    """The rows `row_order` of `packed`, with their tokens, as a record batch of `schemas.sequences`.

    Args:
        row_order: (num_rows,) int64, or some of the rows: their order in the batch.
        tokens: (num_tokens,) uint16 or uint32, all documents.
        doc_offsets: (num_docs + 1,) int64 into `tokens`.
        keys: (num_docs, 16) uint8.
        pad_id: what fills a row up: the end-of-text id.
    """
    counts = np.diff(packed.row_offsets)[row_order]
    row_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    piece = np.repeat(packed.row_offsets[row_order] - row_offsets[:-1], counts) + np.arange(row_offsets[-1])
    document, start, length = packed.piece_document[piece], packed.piece_start[piece], packed.piece_length[piece]

    rows = np.empty(len(row_order) * sequence_length, tokens.dtype)
    fill = kernels.fill_rows_16 if tokens.dtype == np.uint16 else kernels.fill_rows_32
    fill(tokens, doc_offsets[document] + start, length, row_offsets, pad_id, sequence_length, rows)

    schema = schemas.sequences(pa.from_numpy_dtype(tokens.dtype), sequence_length)
    offsets = pa.array(row_offsets.astype(np.int32))
    values = {"lengths": pa.array(length), "keys": columns.keys_from(keys[document]), "starts": pa.array(start)}
    lists = [pa.ListArray.from_arrays(offsets, column, type=schema.field(name).type) for name, column in values.items()]
    row_tokens = pa.FixedSizeListArray.from_arrays(pa.array(rows), type=schema.field("tokens").type)
    return pa.RecordBatch.from_arrays([row_tokens, *lists], schema=schema)
