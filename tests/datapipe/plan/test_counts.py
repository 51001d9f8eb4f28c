from __future__ import annotations

import pytest

from datapipe.metrics import DocumentCounts
from datapipe.plan.counts import SourceCounts, over_quarantined


@pytest.mark.parametrize("share", [0.29, 0.57, 0.58])
def test_exactly_the_share_that_is_allowed_is_not_more(share: float) -> None:
    """Of 100 documents, where share * 100 as a float is below the whole number that is meant."""
    number = round(100 * share)
    assert share * 100 < number
    found = [
        {"web": SourceCounts(document_counts=DocumentCounts(read=100, quarantined=count))} for count in (0, number, number + 1)
    ]
    assert [over_quarantined(one, share) for one in found] == [None, None, "web"]


def test_nothing_of_nothing_is_not_more_than_a_share() -> None:
    assert over_quarantined({"web": SourceCounts(document_counts=DocumentCounts())}, 0.0) is None
