"""Packing: every token once and in order, no row too long, and each method as its definition has it."""

from __future__ import annotations

import json
from typing import Any

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
methods_and_lengths = st.one_of(
    st.tuples(st.sampled_from(["best_fit", "concat"]), st.sampled_from([1, 2, 3, 7, 8, 9, 16, 33]), st.just(1)),
    st.tuples(st.just("buckets"), st.sampled_from([1, 2, 4, 8, 32]), st.integers(1, 40)),
)


def packed_by(lengths: list[int], method: str, sequence_length: int, min_piece: int = 1) -> PackedRows:
    options = [min(min_piece, sequence_length)] if method == "buckets" else []
    return pack(np.array(lengths, np.int64), sequence_length, method, *options)  # type: ignore[arg-type]


def rows_of(packed: PackedRows) -> list[list[oracle.Chunk]]:
    pieces = list(zip(packed.piece_document.tolist(), packed.piece_start.tolist(), packed.piece_length.tolist()))
    return [pieces[start:stop] for start, stop in zip(packed.row_offsets[:-1], packed.row_offsets[1:])]


def expected_rows(lengths: list[int], method: str, sequence_length: int, min_piece: int) -> list[list[oracle.Chunk]]:
    if method == "concat":
        return oracle.cut_stream(lengths, sequence_length)
    if method == "buckets":
        return oracle.buckets(lengths, sequence_length, min(min_piece, sequence_length))
    pieces = oracle.split_documents(lengths, sequence_length)
    sizes = [length for _, _, length in pieces]
    rows = oracle.best_fit(sizes, oracle.by_length(sizes), sequence_length)
    return [[piece for piece, row in zip(pieces, rows) if row == number] for number in range(max(rows, default=-1) + 1)]


@given(documents, methods_and_lengths)
@settings(deadline=None)
def test_pack_any_lengths_has_the_rows_of_its_definition(lengths, method):
    rows = rows_of(packed_by(lengths, *method))
    assert rows == expected_rows(lengths, *method)
    tokens = [(document, start + t) for row in rows for document, start, length in row for t in range(length)]
    whole = [(document, t) for document, length in enumerate(lengths) for t in range(length)]
    assert sorted(tokens) == whole if method[0] != "buckets" else set(tokens) <= set(whole)
    assert all(1 <= sum(length for _, _, length in row) <= method[1] and row == sorted(row) for row in rows)


@given(documents, methods_and_lengths)
@settings(deadline=None)
def test_count_says_what_became_of_every_document(lengths, method):
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
