"""Duplicates found in labelled sets, compared with the labels; all figures are those of `tests/benchmarks/dedup_quality.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stages.dedup.exact import Exact
from stages.dedup.minhash import Minhash
from tests.benchmarks.dedup_quality import clusters
from tests.support import labelled_duplicates


def test_agreement_of_clusters_counts_pairs() -> None:
    gold = labelled_duplicates.LabelledSet(name="five", texts=[""] * 5, clusters=[0, 0, 0, 3, 4])
    same = labelled_duplicates.agreement(gold, [7, 7, 7, 8, 9])
    assert (same.precision, same.recall, same.f1, same.macro_f1, same.ari) == (1, 1, 1, 1, 1)
    found = labelled_duplicates.agreement(gold, [0, 0, 2, 3, 3])  # one of two pairs found is right, one of three is found
    assert (found.precision, found.recall, found.f1) == pytest.approx((1 / 2, 1 / 3, 2 / 5))
    assert found.ari == pytest.approx((1 - 0.6) / (2.5 - 0.6))  # by chance 2 * 3 / 10 pairs agree


FLOORS: list[tuple[str, dict[str, Any], float, float, float]] = [
    ("asysd", {}, 0.97, 0.94, 0.95),
    ("asysd", {"verify": "none"}, 0.96, 0.94, 0.95),
    ("asysd", {"threshold": 0.7, "num_perm": 256, "ngram": 2}, 0.95, 0.97, 0.96),
    ("webis_s3_gov2", {}, 0.97, 0.62, 0.76),
    ("webis_s3_gov2", {"verify": "none"}, 0.95, 0.65, 0.78),
    ("webis_s3_gov2", {"threshold": 0.5, "num_perm": 256}, 0.85, 0.86, 0.86),
    ("webis_s3_gov2", {"threshold": 0.6, "num_perm": 256, "verify": "none"}, 0.88, 0.75, 0.81),
    ("govuk_captures", {}, 0.97, 0.99, 0.98),
    ("govuk_captures", {"min_similarity": 0.8}, 0.99, 0.99, 0.99),
    ("ndd_100_news", {}, 1.0, 1.0, 1.0),
    ("cs336_fuzzy", {}, 1.0, 1.0, 1.0),
    ("pan_paraphrase", {}, 0.85, 0.005, 0.01),
    ("dj_dedup_demo", {"threshold": 0.5, "num_perm": 256, "ngram": 2}, 1.0, 1.0, 1.0),
    ("gutenberg_editions", {}, 1.0, 0.88, 0.93),
    ("gutenberg_editions", {"threshold": 0.5, "num_perm": 256}, 1.0, 0.99, 0.99),
    ("gutenberg_editions", {"threshold": 0.5, "num_perm": 256, "verify": "none"}, 1.0, 0.99, 0.99),
]
"""Set, options, and the least precision, recall and F1 of pairs."""


@pytest.mark.real
@pytest.mark.parametrize(("name", "options", "precision", "recall", "f1"), FLOORS)
def test_minhash_agrees_with_people_at_least_so_far(
    real_data: Path, name: str, options: dict[str, Any], precision: float, recall: float, f1: float
) -> None:
    labelled = labelled_duplicates.labelled_set(real_data, name)
    found = labelled_duplicates.agreement(labelled, clusters(Minhash, options, labelled.texts))
    assert found.precision >= precision
    assert found.recall >= recall
    assert found.f1 >= f1


@pytest.mark.real
def test_minhash_without_verification_chains_pages_of_one_site(real_data: Path) -> None:
    """Why pairs are verified: pages with the same frame match by chance, and one match joins two clusters."""
    labelled = labelled_duplicates.labelled_set(real_data, "govuk_captures")
    found = labelled_duplicates.agreement(labelled, clusters(Minhash, {"verify": "none"}, labelled.texts))
    assert found.precision < 0.6
    assert found.recall > 0.99


@pytest.mark.real
def test_minhash_keeps_articles_that_were_written_again_for_other_readers(real_data: Path) -> None:
    labelled = labelled_duplicates.labelled_set(real_data, "onestop_english")
    found = clusters(Minhash, {}, labelled.texts)
    assert sum(cluster != place for place, cluster in enumerate(found)) <= 3  # of 567


@pytest.mark.real
@pytest.mark.parametrize("name", ["asysd", "webis_s3_gov2", "govuk_captures"])
def test_exact_never_joins_documents_with_different_labels(real_data: Path, name: str) -> None:
    labelled = labelled_duplicates.labelled_set(real_data, name)
    found = labelled_duplicates.agreement(labelled, clusters(Exact, {"normalize": "whitespace_case"}, labelled.texts))
    assert found.precision == 1.0
    assert found.recall > 0.2
