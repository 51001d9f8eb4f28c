"""Both sides of a threshold, and sweeps, against the rows and tags of the run."""

from __future__ import annotations

import pytest

from datapipe.browse.server import RequestError
from tests.support.browsed import Browsed


@pytest.mark.medium
def test_both_sides_of_a_threshold_come_nearest_first_with_excerpts(finished: Browsed) -> None:
    sides = finished.get("borderline", source="plain", stage="filter.length", rule="too_few_words")
    assert sides["yaml"] == "- filter.length: {min_words: {threshold}}"
    assert [row["value"] for row in sides["dropped"]] == [4, 3, 2, 1]
    assert [row["value"] for row in sides["kept"]] == [5, 6, 7, 8, 9, 10, 11]
    assert {row["fate"] for row in sides["kept"]} == {"kept"}
    assert sides["dropped"][0]["excerpt"] == "word word word word "
    with pytest.raises(RequestError, match="No filter has measured"):
        finished.get("borderline", stage="filter.length", rule="nothing")
    dropped = finished.get("borderline", stage="dedup.minhash", rule="duplicate")
    assert dropped["kept"] == []
    assert len(dropped["dropped"]) == 4


@pytest.mark.medium
def test_a_sweep_over_tags_counts_exactly_what_each_threshold_keeps(finished: Browsed) -> None:
    named = {"source": "web", "stage": "filter.gopher_repetition", "rule": "top_2_gram"}
    swept = finished.get("sweep", **named)
    rows = finished.listed(fate="kept", **named)
    assert swept["exact"]
    total = swept["total"]
    assert (total["documents"], total["bytes"]) == (len(rows), sum(row["bytes"] for row in rows))
    tokens = next(source["tokens"] for source in finished.get("output")["sources"] if source["name"] == "web")
    assert total["tokens"] == tokens, "all text of the source has all its tokens"
    assert swept["in_force"] in [point["threshold"] for point in swept["points"]]
    for point in swept["points"]:
        kept = [row for row in rows if row["value"] <= point["threshold"]]
        assert (point["documents"], point["bytes"]) == (len(kept), sum(row["bytes"] for row in kept))
