"""Values of tags, and requests that make no sense. Filters, orders and pages: tests/conformance/test_looking.py."""

from __future__ import annotations

import pytest

from datapipe.browse.server import RequestError
from tests.support.browsed import Browsed


@pytest.mark.medium
def test_kept_documents_come_by_the_values_of_their_tags(finished: Browsed) -> None:
    options = {"fate": "kept", "stage": "filter.gopher_repetition", "rule": "top_2_gram"}
    found = finished.listed(**options, sort="-value")
    values = [row["value"] for row in found]
    assert len(values) == 43
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    top = finished.listed(**options, sort="value", min=values[4])
    assert sorted(row["key"] for row in top) == sorted(row["key"] for row in found if row["value"] >= values[4])
    for row in found[:3]:
        column = "filter.gopher_repetition.top_2_gram"
        assert finished.get("document", row["key"])["columns"][column] == row["value"]


@pytest.mark.medium
@pytest.mark.parametrize(
    "wrong", [{"sort": "x"}, {"fate": "x"}, {"source": "x"}, {"min": "x"}, {"limit": "501"}, {"offset": "-1"}]
)
def test_a_request_that_makes_no_sense_says_what_is_expected(finished: Browsed, wrong: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"expected|sources of this output") as refused:
        finished.get("documents", **wrong)
    assert refused.value.status == 400
