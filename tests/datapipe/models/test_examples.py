"""Samples of labelled texts: which documents they hold."""

import numpy as np
import pyarrow as pa

from datapipe.models.examples import LowestHashes


def test_lowest_hashes_do_not_depend_on_order_and_fit():
    rng = np.random.default_rng(1)
    hashes = rng.permutation(400).astype(np.uint64)
    texts = ["x" * int(length) for length in rng.integers(1, 60, 400)]
    by_hash = [text for _, text in sorted(zip(hashes.tolist(), texts))]
    expected = by_hash[: int(np.searchsorted(np.cumsum([len(text) for text in by_hash]), 1000, "right"))]
    for step in (1, 7, 400):
        held = LowestHashes(1000, pa.schema({"hash": pa.uint64(), "text": pa.large_string()}))
        for at in range(0, 400, step):
            part = (pa.array(hashes[at : at + step]), pa.array(texts[at : at + step], pa.large_string()))
            held.add(pa.table(part, names=["hash", "text"]))
        assert held.is_full
        assert held.table()["text"].to_pylist() == expected
