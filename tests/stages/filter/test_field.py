"""Filters of a column: conditions on a field, licences and URLs, over every type that a column may have."""

import gzip
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from datapipe.columns import text_buffers
from datapipe.errors import UserError
from datapipe.kernels.filters import url as kernels
from datapipe.stage import Filter, FilterResult
from datapipe.stage.documents import DocumentBatch
from stages.filter.field import Field
from stages.filter.license import License
from stages.filter.url import Url
from tests.support.decisions import opened, reasons
from tests.support.global_stages import batch_of

TYPES = ["text/html", "text/html; charset=utf-8", "x-text/html"]
LICENCES = ["cc-by-4.0", "", None, "mit", "CC-BY-4.0", "cc-by-nc-4.0"]
NUMBERS = ["2", " 3.5 ", "10", "1e1", "+3", ".5", "ten", "0x10", "nan", "inf", "1_0", "", None]
KINDS = ["3", "3,5", "x", "1e400", "true", "[5]", "NaN", None, ""]
DATES = pa.array([date(2024, 5, 16), date(2024, 5, 17), None])
MOMENTS = [datetime(2024, 5, 16, 23, 59), datetime(2024, 5, 17), datetime(2024, 5, 17, 12, 0, 0, 500_000), None]


def _reasons(values: list[Any] | pa.Array, kind: type[Filter] = Field, **options: Any) -> list[str | None]:
    """The rule that drops each document with a value in the field, or None."""
    column = values if isinstance(values, pa.Array) else pa.array(values)
    return reasons(kind.model_validate({"field": "value", **options}), batch_of([""] * len(values), value=column))


NUMBER, GONE, SMALL = "not_a_number", "missing", "too_small"
CASES: list[tuple[list[Any] | pa.Array, dict[str, Any], list[str | None]]] = [
    (LICENCES, {"keep": ["cc-by-4.0", "mit"]}, [None, GONE, GONE, None, "not_in_keep", "not_in_keep"]),
    (LICENCES, {"keep": ["mit"], "missing": "keep"}, ["not_in_keep", None, None, None, "not_in_keep", "not_in_keep"]),
    (LICENCES, {"drop": ["mit"]}, [None, None, None, "in_drop", None, None]),
    (LICENCES, {"drop": ["mit"], "missing": "drop"}, [None, GONE, GONE, "in_drop", None, None]),
    (LICENCES, {"keep_matching": "(?i)cc-by", "drop_matching": "-nc-"}, [None, GONE, GONE, "not_matching", None, "matching"]),
    (TYPES, {"keep_matching": "^text/html(;|$)"}, [None, None, "not_matching"]),
    (TYPES, {"keep_matching": "text/html"}, [None, None, None]),
    (NUMBERS, {"min_value": 3, "max_value": 10}, [SMALL, None, None, None, None, SMALL, *[NUMBER] * 5, GONE, GONE]),
    (KINDS, {"min_value": 3, "max_value": 9}, [None, NUMBER, NUMBER, "too_large", NUMBER, NUMBER, NUMBER, GONE, GONE]),
    (KINDS, {"min_value": 3, "missing": "keep"}, [None] * 9),
    ([float("nan"), None, 2.5, float("inf")], {"min_value": 3}, [NUMBER, GONE, SMALL, None]),
    ([True, None], {"min_value": 0}, [NUMBER, GONE]),
    # values of every type are compared by their text
    (pa.array([200, 404, None], pa.int32()), {"keep": [200]}, [None, "not_in_keep", GONE]),
    (pa.array([200, 404], pa.uint16()), {"keep_matching": "^2"}, [None, "not_matching"]),
    ([0.25, 3.0, None], {"min_value": 1}, [SMALL, None, GONE]),
    ([1.0, 1.5, 0.1], {"keep": [1, "1.50"]}, [None, None, "not_in_keep"]),
    ([True, False, None], {"keep": [True]}, [None, "not_in_keep", GONE]),
    (["true", "false"], {"drop": [True]}, ["in_drop", None]),
    (pa.array(["a", None, "b"]).dictionary_encode(), {"keep": ["a"]}, [None, GONE, "not_in_keep"]),
    (pa.nulls(2), {"drop": ["x"]}, [None, None]),
    (DATES, {"min_value": "2024-05"}, [None, None, GONE]),
    (DATES, {"keep": ["2024-05-17"]}, ["not_in_keep", None, GONE]),
    (DATES.cast(pa.timestamp("s")), {"drop": ["2024-05-17T00:00Z"]}, [None, "in_drop", None]),
    (["2024-05-17", "soon", ""], {"min_value": "2024"}, [None, "not_a_date", GONE]),
]
CASES += [
    ([3, 9], {"min_value": 3, "max_value": 9}, [None, None]),
    (
        LICENCES,
        {"keep": ["mit", "cc-by-nc-4.0"], "drop": ["mit"], "missing": "keep"},
        ["not_in_keep", None, None, "in_drop", "not_in_keep", None],
    ),
    (["4", "12", "x", None], {"keep_matching": "^1|4", "min_value": 5, "missing": "keep"}, [SMALL, None, None, None]),
    (["4", "12", "9"], {"drop": ["4"], "drop_matching": "2", "max_value": 9}, ["in_drop", "matching", None]),
]


@pytest.mark.parametrize(("values", "options", "expected"), CASES)
def test_field_condition_drops_by_its_rule(
    values: list[Any] | pa.Array, options: dict[str, Any], expected: list[str | None]
) -> None:
    assert _reasons(values, **options) == expected


@pytest.mark.parametrize(
    "values",
    [
        pa.array(MOMENTS, pa.timestamp("ms")),
        pa.array(MOMENTS, pa.timestamp("ns")),
        pa.array(MOMENTS, pa.timestamp("us", "UTC")),
        pa.array([moment and moment.replace(tzinfo=UTC) for moment in MOMENTS], pa.timestamp("us", "Asia/Tokyo")),
        pa.array(["2024-05-16T23:59", "2024-05-17T02:00:00+02:00", "2024-05-17 12:00:01", None]),
    ],
    ids=lambda values: str(values.type),
)
def test_limits_that_are_dates_compare_times_of_every_type(values: pa.Array) -> None:
    assert _reasons(values, min_value="2024-05-17") == [SMALL, None, None, GONE]
    assert _reasons(values, max_value="2024-05-17T02:00:00+02:00") == [None, None, "too_large", GONE]
    assert _reasons(values, min_value="2024-05-17", max_value="2024-05-17") == [SMALL, None, "too_large", GONE]


@given(
    values=st.lists(st.one_of(st.none(), st.text(alphabet="ab1.-é ", max_size=4)), max_size=12),
    keep=st.lists(st.text(alphabet="ab1é", min_size=1, max_size=2), min_size=1, max_size=3),
    drop_matching=st.sampled_from(["", "a", "^b", "1$", "é"]),
)
def test_field_any_values_equal_plain_python(values: list[str | None], keep: list[str], drop_matching: str) -> None:
    def passes(value: str | None) -> bool:
        return bool(value) and value in keep and not (drop_matching and re.search(drop_matching, value or ""))

    found = _reasons(pa.array(values, pa.string()), keep=keep, drop_matching=drop_matching)
    assert [reason is None for reason in found] == [passes(value) for value in values]


def test_field_measures_and_counts_values_by_their_kind() -> None:
    def processed(values: list[Any], **options: Any) -> FilterResult:
        return Field(field="value", **options).process(batch_of([""] * len(values), value=pa.array(values)))

    assert processed(NUMBERS, min_value=3).value[[0, 5]].tolist() == [2.0, 0.5]
    counted = processed(KINDS, min_value=3).columns
    assert [sum(counted[name].to_pylist()) for name in ("without_value", "other_kind", "of_kind")] == [2, 5, 2]
    assert processed(LICENCES, drop=("mit",)).columns["without_value"].to_pylist() == [0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("values", "options", "named"),
    [
        (MOMENTS, {"min_value": 3}, "timestamp.*numbers"),
        ([1], {"min_value": "2024-05-17"}, "int64.*types"),
        (MOMENTS, {"keep": ["soon"]}, "'soon'"),
        (["mit"], {"field": "license", "keep": ["mit"]}, r"'license'.*keep: \[license\]"),
        ([["mit"]], {"keep": ["mit"]}, "'value'.*list"),
        ([{"a": 1}], {"kind": License, "allowed": ["MIT"]}, "'value'"),
    ],
)
def test_column_that_does_not_fit_the_condition_is_refused(values: list[Any], options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        _reasons(values, **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "condition"),
        ({"missing": "keep"}, "condition"),
        ({"keep_matching": "(a"}, "keep_matching"),
        ({"drop_matching": r"(a)\1"}, "drop_matching"),
        ({"min_value": "soon"}, "'soon'"),
        ({"min_value": "2024", "max_value": 2}, "a number and a date"),
        ({"min_value": "2024", "max_value": "2023"}, "2024.*2023"),
        ({"min_value": 3, "max_value": 2}, "3.*2"),
        ({"kind": License, "allowed": ["MITT"]}, "'MIT'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        _reasons(["a"], **options)


TERMS = ["mit", None, "", "cc-by-nc-4.0", "MIT OR GPL-3.0-only", '["mit", "GPL-3.0-only"]', "Public Domain", "unknown"]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_documents_are_kept_by_their_licence(type_: pa.DataType) -> None:
    no, none = "not_allowed", "unknown"
    values = pa.array(TERMS, pa.string()).cast(type_)
    assert _reasons(values, License, allowed=["MIT"]) == [None, none, none, no, None, no, no, none]
    allowed = ("Mit", "licenseref-public-domain")
    assert _reasons(values, License, allowed=allowed, missing="keep") == [None, None, None, no, None, no, None, None]
    assert _reasons(values, License, allowed=["unknown"]) == [no, None, None, no, no, no, no, None]


def _batch(urls: pa.Array) -> DocumentBatch:
    return batch_of(["text"] * len(urls), url=urls)


def _judge(links: Sequence[str | None], **options: Any) -> list[str | None]:
    """The rule that drops each URL, or None."""
    return reasons(opened(Url.model_validate(options)), _batch(pa.array(links, pa.large_string())))


FORMS = {
    "http://www.example.com/": "example.com",
    "https://example.com/a//": "example.com/a",
    "HTTPS://WWW.Example.COM/A?B=c#D": "example.com/A?B=c#D",
    "www.example.com/www.a": "example.com/www.a",
    "http://example.com/?utm_source=x&a=b": "example.com",
    "http://example.com/a?reference=1": "example.com/a",
    "http://example.com/a?feed=rss": "example.com/a",
    "http://example.com/a?a=b&utm_source=x": "example.com/a?a=b&utm_source=x",
    "http://example.com/a?UTM_source=x": "example.com/a?UTM_source=x",
    "https://archive.org/web/http://www.example.com/": "archive.org/web/example.com",
    "http://Bücher.Example/Ä": "bücher.example/Ä",
    "ftp://Example.com/A/": "ftp://example.com/A",
    "http://A:B@[2001:DB8::A]:80/C": "A:B@[2001:db8::a]:80/C",
    "http://": "",
    "": "",
}


def test_url_normalized_has_the_form_of_c4() -> None:
    offsets, data = text_buffers(pa.array(list(FORMS), pa.large_string()))
    ends, out = kernels.normalize_urls(offsets[:-1], offsets[1:], data)
    found = [out[start:stop].tobytes().decode() for start, stop in zip(ends[:-1], ends[1:])]
    assert dict(zip(FORMS, found, strict=True)) == FORMS


URLS = [
    *("http://example.com", "http://a.b.example.com:8080/x:y@z", "https://user:pass@example.com/x", "ftp://Example.com/a"),
    *("https://us@er:pa:ss@example.com:1?x@y", "http://example.com?x=/@", "http://example.com#a/b", "//example.com/a"),
    *("http://192.0.2.1/", "mailto://example.com", "http://www.example.com./a"),  # no dot at its end
]


def test_url_host_equals_that_of_urllib() -> None:
    hosts = [str(urlsplit(url).hostname).removeprefix("www.").removesuffix(".") for url in URLS]
    assert [_judge([url], domains=[host]) for url, host in zip(URLS, hosts)] == [["domain"]] * len(URLS)
    assert _judge(["http://[2001:db8::1]:80/"], domains=["example.com"]) == [None]


URL_CASES: list[tuple[dict[str, Any], dict[Any, str | None]]] = [
    (
        {"domains": ["www.example.com"]},  # all below it, and none beside it
        {"example.com/a": "domain", "https://a.b.Example.com:80": "domain", "badexample.com": None, "example.com.org": None}
        | {"com": None},
    ),
    (
        {"allow_domains": ["gov.uk"]},
        {"www.gov.uk/a": None, "x.gov.uk": None, "uk": "not_allowed", "example.com": "not_allowed", None: None},
    ),
    (
        {"urls": ["Example.com/Bad"]},  # compared in their form
        {"https://www.example.com/Bad/?utm_x=1": "url", "example.com/Bad/more": None, "example.com/bad": None},
    ),
    (
        {"strict_substrings": ["Bad"]},  # inside of words and across them
        dict.fromkeys(("x-ba-d.com", "verybaddies.com", "x.com/b/a?d"), "strict_substring") | {"x.com/ba": None},
    ),
    (
        {"hard_words": ["bad"]},
        {"x.com/BAD_news": "hard_word", "badnews.com": None, "x.com/ba-d": None, "x.com/a?b=bad": "hard_word"}
        | {"x.com/bäd": None},
    ),
    ({"hard_words": ["bäd"]}, {"x.com/BAD_news": None, "x.com/bäd": "hard_word"}),
    ({"hard_words": ["very bad"]}, {"x.com/very-bad-news": "hard_word", "x.com/very/news/bad": None, "x.com/verybad": None}),
    (
        {"soft_words": ["odd", "queer"]},  # two different ones are too many
        {"x.com/odd-queer": "soft_words", "odd.com/odd/odd": None, "x.com/oddqueer": None},
    ),
    (
        {"soft_words": ["odd", "queer"], "max_soft_words": 0},
        {"x.com/odd-queer": "soft_words", "odd.com/odd/odd": "soft_words", "x.com/oddqueer": None},
    ),
    (  # the first rule that fails gives the reason
        {"domains": ["x.com"], "strict_substrings": ["ad"], "hard_words": ["bad"], "soft_words": ["a", "b"]},
        {"x.com/a/b/bad": "domain", "y.com/a/b/bad": "strict_substring", "y.com/bid/bad": "strict_substring"},
    ),
    ({"hard_words": ["bad"], "soft_words": ["a", "b"]}, {"y.com/a/b/bad": "hard_word", "y.com/a/b": "soft_words"}),
    ({"hard_words": ["bad"]}, {None: None, "": None, "http://": None}),
    ({"hard_words": ["bad"], "missing": "drop"}, {None: "missing", "": "missing", "http://": "missing"}),
]


@pytest.mark.parametrize(("options", "expected"), URL_CASES)
def test_url_is_decided_by_its_first_rule(options: dict[str, Any], expected: dict[str | None, str | None]) -> None:
    links = [url if not url or "://" in url else f"http://{url}" for url in expected]
    assert dict(zip(expected, _judge(links, **options), strict=True)) == expected


def test_url_tagged_soft_words_are_counted() -> None:
    stage = Url(soft_words=("odd", "queer", "x"))
    result = stage.process(_batch(pa.array(["http://x.com/odd/odd", "http://a.com"], pa.large_string())))
    assert dict(zip([rule.name for rule in stage.rules()], result.measured))["soft_words"].tolist() == [2, 0]


def test_url_files_have_comments_and_may_be_compressed(tmp_path: Path) -> None:
    plain, packed, zipped = tmp_path / "domains.txt", tmp_path / "hard.txt.gz", tmp_path / "soft.zst"
    plain.write_bytes(b"\xef\xbb\xbf# comment\r\nexample.com\r\n\n  example.org \n")
    packed.write_bytes(gzip.compress(b"bad\n"))
    with pa.CompressedOutputStream(str(zipped), "zstd") as stream:
        stream.write(b"odd\nqueer")
    urls = ["http://example.com", "http://example.org", "http://x.com/bad", "http://x.com/odd/queer", "http://comment.com"]
    options = {"domain_files": [str(plain)], "hard_word_files": [str(packed)], "soft_word_files": [str(zipped)]}
    assert _judge(urls, **options) == ["domain", "domain", "hard_word", "soft_words", None]
    assert Url.model_validate(options).input_files() == (str(plain), str(packed), str(zipped))


MORE_THAN_HOSTS = ("example.com/a", "0.0.0.0 example.com", "example.com:80", "http://", "/a")
LIST_FILES: dict[str, bytes | None] = {
    "no.gz": b"\x1f\x8bno gzip",
    "empty.gz": gzip.compress(b"# nothing\n"),
    "absent.gz": None,
}
LIST_FILES |= {"long.txt": b"a-very-long-domain.example.com\n" * 40_000}
REFUSED_LISTS: list[tuple[dict[str, Any], str]] = [
    *(({"domains": ["example.org", entry]}, "domains") for entry in MORE_THAN_HOSTS),
    ({"hard_words": ["---"]}, "'---'"),
    ({"hard_words": ["bad"], "field": "link"}, r"'link'.*keep: \[link\]"),
    ({"hard_words": ["bad"], "field": "number"}, r"'number'.*int64"),
    ({"hard_word_files": ["long.txt"]}, "40,000"),
    *(({"domain_files": [name]}, name) for name in ("no.gz", "empty.gz", "absent.gz")),
]


@pytest.mark.parametrize(("options", "named"), REFUSED_LISTS)
def test_url_lists_and_columns_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in LIST_FILES.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=named):
        reasons(opened(Url.model_validate(options)), batch_of(["text"], url=pa.array(["http://a.com"]), number=pa.array([1])))


def test_url_without_any_list_is_refused_and_nulls_are_missing_urls() -> None:
    with pytest.raises(ValidationError, match="domains"):
        Url()
    assert Url(missing="drop").missing == "drop"
    assert Url(hard_words=("bad",)).process(_batch(pa.nulls(2))).keep.all()
