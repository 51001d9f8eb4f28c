"""Search in texts against brute force over the documents as they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from datapipe.browse import search
from datapipe.browse.server import RequestError
from tests.support.browsed import Browsed


def hits(finished: Browsed, **options: Any) -> list[dict[str, Any]]:
    lines = finished.get("search", **options)["lines"]
    assert "progress" in lines[0]
    assert lines[-1]["done"]["hits"] == sum("hit" in line for line in lines)
    return [line["hit"] for line in lines if "hit" in line]


@pytest.mark.medium
@pytest.mark.parametrize("text", ["the token is", "THE", "conhol", "<email>", "near 1", "(.*", "word word word"])
@pytest.mark.parametrize("case", [0, 1])
def test_hits_are_the_documents_whose_text_holds_the_query(finished: Browsed, text: str, case: int) -> None:
    expected = set()
    for row in (row for fate in ("kept", "dropped") for row in finished.listed(fate=fate)):
        [number] = finished.api.lookup.rows_of_key(bytes.fromhex(row["key"]))
        shown = finished.api.view.text(number, row)[0]
        is_in_source = row["fate"] == "kept" or text != "<email>"  # a text as read has no replacements
        if is_in_source and (text in shown if case else text.lower() in shown.lower()):
            expected.add(row["key"])
    for fate in ("kept", "dropped", ""):
        found = hits(finished, q=text, case=case, limit=2000, **({"fate": fate} if fate else {}))
        of_fate = [hit["key"] for hit in found if hit["fate"] in ("kept", "dropped")]
        wanted = {key for key in expected if not fate or finished.get("lookup", q=key)["documents"][0]["fate"] == fate}
        assert set(of_fate) == wanted
        assert len(of_fate) == len(wanted)
        for hit in found:
            for start, stop in hit["ranges"]:
                assert hit["excerpt"][start:stop].lower() == text.lower()
            assert hit["ranges"]


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
    assert hits(finished, q="the")
    for wrong in ({"q": ""}, {"q": "a" * 1001}, {"q": "a", "fate": "x"}, {"q": "a", "source": "x"}, {"q": "a", "limit": 9999}):
        with pytest.raises(RequestError):
            finished.get("search", **wrong)


def search_request(text: str) -> Any:
    from datapipe.browse.server import Request

    return Request(path=("search",), query={"q": text})
