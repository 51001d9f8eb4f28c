"""Clusters of the page against those of `datapipe inspect`."""

from __future__ import annotations

import pytest

from datapipe.browse.server import RequestError
from datapipe.inspect.documents import Inspector
from datapipe.inspect.duplicates import ClusterQuery, find_clusters
from tests.support.browsed import Browsed


@pytest.mark.medium
@pytest.mark.parametrize("stage", ["dedup.exact", "dedup.minhash"])
def test_clusters_have_the_members_and_similarities_that_inspect_finds(finished: Browsed, stage: str) -> None:
    inspector = Inspector.open(str(finished.folder / "out"))
    expected = {
        cluster.survivor.label: cluster for cluster in find_clusters(inspector, ClusterQuery(stage=stage, count=99, members=9))
    }
    listed = finished.get("clusters", stage=stage)
    assert listed["total"] == len(expected)
    for cluster in listed["clusters"]:
        other = expected[cluster["survivor"]["name"]]
        similarity = None if other.similarity is None else list(other.similarity)
        assert (cluster["dropped"], cluster["similarity"]) == (other.dropped, similarity)
        shown = finished.get("cluster", cluster["survivor"]["key"], stage=stage, members=9)
        assert {member["row"]["name"] for member in shown["members"]} == {member.document.label for member in other.members}
        sides = [shown["survivor"], *shown["members"]]
        assert any(not part["same"] for side in sides for part in side["parts"]) == (stage == "dedup.minhash")
        for side in sides:
            [number] = finished.api.lookup.rows_of_key(bytes.fromhex(side["row"]["key"]))
            assert "".join(part["text"] for part in side["parts"]) == finished.api.view.text(number, side["row"])[0]
    sizes = [cluster["dropped"] for cluster in listed["clusters"]]
    assert sizes == sorted(sizes, reverse=True)
    least = [cluster["similarity"] for cluster in finished.get("clusters", stage=stage, sort="least_alike")["clusters"]]
    assert least == sorted(least, key=lambda both: (both is None, both))
    pages = [finished.get("clusters", stage=stage, offset=offset, limit=1)["clusters"] for offset in range(listed["total"])]
    assert [page[0] for page in pages] == listed["clusters"]


@pytest.mark.medium
def test_what_is_no_cluster_says_so(finished: Browsed) -> None:
    kept = finished.listed(source="plain", fate="kept")[0]
    with pytest.raises(RequestError, match=r"No document was dropped by 'dedup.exact' in favour of this one"):
        finished.get("cluster", kept["key"], stage="dedup.exact")
    assert finished.get("clusters", stage="nothing") == {"total": 0, "clusters": []}
    with pytest.raises(RequestError, match=r"expected one of size,"):
        finished.get("clusters", stage="dedup.exact", sort="x")
