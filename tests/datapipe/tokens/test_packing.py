"""Packing: every token once and in order, no row too long, and best fit as its definition has it."""

from __future__ import annotations

import json
from time import perf_counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.columns import key_matrix
from datapipe.tokens.encoder import Encoder
from datapipe.tokens.packing import PackedRows, assemble, count, pack
from tests.oracles import pack as oracle

documents = st.lists(st.integers(1, 70), max_size=60)
sequence_lengths = st.sampled_from([1, 2, 3, 7, 8, 9, 16, 33])
powers = st.sampled_from([1, 2, 4, 8, 32])
methods = st.sampled_from(["best_fit", "concat"])
methods_and_lengths = st.one_of(st.tuples(methods, sequence_lengths), st.tuples(st.just("buckets"), powers))


def rows_of(packed: PackedRows) -> list[list[oracle.Piece]]:
    pieces = list(zip(packed.piece_document.tolist(), packed.piece_start.tolist(), packed.piece_length.tolist()))
    return [pieces[start:stop] for start, stop in zip(packed.row_offsets[:-1], packed.row_offsets[1:])]


@given(documents, methods_and_lengths)
@settings(deadline=None)
def test_pack_any_lengths_holds_every_token_once_in_rows_of_at_most_s(lengths, method_and_length):
    method, sequence_length = method_and_length
    rows = rows_of(pack(np.array(lengths, np.int64), sequence_length, method))
    tokens = [(document, start + t) for row in rows for document, start, length in row for t in range(length)]
    assert sorted(tokens) == [(document, t) for document, length in enumerate(lengths) for t in range(length)]
    assert all(1 <= sum(length for _, _, length in row) <= sequence_length for row in rows)
    assert all(row == sorted(row) for row in rows)


@given(documents, sequence_lengths)
@settings(deadline=None)
def test_pack_best_fit_equals_linear_scan(lengths, sequence_length):
    pieces = oracle.split_documents(lengths, sequence_length)
    piece_lengths = [length for _, _, length in pieces]
    row_of_piece = oracle.best_fit(piece_lengths, oracle.by_length(piece_lengths), sequence_length)
    rows = rows_of(pack(np.array(lengths, np.int64), sequence_length, "best_fit"))
    assert rows == [[piece for piece, found in zip(pieces, row_of_piece) if found == row] for row in range(len(rows))]


@given(documents, sequence_lengths)
@settings(deadline=None)
def test_pack_concat_equals_stream_cut_every_s(lengths, sequence_length):
    assert rows_of(pack(np.array(lengths, np.int64), sequence_length, "concat")) == oracle.cut_stream(lengths, sequence_length)


@given(documents, powers, st.integers(1, 40))
@settings(deadline=None)
def test_pack_buckets_equals_binary_digits(lengths, sequence_length, min_piece):
    min_piece = min(min_piece, sequence_length)
    rows = rows_of(pack(np.array(lengths, np.int64), sequence_length, "buckets", min_piece))
    assert rows == oracle.buckets(lengths, sequence_length, min_piece)


@given(documents, powers)
@settings(deadline=None)
def test_pack_buckets_row_holds_pieces_of_one_length_of_different_documents(lengths, sequence_length):
    rows = rows_of(pack(np.array(lengths, np.int64), sequence_length, "buckets"))
    for row in rows:
        assert len({length for _, _, length in row}) == 1
        assert len({document for document, _, _ in row}) == len(row)
    short = [row for row in rows if sum(length for _, _, length in row) < sequence_length]
    assert len(short) == len({row[0][2] for row in short})  # at most one of each length


@given(documents, methods_and_lengths, st.integers(1, 8))
@settings(deadline=None)
def test_count_says_what_became_of_every_document(lengths, method_and_length, min_piece):
    method, sequence_length = method_and_length
    min_piece = min(min_piece, sequence_length) if method == "buckets" else 1
    packed = pack(np.array(lengths, np.int64), sequence_length, method, min_piece)
    rows, counted = rows_of(packed), count(packed, np.array(lengths, np.int64), sequence_length)
    pieces = [piece for row in rows for piece in row]
    whole = {document for document, _, length in pieces if length == lengths[document]}
    kept = {document for document, _, _ in pieces}
    tokens = sum(length for _, _, length in pieces)
    assert (counted.rows, counted.pieces, counted.tokens) == (len(rows), len(pieces), tokens)
    assert counted.padding_tokens == len(rows) * sequence_length - tokens
    assert (counted.documents, counted.split_documents) == (len(kept), len(kept - whole))
    assert (counted.dropped_tokens, counted.dropped_documents) == (sum(lengths) - tokens, len(lengths) - len(kept))


@given(documents, sequence_lengths)
@settings(deadline=None)
def test_pack_best_fit_splits_only_what_must_be_split(lengths, sequence_length):
    packed = pack(np.array(lengths, np.int64), sequence_length, "best_fit")
    pieces = np.bincount(packed.piece_document, minlength=len(lengths))
    assert pieces.tolist() == [-(-length // sequence_length) for length in lengths]


@given(documents, sequence_lengths, methods)
@settings(deadline=None)
def test_pack_piece_short_of_row_end_ends_its_document(lengths, sequence_length, method):
    for row in rows_of(pack(np.array(lengths, np.int64), sequence_length, method)):
        filled = 0
        for document, start, length in row:
            filled += length
            assert filled == sequence_length or start + length == lengths[document]


def test_pack_best_fit_worked_example_makes_four_rows():
    lengths = np.array([14, 7, 5, 2, 3], np.int64)
    expected = [[(0, 0, 8)], [(1, 0, 7)], [(0, 8, 6), (3, 0, 2)], [(2, 0, 5), (4, 0, 3)]]
    assert rows_of(pack(lengths, 8, "best_fit")) == expected


def test_pack_buckets_worked_example_makes_five_rows():
    lengths = np.array([14, 7, 5, 2, 3], np.int64)
    expected = [
        [(0, 0, 8)],
        [(0, 8, 4), (1, 0, 4)],
        [(2, 0, 4)],
        [(0, 12, 2), (1, 4, 2), (3, 0, 2), (4, 0, 2)],
        [(1, 6, 1), (2, 4, 1), (4, 2, 1)],
    ]
    assert rows_of(pack(lengths, 8, "buckets")) == expected
    assert rows_of(pack(lengths, 8, "buckets", min_piece=3)) == expected[:3]


def test_pack_real_looking_lengths_pads_next_to_nothing():
    lengths = np.maximum(1, np.random.default_rng(1).lognormal(6.4, 1.06, 10_000)).astype(np.int64)
    for sequence_length in (2048, 8192):
        best = pack(lengths, sequence_length, "best_fit").num_rows
        least = pack(lengths, sequence_length, "concat").num_rows
        assert least <= best <= least * 1.001 + 1


def test_pack_no_documents_makes_no_rows():
    assert pack(np.zeros(0, np.int64), 8, "best_fit").num_rows == 0
    assert pack(np.zeros(0, np.int64), 8, "concat").num_rows == 0
    assert pack(np.zeros(0, np.int64), 8, "buckets").num_rows == 0
    assert pack(np.array([3, 2, 3]), 8, "buckets", min_piece=4).num_rows == 0


def assembled(lengths: list[int], sequence_length: int, method, order=None, dtype=np.uint16):
    """A pool in which token t of document d is 100 * d + t + 1, and its batch."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.array([100 * document + t + 1 for document, length in enumerate(lengths) for t in range(length)], dtype)
    tokens.flags.writeable = False  # as views of Arrow buffers are
    keys = np.repeat(np.arange(len(lengths), dtype=np.uint8), 16).reshape(-1, 16)
    packed = pack(np.array(lengths, np.int64), sequence_length, method)
    order = np.arange(packed.num_rows) if order is None else order(packed.num_rows)
    return packed, assemble(packed, order, tokens, offsets, keys, 0, sequence_length)


@given(documents, methods_and_lengths, st.sampled_from([np.uint16, np.uint32]))
@settings(deadline=None)
def test_assemble_any_pool_fills_rows_with_their_pieces(lengths, method_and_length, dtype):
    method, sequence_length = method_and_length
    packed, batch = assembled(lengths, sequence_length, method, dtype=dtype)
    batch.validate(full=True)
    assert batch.schema.field("tokens").type.value_type == pa.from_numpy_dtype(dtype)
    for row, pieces in zip(batch.to_pylist(), rows_of(packed)):
        tokens = [100 * document + start + t + 1 for document, start, length in pieces for t in range(length)]
        assert row["tokens"] == tokens + [0] * (sequence_length - len(tokens))
        assert row["lengths"] == [length for _, _, length in pieces]
        assert row["starts"] == [start for _, start, _ in pieces]
        assert row["keys"] == [bytes([document] * 16) for document, _, _ in pieces]


def test_assemble_row_order_permutes_whole_rows():
    lengths = [14, 7, 5, 2, 3, 9, 1]
    _, straight = assembled(lengths, 8, "best_fit")
    order = np.random.default_rng(3).permutation
    _, turned = assembled(lengths, 8, "best_fit", order=order)
    place = np.random.default_rng(3).permutation(straight.num_rows)
    assert turned.to_pylist() == [straight.to_pylist()[row] for row in place]


def test_assemble_some_rows_holds_those_only():
    _, batch = assembled([14, 7, 5, 2, 3], 8, "best_fit", order=lambda count: np.array([3, 1]))
    assert batch.column("lengths").to_pylist() == [[5, 3], [7]]
    assert key_matrix(batch.column("keys").flatten())[:, 0].tolist() == [2, 4, 1]


@pytest.mark.real
@pytest.mark.slow
def test_pack_real_lengths_pads_at_most_a_thousandth(real_data):
    """Lengths of real web pages, as they are and in pools of 10,000 drawn from them."""

    def unpacked(path):
        with pa.input_stream(str(real_data / path), compression="zstd") as stream:
            return stream.read()

    encoder = Encoder(unpacked("tokenizers/gpt2/tokenizer.json.zst"))
    lengths: list[int] = []
    for name in ("cleaneval_web", "govuk_news", "govuk_commoncrawl_wet"):
        texts = [json.loads(line)["text"] for line in unpacked(f"prose/{name}.jsonl.zst").splitlines()]
        _, offsets = encoder.encode(pa.array(texts))
        lengths += (np.diff(offsets) + 1).tolist()
    rng = np.random.default_rng(2)
    for pool in (np.array(lengths), *(rng.choice(lengths, 10_000) for _ in range(5))):
        counted = count(pack(pool, 2048, "best_fit"), pool, 2048)
        assert counted.padding_tokens <= 0.001 * 2048 * counted.rows


@pytest.mark.slow
def test_pack_and_assemble_keep_up_with_tokenizing():
    rng = np.random.default_rng(5)
    lengths = np.maximum(1, rng.lognormal(6.4, 1.06, 10_000)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens, keys = np.ones(offsets[-1], np.uint16), np.zeros((len(lengths), 16), np.uint8)
    seconds = []
    for _ in range(4):  # the first one compiles
        started = perf_counter()
        packed = pack(lengths, 2048, "best_fit")
        assemble(packed, rng.permutation(packed.num_rows), tokens, offsets, keys, 0, 2048)
        seconds.append(perf_counter() - started)
    assert offsets[-1] / min(seconds) > 20e6  # tokens a second; 600 million were measured
