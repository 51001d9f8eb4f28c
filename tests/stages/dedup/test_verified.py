"""Verification: dropped documents were measured to be similar, and similar documents are found without all pairs."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from stages.dedup._verified import BANDS
from stages.dedup.minhash import Minhash
from tests.oracles import components as oracle
from tests.support.global_stages import batch_of, dropped, exchanged, opened, reduce_all, row_of


def _opened(**options: object) -> Minhash:
    return opened(Minhash.model_validate(options), "dedup.minhash")


def _families(seed: int, num_families: int, num_members: int, shared: int, drift: float = 0.0) -> list[str]:
    """Texts of 300 words, the first `shared` the same in all, of which each has a few of its own; shuffled.

    Args:
        drift: how often a member takes its own words on to the next.
    """
    generator, texts = np.random.default_rng(seed), []
    for family in range(num_families):
        words = [f"s{number}" for number in range(shared)] + [f"f{family}w{number}" for number in range(300 - shared)]
        for _ in range(num_members):
            changed = list(words)
            for at in np.flatnonzero(generator.random(300) < 0.01):
                changed[at] = f"m{generator.integers(1 << 40)}"
            texts.append(" ".join(changed))
            words = changed if generator.random() < drift else words
    return [texts[number] for number in generator.permutation(len(texts))]


def _signatures(stage: Minhash, emitted: dict[str, pa.RecordBatch]) -> dict[int, np.ndarray]:
    rows = emitted["signatures"]
    return {row_of(row["key"]): np.frombuffer(row["signature"], np.uint32) for row in rows.to_pylist()}


def _all_pairs(stage: Minhash, emitted: dict[str, pa.RecordBatch], num_docs: int) -> dict[int, int]:
    """Document -> survivor where every pair of every bucket is compared."""
    signed, buckets = _signatures(stage, emitted), defaultdict(set)
    for row in emitted["bands"].to_pylist():
        buckets[row["hash"]].add(row_of(row["key"]))
    matches = {pair for members in buckets.values() for pair in combinations(sorted(members), 2)}
    similar = [(a, b) for a, b in matches if round(float(np.mean(signed[a] == signed[b])), 6) >= stage.least_similarity()]
    return oracle.survivors(num_docs, similar, [0] * num_docs)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("families", "options"),
    [
        ((1, 40, 3, 190), {"min_similarity": 0.8}),
        ((2, 8, 20, 190), {"bands": 20, "rows": 5, "min_similarity": 0.8}),
        ((3, 12, 12, 0, 0.5), {}),
        ((4, 12, 12, 0, 0.5), {"min_similarity": 0.9}),
    ],
)
def test_verified_drops_are_those_of_all_pairs_or_nearly(families: tuple[Any, ...], options: dict[str, object]) -> None:
    stage, texts = _opened(**options), _families(*families)
    emitted = dict(stage.emit(batch_of(texts)))
    expected = _all_pairs(stage, emitted, len(texts))
    found = dropped(stage, texts)
    cluster = [expected.get(number, number) for number in range(len(texts))]
    assert all(cluster[one] == cluster[survivor] for one, survivor in found.items())  # nothing that all pairs would keep apart
    assert len(expected) > 50
    assert len(found) >= 0.98 * len(expected)


def test_verified_document_unlike_the_center_of_its_star_is_found() -> None:
    """0 and 1 match 2 and 3 in a bucket by chance; 3 is similar to 2, and the center of the star is 0."""
    stage = _opened()
    family, other = _families(5, 1, 2, 0), _families(6, 2, 2, 0)[2:]
    texts = [*family, *other]
    emitted = dict(stage.emit(batch_of(texts)))
    keys = emitted["signatures"].column("key")
    emitted["bands"] = pa.RecordBatch.from_arrays([pa.array(np.full(4, 9, np.uint64)), keys], schema=BANDS)
    drops = exchanged(stage, {name: [rows] for name, rows in emitted.items()})["drops"].to_pylist()
    assert {row_of(row["key"]): row_of(row["survivor"]) for row in drops} == _all_pairs(stage, emitted, 4)
    assert len(drops) == 2


def test_verified_matches_by_chance_drop_documents_only_without_verification() -> None:
    texts = _families(7, 2, 1, 150)
    assert dropped(_opened(bands=100, rows=1, verify="none"), texts) == {1: 0}
    assert dropped(_opened(bands=100, rows=1, min_similarity=0.8), texts) == {}


def test_verified_value_is_the_greatest_similarity_measured() -> None:
    stage, texts = _opened(), _families(8, 1, 3, 0)
    batch = batch_of(texts)
    signed = _signatures(stage, dict(stage.emit(batch)))
    drops = reduce_all(stage, [batch])["drops"].to_pylist()
    assert len(drops) == 2
    for row in drops:
        one = row_of(row["key"])
        likeness = [float(np.mean(signed[one] == signed[other])) for other in range(3) if other != one]
        assert row["value"] in [round(number, 4) for number in likeness]
        assert row["value"] >= stage.least_similarity()


@pytest.mark.medium
@pytest.mark.parametrize("keep", ["first", "longest", "random"])
def test_verified_survivors_do_not_depend_on_buckets_or_the_way_of_joining(keep: str) -> None:
    stage, texts = _opened(keep=keep, size_column="copies"), _families(9, 6, 8, 100, 0.5)
    whole = reduce_all(stage, [batch_of(texts)])
    parts = [batch_of(texts[at : at + 7], first=at) for at in range(0, len(texts), 7)]
    for num_buckets in (1, 4, 13):
        found = reduce_all(stage, parts[::-1], num_buckets=num_buckets, at_once=False)
        assert found["drops"].equals(whole["drops"])
        assert _sizes(found) == _sizes(whole)
    assert sum(_sizes(whole).values()) == whole["drops"].num_rows


def _sizes(final: dict[str, pa.RecordBatch]) -> dict[bytes, int]:
    found: dict[bytes, int] = defaultdict(int)
    for row in final["sizes"].to_pylist():
        found[row["key"]] += row["size"]
    return dict(found)


def test_verified_pairs_of_a_hot_key_are_two_a_document() -> None:
    count = 50_000
    keys = columns.make_keys(1, np.arange(count, dtype=np.uint64))
    bands = pa.RecordBatch.from_arrays([pa.array(np.full(count, 7, np.uint64)), keys], schema=BANDS)
    assert _opened().reduce("match-bands", {"bands": bands})["pairs"].num_rows == 2 * count - 3


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({}, 0.719),
        ({"threshold": 0.8}, 0.8),
        ({"bands": 20, "rows": 5}, 0.5493),
        ({"threshold": 0.5, "min_similarity": 0.9}, 0.9),
    ],
)
def test_verified_least_similarity_is_that_of_the_banding_unless_given(options: dict[str, object], least: float) -> None:
    assert Minhash.model_validate(options).least_similarity() == least
