"""Counts of a run: shares are compared exactly."""

from __future__ import annotations

import pytest

from datapipe.metrics import DocumentCounts
from datapipe.plan.counts import SourceCounts, source_over_quarantine_limit


@pytest.mark.parametrize("share", [0.29, 0.57, 0.58])
def test_quarantine_of_exactly_the_allowed_share_is_within_the_limit(share: float) -> None:
    """100 documents, with a share whose product with 100 is below the whole number in floats."""
    number = round(100 * share)
    assert share * 100 < number
    sources = [
        {"web": SourceCounts(document_counts=DocumentCounts(read=100, quarantined=count))} for count in (0, number, number + 1)
    ]
    assert [source_over_quarantine_limit(source, share) for source in sources] == [None, None, "web"]


def test_quarantine_of_an_empty_source_is_within_the_limit() -> None:
    assert source_over_quarantine_limit({"web": SourceCounts(document_counts=DocumentCounts())}, 0.0) is None
