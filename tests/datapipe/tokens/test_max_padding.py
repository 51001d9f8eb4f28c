"""The limit of padding: it is kept, few documents are split for it, and pools within it are packed as before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.tokens.packing import PackedRows, count, pack
from tests.oracles import pack as pack_oracle
from tests.oracles import split_to_fill as oracle

S = 2048
crowded = st.tuples(st.integers(5, 40), st.integers(2, 40)).flatmap(
    lambda spread: st.lists(st.integers(spread[0], spread[0] + spread[1] // 8), min_size=2, max_size=40)
)
"""Lengths close to each other, which best fit pads."""
documents = st.one_of(st.lists(st.integers(1, 70), max_size=40), crowded)
sequence_lengths = st.sampled_from([1, 2, 7, 16, 33, 64])
limits = st.sampled_from([0.0, 0.01, 0.02, 0.2, 1.0])


def packed_within(lengths, sequence_length: int, limit: float) -> PackedRows:
    return pack(np.asarray(lengths, np.int64), sequence_length, "best_fit", max_padding=limit)


def rows_of(packed: PackedRows) -> list[list[pack_oracle.Chunk]]:
    pieces = list(zip(packed.piece_document.tolist(), packed.piece_start.tolist(), packed.piece_length.tolist()))
    return [pieces[start:stop] for start, stop in zip(packed.row_offsets[:-1], packed.row_offsets[1:])]


def rooms_of(packed: PackedRows, sequence_length: int) -> np.ndarray:
    return sequence_length - np.array([sum(length for _, _, length in row) for row in rows_of(packed)], np.int64)


def counted_share(packed: PackedRows, sequence_length: int) -> float:
    """Share of padding in all rows but the emptiest."""
    rooms = np.sort(rooms_of(packed, sequence_length))[:-1]
    return float(rooms.sum() / (len(rooms) * sequence_length)) if len(rooms) else 0.0


def is_kept(packed: PackedRows, sequence_length: int, limit: float) -> bool:
    """Whether the limit is kept, or no fewer rows can hold the tokens."""
    return counted_share(packed, sequence_length) <= limit or rooms_of(packed, sequence_length).sum() < sequence_length


@given(documents, sequence_lengths, limits)
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


@given(documents, sequence_lengths, limits)
@settings(deadline=None)
def test_pack_equals_rows_emptied_by_definition(lengths, sequence_length, limit):
    chunks = pack_oracle.split_documents(lengths, sequence_length)
    sizes = [length for _, _, length in chunks]
    by_best_fit = pack_oracle.best_fit(sizes, pack_oracle.by_length(sizes), sequence_length)
    expected = oracle.pack(chunks, by_best_fit, lengths, sequence_length, limit)
    packed = packed_within(lengths, sequence_length, limit)
    assert rows_of(packed) == [[expected.chunks[chunk] for chunk in sorted(held)] for held in expected.held if held]
    is_split = {document for document, _, length in expected.chunks if length < lengths[document] <= sequence_length}
    counted = count(packed, np.array(lengths, np.int64), sequence_length)
    assert packed.split_for_padding == counted.split_for_padding == len(is_split)
    assert counted.split_documents == len(is_split) + sum(length > sequence_length for length in lengths)


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
        pytest.param([S + 1] * 10_000, 0.0, 0.0, 1.0, id="S+1"),
        pytest.param([S + 1100] * 10_000, 0.23, 0.0, 0.0, id="S+1100"),
        pytest.param([700, 1900] * 5_000, 0.15, 0.106, 0.06, id="700-1900"),
        pytest.param([1100, S + 1100] * 5_000, 0.30, 0.127, 0.0, id="1100-3148"),
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


def test_pack_documents_above_the_row_length_are_split_before_others():
    packed = packed_within([1100, S + 1100] * 50, S, 0.3)
    assert packed.split_for_padding == 0
    assert counted_share(packed, S) <= 0.3


def test_pack_spread_lengths_keep_all_documents_whole():
    lengths = np.maximum(1, np.random.default_rng(1).lognormal(6.4, 1.06, 10_000)).astype(np.int64)
    packed = packed_within(lengths, S, 0.02)
    assert packed.split_for_padding == 0
    assert rows_of(packed) == rows_of(packed_within(lengths, S, 1.0))
