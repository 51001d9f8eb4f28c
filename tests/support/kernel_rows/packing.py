"""Rows of the kernels of `datapipe/kernels/tokens` that pack. Each text is a document of one token more than its bytes."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from datapipe.kernels.tokens import pack, split_to_fill
from tests.oracles import pack as oracle
from tests.oracles import split_to_fill as fill_oracle
from tests.support.kernel_table import Case, Steps, columns, grouped, room, row

_LENGTH, _POWER = 37, 64
"""Tokens of a row: no power of two, and less than the bytes of most texts; and for kernels that need a power of two."""

_CHUNK = (np.int64, np.int64, np.int32)


def _lengths(case: Case, most: int = 700) -> np.ndarray:
    return np.minimum(np.diff(case.offsets), most) + 1


def _chunk_lengths(case: Case) -> np.ndarray:
    return np.array([length for _, _, length in oracle.split_documents(_lengths(case).tolist(), _LENGTH)], np.int32)


@row(pack.split_documents)
def split_documents(case: Case) -> Steps:
    chunks = oracle.split_documents(_lengths(case).tolist(), _LENGTH)
    yield [_lengths(case), _LENGTH], room(len(chunks), *_CHUNK)
    yield None, columns(chunks, 3)


@row(pack.split_by_powers)
def split_by_powers(case: Case) -> Steps:
    lengths, min_chunk = _lengths(case), int(case.generator.integers(1, 9))
    chunks = oracle.split_by_powers(lengths.tolist(), _POWER, min_chunk)
    yield [lengths, _POWER, min_chunk], room(len(chunks), *_CHUNK)
    yield None, columns(chunks, 3)


@row(pack.cut_stream)
def cut_stream(case: Case) -> Steps:
    lengths = _lengths(case)
    num_rows = -(-int(lengths.sum()) // _LENGTH)
    yield [lengths, _LENGTH], [*room(len(lengths) + num_rows, *_CHUNK), np.zeros(num_rows + 1, np.int64)]
    rows = oracle.cut_stream(lengths.tolist(), _LENGTH)
    chunks = [chunk for own in rows for chunk in own]
    yield len(chunks), [*columns(chunks, 3), list(accumulate(map(len, rows), initial=0))]


@row(pack.by_length)
def by_length(case: Case) -> Steps:
    lengths = _chunk_lengths(case)
    yield [lengths, np.zeros(_LENGTH + 2, np.int64)], room(len(lengths), np.int64)
    yield None, [oracle.by_length(lengths.tolist())]


@row(pack.best_fit)
def best_fit(case: Case) -> Steps:
    lengths = _chunk_lengths(case)
    order = case.generator.permutation(len(lengths))
    tree, rooms = np.zeros(2 << _LENGTH.bit_length(), np.uint8), np.full(_LENGTH + 1, -1, np.int64)
    yield [lengths, order, _LENGTH, tree, rooms, *room(len(lengths), np.int64)], room(len(lengths), np.int64)
    rows = oracle.best_fit(lengths.tolist(), order.tolist(), _LENGTH)
    yield max(rows, default=-1) + 1, [rows]


@row(pack.by_row)
def by_row(case: Case) -> Steps:
    num_chunks = len(_chunk_lengths(case))
    num_rows = num_chunks // 3 + 1
    rows = case.generator.integers(0, num_rows, num_chunks)
    yield [rows, *room(num_rows, np.int64)], [np.zeros(num_rows + 1, np.int64), *room(num_chunks, np.int64)]
    yield None, list(oracle.by_row(rows.tolist(), num_rows))


@row(pack.fill_rows_16, np.uint16)
@row(pack.fill_rows_32, np.uint32)
def fill_rows(case: Case, dtype: type) -> Steps:
    tokens = np.concatenate([case.data, case.data[::-1]]).astype(dtype)
    num_rows = len(case.texts)
    offsets = np.cumsum([0, *case.generator.integers(0, 4, num_rows)], dtype=np.int64)
    lengths = np.minimum(case.generator.integers(1, _LENGTH // 3, offsets[-1]), len(tokens)).astype(np.int32)
    starts = case.generator.integers(0, len(tokens) - lengths + 1)
    yield [tokens, starts, lengths, offsets, 5, _LENGTH], room(num_rows * _LENGTH, dtype)
    chunks = grouped(offsets, list(zip(starts.tolist(), lengths.tolist())))
    filled = oracle.fill_rows(tokens.tolist(), chunks, 5, _LENGTH)
    yield None, [[token for own in filled for token in own]]


def _best_fit(case: Case) -> tuple[list[oracle.Chunk], list[int], list[int], list[list[int]]]:
    """Chunks, their rows by best fit, their order by length, and the chunks of each row."""
    chunks = oracle.split_documents(_lengths(case, 300).tolist(), _LENGTH)
    sizes = [length for _, _, length in chunks]
    order = oracle.by_length(sizes)
    rows = oracle.best_fit(sizes, order, _LENGTH)
    return chunks, rows, order, [[chunk for chunk in order if rows[chunk] == own] for own in range(max(rows, default=-1) + 1)]


def _opening(case: Case) -> tuple[list[Any], split_to_fill.RowsOut]:
    chunks, rows, order, held = _best_fit(case)
    empty = split_to_fill.RowsOut(
        *room(len(held), np.int64, np.int64),
        *room(len(chunks), np.int64),
        newest=np.full(_LENGTH + 1, -1, np.int64),
        newer=np.full(len(held), -1, np.int64),
        older=np.full(len(held), -1, np.int64),
        tree=np.zeros(2 << _LENGTH.bit_length(), np.uint8),
        is_receiver=np.zeros(len(held), np.uint8),
    )
    sizes = np.array([length for _, _, length in chunks], np.int32)
    return [sizes, np.array(rows, np.int64), np.array(order, np.int64), _LENGTH], empty


@row(split_to_fill.open_rows)
def open_rows(case: Case) -> Steps:
    inputs, out = _opening(case)
    yield inputs, [out]
    chunks, _, _, held = _best_fit(case)
    rooms = [_LENGTH - sum(chunks[chunk][2] for chunk in own) for own in held]
    following = {chunk: after for own in held for chunk, after in zip(own, [*own[1:], -1])}
    of_room = [[number for number, left in enumerate(rooms) if left == wanted > 0] for wanted in range(_LENGTH + 1)]
    older = {number: before for rows in of_room for number, before in zip(rows, [-1, *rows])}
    newer = {number: after for rows in of_room for number, after in zip(rows, [*rows[1:], -1])}
    num_leaves = 1 << _LENGTH.bit_length()
    leaves = [int(bool(rows)) for rows in of_room]
    tree = [0] * num_leaves + leaves + [0] * (num_leaves - len(leaves))
    for node in range(num_leaves - 1, 0, -1):  # a node is set if one of its children 2n and 2n + 1 is
        tree[node] = max(tree[2 * node], tree[2 * node + 1])
    yield (
        None,
        [
            rooms,
            [own[0] for own in held],
            [following[chunk] for chunk in range(len(chunks))],
            [rows[-1] if rows else -1 for rows in of_room],
            [newer.get(number, -1) for number in range(len(held))],
            [older.get(number, -1) for number in range(len(held))],
            tree,
            [0] * len(held),
        ],
    )


@row(split_to_fill.split_to_fill)
def split_documents_to_fill(case: Case) -> Steps:
    """Donors in any order, any least piece and limit."""
    inputs, rows = _opening(case)
    split_to_fill.open_rows(*inputs, rows)
    chunks, row_of_chunk, _, held = _best_fit(case)
    out = split_to_fill.ChunksOut(*(np.zeros(len(chunks) + len(held), kind) for kind in (*_CHUNK, np.int64)))
    for column, values in zip(out, [*columns(chunks, 3), row_of_chunk]):
        column[: len(chunks)] = values
    donors = case.generator.permutation(np.flatnonzero(rows.rooms > 0)).astype(np.int64)
    min_piece, limit = int(case.generator.integers(1, 5)), float(case.generator.choice([0.0, 0.001, 0.02]))
    counts = np.array([len(chunks), len(held), rows.rooms.sum()], np.int64)
    yield [donors, min_piece, limit, _LENGTH], [counts, out, rows]
    expected = fill_oracle.Rows(sequence_length=_LENGTH, chunks=chunks, held=held)
    is_within = fill_oracle.split_to_fill(expected, donors.tolist(), min_piece, limit)
    rooms = [expected.room(number) for number in range(len(held))]
    is_given = [int(number in expected.given) for number in range(len(held))]
    found = [list(expected.counts()), *columns(expected.chunks, 3), expected.row_of_chunk(), rooms]
    yield is_within, [*found, *[[]] * 6, is_given]
