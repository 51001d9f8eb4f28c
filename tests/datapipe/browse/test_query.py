"""Lists of documents against brute force over all rows."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest

from datapipe.browse import query
from datapipe.browse.server import RequestError
from tests.support.browsed import Browsed


def brute_force(rows: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a list in its order; `rows` in the order of the tables."""
    low, high = options.get("min", -math.inf), options.get("max", math.inf)
    is_bounded = "min" in options or "max" in options
    chosen = [
        row
        for row in rows
        if all(options.get(name, "") in ("", row[name]) for name in ("source", "fate", "stage", "rule"))
        and (not is_bounded or (row["value"] is not None and low <= row["value"] <= high))
    ]
    sort = options.get("sort", "key")
    kind, sign = sort.removeprefix("-"), -1 if sort.startswith("-") else 1
    if kind == "key":
        return sorted(chosen, key=lambda row: row["key"])
    return sorted(chosen, key=lambda row: (row[kind] is None, sign * (row[kind] or 0)))


@pytest.mark.medium
def test_filters_orders_and_pages_equal_brute_force(finished: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "CHUNK_ROWS", 13)
    monkeypatch.setattr(query, "_KEY_ROWS", 7)
    api = finished.api
    rows = api.rows.of(range(api.lookup.num_docs))
    filters: list[dict[str, Any]] = [
        {},
        {"source": "web"},
        {"fate": "dropped"},
        {"fate": "quarantined"},
        {"stage": "filter.length", "rule": "too_few_words"},
        {"fate": "dropped", "min": 3},
        {"min": 0.5, "max": 8},
        {"source": "plain", "fate": "kept"},
    ]
    for chosen, sort, (offset, limit) in product(filters, query.SORTS, [(0, 500), (3, 5), (40, 30)]):
        options = {**chosen, "sort": sort}
        answer, expected = finished.get("documents", **options, offset=offset, limit=limit), brute_force(rows, options)
        assert answer["total"] == len(expected), options
        assert answer["documents"] == expected[offset : offset + limit], options


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
