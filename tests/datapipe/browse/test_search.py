"""A search stops, tells how far it is, and refuses what makes no sense. What it finds: tests/conformance/test_looking.py."""

from __future__ import annotations

from typing import Any

import pytest

from datapipe.browse import search
from datapipe.browse.server import RequestError
from tests.support.browsed import Browsed


@pytest.mark.medium
def test_a_search_stops_at_its_limit_tells_how_far_it_is_and_can_be_closed(
    finished: Browsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_TOLD_EVERY_S", 0.0)
    lines = finished.get("search", q="the", limit=3)["lines"]
    assert lines[-1]["done"]["stopped"]
    assert sum("hit" in line for line in lines) == 3
    progress = [line["progress"] for line in finished.get("search", q="zzz")["lines"] if "progress" in line]
    assert [told["documents"] for told in progress] == sorted(told["documents"] for told in progress)
    assert progress[-1]["documents"] <= progress[-1]["of_documents"]
    open_searches = [finished.api(search_request("the")) for _ in range(4)]
    for lines_of in open_searches:
        next(lines_of)  # type: ignore[arg-type]
    refused = list(finished.api(search_request("the")))  # type: ignore[arg-type]
    assert refused == [{"error": "4 searches are running. Stop one of them first."}]
    for lines_of in open_searches:
        lines_of.close()  # type: ignore[union-attr]
    assert finished.get("search", q="the")["lines"][-1]["done"]["hits"]
    for wrong in ({"q": ""}, {"q": "a" * 1001}, {"q": "a", "fate": "x"}, {"q": "a", "source": "x"}, {"q": "a", "limit": 9999}):
        with pytest.raises(RequestError):
            finished.get("search", **wrong)


def search_request(text: str) -> Any:
    from datapipe.browse.server import Request

    return Request(path=("search",), query={"q": text})
