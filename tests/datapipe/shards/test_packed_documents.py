"""Documents joined from packed rows."""

from __future__ import annotations

from time import process_time

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.shards.packed_documents import DocumentJoiner, without_removed
from datapipe.shards.removed import Removed
from datapipe.shards.verify import batch_problem
from datapipe.tokens.packing import assemble, pack
from tests.support.packed_shards import EOS, packed_batch


@pytest.mark.medium
def test_joiner_document_of_very_many_pieces_costs_linear_time():
    num_tokens = 120_000
    tokens = np.ones(num_tokens, np.uint16)
    tokens[-1] = EOS
    lengths, offsets = np.array([num_tokens]), np.array([0, num_tokens])
    keys = columns.key_matrix(columns.make_keys(1, np.arange(1)))
    packed = pack(lengths, 2, "best_fit")
    rows = assemble(packed, np.random.default_rng(1).permutation(packed.num_rows), tokens, offsets, keys, EOS, 2)
    joiner, started = DocumentJoiner(EOS), process_time()
    found, found_lengths = joiner.add(rows)
    joiner.finish()
    assert process_time() - started < 8  # 0.3 s; adding up all pieces at each one took 40 s
    assert np.array_equal(found, tokens)
    assert found_lengths.tolist() == [num_tokens]


@pytest.mark.parametrize("method", ["best_fit", "concat", "buckets"])
@pytest.mark.parametrize("share", [0.05, 0.6, 1.0])
def test_rows_without_removed_documents_hold_all_others_in_order(method, share):
    rows = packed_batch(120, 64, method=method, seed=3)
    every = [key.tobytes() for key in np.unique(columns.key_matrix(rows.column("keys").values), axis=0)]
    gone = set(every[:: int(1 / share)])
    left = without_removed(rows, Removed.none().with_takedown(gone), EOS)
    left.validate(full=True)
    assert _pieces(left) == [piece for piece in _pieces(rows) if piece[0] not in gone]
    assert left.schema == rows.schema
    assert left.num_rows == sum(any(key not in gone for key in keys) for keys in rows.column("keys").to_pylist())
    if method != "buckets":  # whose pieces end anywhere
        assert batch_problem(left, 50_000, EOS, was_cut=True) is None
    for row in left.to_pylist():
        assert row["lengths"]
        assert set(row["tokens"][sum(row["lengths"]) :]) <= {EOS}
    assert without_removed(rows, Removed.none(), EOS) is rows


def _pieces(rows: pa.RecordBatch) -> list[tuple[bytes, int, tuple[int, ...]]]:
    """Document, start and tokens of each piece, in order."""
    found = []
    for row in rows.to_pylist():
        first = 0
        for key, start, length in zip(row["keys"], row["starts"], row["lengths"]):
            found.append((key, start, tuple(row["tokens"][first : first + length])))
            first += length
    return found
