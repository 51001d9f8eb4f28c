"""Duplicates found in labelled sets, beside what people say; all figures come from `tests/benchmarks/dedup_quality.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stages.dedup.exact import Exact
from stages.dedup.minhash import Minhash
from tests import dedup_sets
from tests.benchmarks.dedup_quality import clusters


def test_agreement_of_clusters_counts_pairs() -> None:
    gold = dedup_sets.LabelledSet(name="five", texts=[""] * 5, clusters=[0, 0, 0, 3, 4])
    same = dedup_sets.agreement(gold, [7, 7, 7, 8, 9])
    assert (same.precision, same.recall, same.f1, same.macro_f1, same.ari) == (1, 1, 1, 1, 1)
    found = dedup_sets.agreement(gold, [0, 0, 2, 3, 3])  # one of two pairs found is right, one of three is found
    assert (found.precision, found.recall, found.f1) == pytest.approx((1 / 2, 1 / 3, 2 / 5))
    assert found.macro_f1 == pytest.approx((4 / 7 + 0) / 2)  # two of four are duplicates, of three; the one left is none of two
    assert found.ari == pytest.approx((1 - 0.6) / (2.5 - 0.6))  # by chance 2 * 3 / 10 pairs agree


def test_agreement_of_judged_pairs_counts_those_alone() -> None:
    gold = dedup_sets.LabelledSet(name="pairs", texts=[""] * 6, judged=[(0, 1, True), (2, 3, True), (4, 5, False)])
    found = dedup_sets.agreement(gold, [0, 0, 0, 3, 4, 4])
    assert (found.precision, found.recall, found.f1, found.ari) == (0.5, 0.5, 0.5, None)
    assert found.macro_f1 == pytest.approx((0.5 + 0) / 2)


FLOORS: list[tuple[str, dict[str, Any], float, float, float]] = [
    ("asysd", {}, 0.97, 0.94, 0.95),
    ("asysd", {"verify": "none"}, 0.96, 0.94, 0.95),
    ("asysd", {"threshold": 0.7, "num_perm": 256, "ngram": 2}, 0.95, 0.97, 0.96),
    ("webis_s3_gov2", {}, 0.97, 0.59, 0.73),
    ("webis_s3_gov2", {"verify": "none"}, 0.95, 0.65, 0.78),
    ("webis_s3_gov2", {"threshold": 0.5, "num_perm": 256}, 0.85, 0.86, 0.86),
    ("webis_s3_gov2", {"threshold": 0.6, "num_perm": 256, "verify": "none"}, 0.88, 0.75, 0.81),
    ("gutenberg_editions", {"threshold": 0.5, "num_perm": 256}, 1.0, 0.88, 0.93),
    ("gutenberg_editions", {"threshold": 0.5, "num_perm": 256, "verify": "none"}, 1.0, 0.99, 0.99),
]
"""Set, options, and the least precision, recall and F1 of pairs."""


@pytest.mark.real
@pytest.mark.parametrize(("name", "options", "precision", "recall", "f1"), FLOORS)
def test_minhash_agrees_with_people_at_least_so_far(
    real_data: Path, name: str, options: dict[str, Any], precision: float, recall: float, f1: float
) -> None:
    labelled = dedup_sets.labelled_set(real_data, name)
    found = dedup_sets.agreement(labelled, clusters(Minhash, options, labelled.texts))
    assert found.precision >= precision
    assert found.recall >= recall
    assert found.f1 >= f1


@pytest.mark.real
@pytest.mark.parametrize("name", ["asysd", "webis_s3_gov2"])
def test_exact_never_joins_what_people_tell_apart(real_data: Path, name: str) -> None:
    labelled = dedup_sets.labelled_set(real_data, name)
    found = dedup_sets.agreement(labelled, clusters(Exact, {"normalize": "whitespace_case"}, labelled.texts))
    assert found.precision == 1.0
    assert found.recall > 0.2
