"""Exact duplicates: which documents are equal, and which survives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe.errors import UserError
from stages.dedup.exact import Exact
from tests.support.global_stages import batch_of, exchanged, opened, reduce_all, row_of


def _opened(**options: object) -> Exact:
    return opened(Exact.model_validate(options), "dedup.exact")


def _dropped(stage: Exact, texts: list[str], **more: pa.Array) -> dict[int, int]:
    """Number of each dropped document -> number of its survivor."""
    drops = reduce_all(stage, [batch_of(texts, **more)])["drops"]
    assert set(drops.column("value").to_pylist()) <= {1.0}
    return {row_of(row["key"]): row_of(row["survivor"]) for row in drops.to_pylist()}


TEXTS = ["a b", "A  b", "a b", "", "x", "", " a\u00a0B\n", "a b ", "x", "\u3000", "STRASSE", "é", "É"]
EMPTY = ["", " ", "\n\u00a0", "", "x", "x"]
DIGITS = ["12", "12", "p. 12", "p. 12", "3.50 $", "3.50 $", "...", "...", "٣", "٣"]
SIGNED = ["1901\u00a0– 1905", "1901\u00a0– 1905", "1901 – 1905 か", "1901 – 1905 か"]
LENGTHS = ["a b", "a  b", " a b ", "A b ", "a  B"]
FOLDED = {"normalize": "whitespace_case"}

CASES: list[tuple[dict[str, object], list[str], dict[int, int]]] = [
    ({}, TEXTS, {2: 0, 5: 3, 8: 4}),
    (FOLDED, TEXTS, {1: 0, 2: 0, 6: 0, 7: 0, 5: 3, 8: 4, 9: 3, 12: 11}),
    (FOLDED | {"keep": "longest"}, LENGTHS, {0: 2, 1: 2, 3: 2, 4: 2}),
    (FOLDED | {"keep": "shortest"}, LENGTHS, {1: 0, 2: 0, 3: 0, 4: 0}),
    (FOLDED | {"keep": "longest"}, LENGTHS[:2] + LENGTHS[4:], {0: 1, 2: 1}),  # of equally long ones the first
    ({}, EMPTY, {3: 0, 5: 4}),
    ({"empty": "never"}, EMPTY, {5: 4}),
    (FOLDED, EMPTY, {1: 0, 2: 0, 3: 0, 5: 4}),
    (FOLDED | {"empty": "never"}, EMPTY, {5: 4}),
    ({}, DIGITS, {1: 0, 3: 2, 5: 4, 7: 6, 9: 8}),
    ({"only_digits": "never"}, DIGITS, {3: 2, 7: 6}),
    ({"only_digits": "never"}, SIGNED, {3: 2}),
]


@pytest.mark.parametrize(("options", "texts", "expected"), CASES)
def test_exact_equal_texts_keep_one(options: dict[str, object], texts: list[str], expected: dict[int, int]) -> None:
    assert _dropped(_opened(**options), texts) == expected


@pytest.mark.parametrize(
    "changed",
    [
        "Die\u00a0Straße zum Café  ist „nah“",
        "DIE STRASSE ZUM CAFÉ IST „NAH“",
        "Die Strasse zum Cafe\u0301\u2003ist „nah“\u3000",
        "\ufeffDie Stra\u00adße zum \u200bCa\u200bfé\u2060 ist\u200d „nah\ufe0f“",
    ],
)
def test_exact_whitespace_case_is_that_of_unicode(changed: str) -> None:
    text = "Die Straße zum Café ist „nah“"
    assert _dropped(_opened(**FOLDED), [text, changed, 'Die Straße zum Café ist "nah"']) == {1: 0}


def test_exact_identity_of_rows_is_that_of_before_where_characters_are_not_read() -> None:
    chosen = ({}, {"only_digits": "never"}, FOLDED)
    assert [_opened(**options).row_identity(1)["version"] for options in chosen] == [1, 2, 3]


URLS = ["https://www.example.com/a/", "http://EXAMPLE.com/a?utm_source=x", None, "example.com/a?b=1", "", "https://", None]
URLS += ["example.com/A", "www.example.com/a", "/"]


def test_exact_by_url_joins_one_page_and_nothing_without_a_url() -> None:
    stage = _opened(by="field", field="url", normalize="url")
    for urls in (pa.array(URLS), pa.array(URLS).dictionary_encode().cast(pa.large_string())):
        assert _dropped(stage, ["the same text"] * len(URLS), url=urls) == {1: 0, 8: 0}
    assert _dropped(stage, ["x"] * 3, url=pa.nulls(3)) == {}


def test_exact_by_field_compares_it_and_not_the_text() -> None:
    stage = _opened(by="field", field="n", keep="longest")
    assert _dropped(stage, ["a", "bb", "a", "a"], n=pa.array([7, 7, None, 70])) == {0: 1}
    assert _dropped(_opened(by="field", field="n"), ["a", "b", "c"], n=pa.array([0.5, 1.5, 0.5])) == {2: 0}
    assert _dropped(_opened(by="field", field="id"), ["a", "a"]) == {}


@pytest.mark.parametrize(("field", "named"), [("ur", "'ur'.*'url'"), ("url", "list.*types")])
def test_exact_by_a_field_that_is_not_there_or_no_text_is_refused(field: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        _opened(by="field", field=field).emit(batch_of(["a"], url=pa.array([[1.0]])))


@pytest.mark.parametrize("options", [{"by": "field"}, {"field": "url"}, {"by": "text", "field": "url"}])
def test_exact_options_that_contradict_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="field"):
        Exact.model_validate(options)


def test_exact_keep_by_a_column_of_quality() -> None:
    scores = pa.array([0.25, 0.5, None, 0.5])
    assert _dropped(_opened(keep={"highest": "score"}), ["a"] * 4, score=scores) == {0: 1, 2: 1, 3: 1}


def test_exact_keep_random_is_even_over_documents_and_fixed_by_seed() -> None:
    texts = [str(number // 4) for number in range(800)]
    dropped = _dropped(_opened(keep="random"), texts)
    assert dropped == _dropped(_opened(keep="random"), texts)
    counts = np.bincount([place % 4 for place in set(range(800)) - set(dropped)], minlength=4)
    assert counts.sum() == 200
    assert counts.min() > 25


def test_exact_hashes_of_a_text_are_pinned() -> None:
    """Changing these hashes makes every earlier run's rows worthless: a breaking change."""
    (row,) = _opened().emit(batch_of(["Call me Ishmael."]))["texts"].to_pylist()
    assert (row["hash"], row["digest"]) == (8330280356703803081, 4889607254472707005)


def test_exact_half_a_hash_in_common_is_not_equal() -> None:
    stage = _opened()
    rows = stage.emit(batch_of(["a", "b", "a", "b", "c"]))["texts"]
    same_hash = rows.set_column(0, rows.schema.field("hash"), pa.array(np.full(5, 7, np.uint64)))
    drops = exchanged(stage, {"texts": [same_hash]})["drops"].to_pylist()
    assert {row_of(row["key"]): row_of(row["survivor"]) for row in drops} == {2: 0, 3: 1}


def test_exact_sizes_count_what_was_dropped_where_a_column_is_asked_for() -> None:
    sizes = reduce_all(_opened(size_column="copies"), [batch_of(TEXTS)])["sizes"].to_pylist()
    assert sorted((row_of(row["key"]), row["size"]) for row in sizes) == [(0, 1), (3, 1), (4, 1)]
    assert reduce_all(_opened(), [batch_of(TEXTS)])["sizes"].num_rows == 0


@pytest.mark.parametrize("normalize", ["none", "whitespace_case", "url"])
def test_exact_split_batches_emit_the_same_rows(normalize: str) -> None:
    stage, batch = _opened(normalize=normalize, empty="never", only_digits="never"), batch_of(TEXTS)
    parts = [stage.emit(batch.slice(start, stop))["texts"] for start, stop in ((0, 1), (1, 7), (7, 7), (7, len(TEXTS)))]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([stage.emit(batch)["texts"]]))
