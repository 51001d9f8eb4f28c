"""Documents joined from packed rows."""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest

from datapipe import columns
from datapipe.shards.packed_documents import DocumentJoiner
from datapipe.tokens.packing import assemble, pack
from tests.support.packed_shards import EOS


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
