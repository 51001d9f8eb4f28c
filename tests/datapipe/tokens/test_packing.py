"""Packing: every token once and in order, each method as its definition has it, padding within its limit."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.columns import key_matrix
from datapipe.tokens.packing import PackedRows, assemble, count, pack
from tests.oracles import packing as packing_oracle

documents = st.lists(st.integers(1, 70), max_size=60)
methods_and_lengths = st.one_of(
    st.tuples(st.sampled_from(["best_fit", "bos_aligned", "concat"]), st.sampled_from([1, 2, 3, 7, 8, 9, 16, 33]), st.just(1)),
    st.tuples(st.just("buckets"), st.sampled_from([1, 2, 4, 8, 32]), st.integers(1, 40)),
)


def packed_by(lengths: list[int], method: str, sequence_length: int, min_piece: int = 1) -> PackedRows:
    options = [min(min_piece, sequence_length)] if method == "buckets" else []
    return pack(np.array(lengths, np.int64), sequence_length, method, *options)  # type: ignore[arg-type]


def rows_of(packed: PackedRows) -> list[list[packing_oracle.Chunk]]:
    pieces = list(zip(packed.piece_document.tolist(), packed.piece_start.tolist(), packed.piece_length.tolist()))
    return [pieces[start:stop] for start, stop in zip(packed.row_offsets[:-1], packed.row_offsets[1:])]


def expected_rows(lengths: list[int], method: str, sequence_length: int, min_piece: int) -> list[list[packing_oracle.Chunk]]:
    if method == "concat":
        return packing_oracle.cut_stream(lengths, sequence_length)
    if method == "bos_aligned":
        return packing_oracle.bos_aligned(lengths, sequence_length, 1.0)
    if method == "buckets":
        return packing_oracle.buckets(lengths, sequence_length, min(min_piece, sequence_length))
    pieces = packing_oracle.split_documents(lengths, sequence_length)
    sizes = [length for _, _, length in pieces]
    rows = packing_oracle.best_fit(sizes, packing_oracle.by_length(sizes), sequence_length)
    return [[piece for piece, row in zip(pieces, rows) if row == number] for number in range(max(rows, default=-1) + 1)]


@given(documents, methods_and_lengths)
@settings(deadline=None)
def test_pack_any_lengths_has_the_rows_of_its_definition(lengths, method):
    rows = rows_of(packed_by(lengths, *method))
    assert rows == expected_rows(lengths, *method)
    tokens = [(document, start + t) for row in rows for document, start, length in row for t in range(length)]
    whole = [(document, t) for document, length in enumerate(lengths) for t in range(length)]
    assert sorted(tokens) == whole if method[0] in ("best_fit", "concat") else set(tokens) <= set(whole)
    assert all(1 <= sum(length for _, _, length in row) <= method[1] and row == sorted(row) for row in rows)


@given(documents, methods_and_lengths)
@settings(deadline=None)
def test_count_reports_what_became_of_every_document(lengths, method):
    packed = packed_by(lengths, *method)
    rows, counted = rows_of(packed), count(packed, np.array(lengths, np.int64), method[1])
    pieces = [piece for row in rows for piece in row]
    whole = {document for document, _, length in pieces if length == lengths[document]}
    kept = {document for document, _, _ in pieces}
    tokens = sum(length for _, _, length in pieces)
    assert (counted.rows, counted.pieces, counted.tokens) == (len(rows), len(pieces), tokens)
    assert counted.padding_tokens == len(rows) * method[1] - tokens
    assert (counted.documents, counted.split_documents) == (len(kept), len(kept - whole))
    assert (counted.dropped_tokens, counted.dropped_documents) == (sum(lengths) - tokens, len(lengths) - len(kept))


def test_pack_real_looking_lengths_pads_next_to_nothing():
    lengths = np.maximum(1, np.random.default_rng(1).lognormal(6.4, 1.06, 10_000)).astype(np.int64)
    for sequence_length in (2048, 8192):
        best, least = (pack(lengths, sequence_length, method).num_rows for method in ("best_fit", "concat"))
        assert least <= best <= least * 1.001 + 1


def assembled(lengths: list[int], method: Any, order: Any = None, dtype: Any = np.uint16) -> tuple[PackedRows, pa.RecordBatch]:
    """A pool in which token t of document d is 100 * d + t + 1, and its batch."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.array([100 * document + t + 1 for document, length in enumerate(lengths) for t in range(length)], dtype)
    tokens.flags.writeable = False  # as views of Arrow buffers are
    keys = np.repeat(np.arange(len(lengths), dtype=np.uint8), 16).reshape(-1, 16)
    packed = packed_by(lengths, *method)
    order = np.arange(packed.num_rows) if order is None else order
    return packed, assemble(packed, order, tokens, offsets, keys, 0, method[1])


@given(documents, methods_and_lengths, st.sampled_from([np.uint16, np.uint32]))
@settings(deadline=None)
def test_assemble_any_pool_fills_rows_with_their_pieces(lengths, method, dtype):
    packed, batch = assembled(lengths, method, dtype=dtype)
    batch.validate(full=True)
    assert batch.schema.field("tokens").type.value_type == pa.from_numpy_dtype(dtype)
    for row, pieces in zip(batch.to_pylist(), rows_of(packed), strict=True):
        tokens = [100 * document + start + t + 1 for document, start, length in pieces for t in range(length)]
        assert row["tokens"] == tokens + [0] * (method[1] - len(tokens))
        assert row["lengths"] == [length for _, _, length in pieces]
        assert row["starts"] == [start for _, start, _ in pieces]
        assert row["keys"] == [bytes([document] * 16) for document, _, _ in pieces]


def test_assemble_takes_rows_in_any_order_and_some_alone():
    lengths, method = [14, 7, 5, 2, 3, 9, 1], ("best_fit", 8)
    _, straight = assembled(lengths, method)
    order = np.random.default_rng(3).permutation(straight.num_rows)[1:]
    _, turned = assembled(lengths, method, order=order)
    assert turned.to_pylist() == [straight.to_pylist()[row] for row in order]
    assert len(key_matrix(turned.column("keys").flatten())) == sum(len(row["keys"]) for row in turned.to_pylist())


S = 2048
crowded = st.tuples(st.integers(5, 40), st.integers(2, 40)).flatmap(
    lambda spread: st.lists(st.integers(spread[0], spread[0] + spread[1] // 8), min_size=2, max_size=40)
)
"""Lengths close to each other, which best fit pads."""
padded_documents = st.one_of(st.lists(st.integers(1, 70), max_size=40), crowded)
sequence_lengths = st.sampled_from([1, 2, 7, 16, 33, 64])
limits = st.sampled_from([0.0, 0.01, 0.02, 0.2, 1.0])


def packed_within(lengths, sequence_length: int, limit: float) -> PackedRows:
    return pack(np.asarray(lengths, np.int64), sequence_length, "best_fit", max_padding=limit)


def rooms_of(packed: PackedRows, sequence_length: int) -> np.ndarray:
    return sequence_length - np.array([sum(length for _, _, length in row) for row in rows_of(packed)], np.int64)


def counted_share(packed: PackedRows, sequence_length: int) -> float:
    """Share of padding in all rows but the emptiest."""
    rooms = np.sort(rooms_of(packed, sequence_length))[:-1]
    return float(rooms.sum() / (len(rooms) * sequence_length)) if len(rooms) else 0.0


def is_kept(packed: PackedRows, sequence_length: int, limit: float) -> bool:
    """Whether the limit is kept, or no fewer rows can hold the tokens."""
    return counted_share(packed, sequence_length) <= limit or rooms_of(packed, sequence_length).sum() < sequence_length


@given(padded_documents, sequence_lengths, limits)
@settings(deadline=None)
def test_pack_any_lengths_holds_every_token_once_and_keeps_the_limit(lengths, sequence_length, limit):
    best_fit, packed = (packed_within(lengths, sequence_length, share) for share in (1.0, limit))
    tokens = [(document, start + t) for row in rows_of(packed) for document, start, length in row for t in range(length)]
    assert sorted(tokens) == [(document, t) for document, length in enumerate(lengths) for t in range(length)]
    rooms = rooms_of(packed, sequence_length)
    assert np.all((rooms >= 0) & (rooms < sequence_length))
    assert is_kept(packed, sequence_length, limit)
    if is_kept(best_fit, sequence_length, limit):
        assert rows_of(packed) == rows_of(best_fit)
    else:
        assert packed.num_rows < best_fit.num_rows


@given(padded_documents, sequence_lengths, limits)
@settings(deadline=None)
def test_pack_equals_rows_emptied_by_definition(lengths, sequence_length, limit):
    chunks = packing_oracle.split_documents(lengths, sequence_length)
    sizes = [length for _, _, length in chunks]
    by_best_fit = packing_oracle.best_fit(sizes, packing_oracle.by_length(sizes), sequence_length)
    expected = packing_oracle.pack(chunks, by_best_fit, lengths, sequence_length, limit)
    packed = packed_within(lengths, sequence_length, limit)
    assert rows_of(packed) == [[expected.chunks[chunk] for chunk in sorted(held)] for held in expected.held if held]
    is_split = {document for document, _, length in expected.chunks if length < lengths[document] <= sequence_length}
    counted = count(packed, np.array(lengths, np.int64), sequence_length)
    assert packed.split_for_padding == counted.split_for_padding == len(is_split)
    assert counted.split_documents == len(is_split) + sum(length > sequence_length for length in lengths)


@given(padded_documents, sequence_lengths, limits)
@settings(deadline=None)
def test_pack_bos_aligned_holds_the_beginning_of_every_document_and_counts_the_rest(lengths, sequence_length, limit):
    packed = pack(np.asarray(lengths, np.int64), sequence_length, "bos_aligned", max_padding=limit)
    rows = rows_of(packed)
    assert rows == packing_oracle.bos_aligned(lengths, sequence_length, limit)
    assert sorted(document for row in rows for document, _, _ in row) == list(range(len(lengths)))
    assert not packed.piece_start.any()
    for row in rows:
        assert sum(length for _, _, length in row) <= sequence_length
        for document, _, length in row[:-1]:
            assert length == lengths[document]
        if row[-1][2] < lengths[row[-1][0]]:  # a document is cut by the end of its row alone
            assert sum(length for _, _, length in row) == sequence_length
            assert row[-1][2] >= min(2, sequence_length)  # a bos alone trains nothing
    counted = count(packed, np.array(lengths, np.int64), sequence_length)
    held = {document: length for row in rows for document, _, length in row}
    assert counted.dropped_tokens == sum(length - held[document] for document, length in enumerate(lengths))
    is_cut = {document for document, length in held.items() if length < min(lengths[document], sequence_length)}
    assert counted.split_for_padding == sum(lengths[document] <= sequence_length for document in is_cut)
    if limit == 1:
        assert counted.dropped_tokens == sum(max(0, length - sequence_length) for length in lengths)


def test_pack_bos_aligned_cuts_no_document_down_to_its_bos():
    lengths = np.array([7] * 15 + [2], np.int64)
    packed = pack(lengths, 8, "bos_aligned", max_padding=0.0)
    assert packed.piece_length.min() >= 2
    assert packed.num_pieces == len(lengths)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("lengths", "most_padding", "most_dropped"),
    [
        pytest.param([1100] * 10_000, 0.02, 0.069, id="1100"),
        pytest.param([700, 1900] * 5_000, 0.06, 0.011, id="700-1900"),
        pytest.param(list(range(1050, 1900)) * 10, 0.1, 0.11, id="1050-1899"),
    ],
)
def test_pack_bos_aligned_never_drops_more_than_it_saves(lengths, most_padding, most_dropped):
    """A document of 1,900 tokens is not cut to fill a room of 148."""
    lengths = np.array(lengths, np.int64)
    whole, packed = (pack(lengths, S, "bos_aligned", max_padding=limit) for limit in (1.0, 0.02))
    assert counted_share(packed, S) <= most_padding
    num_dropped = int(lengths.sum() - packed.piece_length.sum())
    assert num_dropped <= most_dropped * lengths.sum()
    assert num_dropped < (rooms_of(whole, S).sum() - rooms_of(packed, S).sum()) / 2


@given(st.integers(1, 80), st.integers(1, 300), sequence_lengths, limits)
@settings(deadline=None)
def test_pack_equal_lengths_splits_as_few_documents_as_any_layout_must(length, num_docs, sequence_length, limit):
    """Of n documents of L tokens, R rows hold at most R · (S // L) whole ones."""
    packed = packed_within([length] * num_docs, sequence_length, limit)
    if length <= sequence_length:
        assert packed.split_for_padding == max(0, num_docs - packed.num_rows * (sequence_length // length))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("lengths", "padded", "most_split", "most_short"),
    [
        pytest.param([1100] * 10_000, 0.46, 0.452, 0.0, id="1100"),
        pytest.param([205] * 10_000, 0.09, 0.082, 0.63, id="205"),
        pytest.param([700, 1900] * 5_000, 0.15, 0.106, 0.06, id="700-1900"),
        pytest.param(list(range(1050, 1900)) * 10, 0.27, 0.268, 0.01, id="1050-1899"),
    ],
)
def test_pack_lengths_that_best_fit_pads_keep_the_limit_with_few_short_pieces(lengths, padded, most_split, most_short):
    lengths = np.array(lengths, np.int64)
    assert counted_share(packed_within(lengths, S, 1.0), S) >= padded
    packed = packed_within(lengths, S, 0.02)
    assert counted_share(packed, S) <= 0.02
    assert packed.split_for_padding <= most_split * len(lengths)
    pieces = packed.piece_length[packed.piece_length != lengths[packed.piece_document]]
    assert np.count_nonzero(pieces < S // 16) <= most_short * len(pieces)


def test_pack_spread_lengths_keep_all_documents_whole():
    lengths = np.maximum(1, np.random.default_rng(1).lognormal(6.4, 1.06, 10_000)).astype(np.int64)
    packed = packed_within(lengths, S, 0.02)
    assert packed.split_for_padding == 0
    assert rows_of(packed) == rows_of(packed_within(lengths, S, 1.0))
