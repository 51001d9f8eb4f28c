"""Each URL rule by hand, the form that URLs are brought into, and the lists' files."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from datapipe.columns import make_keys, text_buffers
from datapipe.errors import UserError
from datapipe.kernels.filters import url as kernels
from datapipe.stage import StageContext
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.url import Url


def _batch(urls: pa.Array) -> DocumentBatch:
    texts = pa.array(["text"] * len(urls), pa.large_string())
    columns = [make_keys(1, np.arange(len(urls), dtype=np.uint64)), texts, texts, urls]
    return DocumentBatch(pa.RecordBatch.from_arrays(columns, schema=pa.schema([*BASE_FIELDS, pa.field("url", urls.type)])))


def _judge(links: Sequence[str | None], **options: Any) -> list[str | None]:
    """The rule that drops each URL, or None."""
    stage = Url.model_validate(options)
    stage.open(StageContext(name="filter.url", seed=1))
    result = stage.process(_batch(pa.array(links, pa.large_string())))
    return [None if rule < 0 else stage.rules()[rule].name for rule in result.rule.tolist()]


def _normalized(*urls: str) -> list[str]:
    offsets, data = text_buffers(pa.array(urls, pa.large_string()))
    out_offsets, out = kernels.normalize_urls(offsets[:-1], offsets[1:], data)
    return [out[start:stop].tobytes().decode() for start, stop in zip(out_offsets[:-1], out_offsets[1:])]


def _host(url: str) -> str:
    [url] = _normalized(url)
    starts, stops = np.empty(1, np.int64), np.empty(1, np.int64)
    data = np.frombuffer(url.encode(), np.uint8)
    kernels.find_hosts(np.array([0, len(data)]), data, starts, stops)
    return url.encode()[starts[0] : stops[0]].decode()


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("http://www.example.com/", "example.com"),
        ("https://example.com/a//", "example.com/a"),
        ("HTTPS://WWW.Example.COM/A?B=c#D", "example.com/A?B=c#D"),
        ("www.example.com/www.a", "example.com/www.a"),
        ("http://example.com/?utm_source=x&a=b", "example.com"),
        ("http://example.com/a?reference=1", "example.com/a"),
        ("http://example.com/a?feed=rss", "example.com/a"),
        ("http://example.com/a?a=b&utm_source=x", "example.com/a?a=b&utm_source=x"),
        ("http://example.com/a?UTM_source=x", "example.com/a?UTM_source=x"),
        ("https://archive.org/web/http://www.example.com/", "archive.org/web/example.com"),
        ("http://Bücher.Example/Ä", "bücher.Example/Ä".replace("Example", "example")),
        ("ftp://Example.com/A/", "ftp://example.com/A"),
        ("http://", ""),
        ("", ""),
    ],
)
def test_url_normalized_has_the_form_of_c4(url: str, form: str) -> None:
    assert _normalized(url) == [form]


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "http://a.b.example.com:8080/x:y@z",
        "https://user:pass@example.com/x",
        "https://us@er:pa:ss@example.com:1?x@y",
        "http://[2001:db8::1]:80/",
        "http://example.com?x=/@",
        "http://example.com#a/b",
        "ftp://Example.com/a",
        "//example.com/a",
        "http://192.0.2.1/",
        "mailto://example.com",
    ],
)
def test_url_host_equals_that_of_urllib(url: str) -> None:
    assert _host(url) == urlsplit(url).hostname


def test_url_host_has_no_dot_at_its_end() -> None:
    assert _host("http://www.example.com./a") == "example.com"


def test_url_domain_takes_all_below_it_and_none_beside_it() -> None:
    urls = [
        "http://example.com/a",
        "https://a.b.Example.com:80",
        "http://badexample.com",
        "http://example.com.org",
        "http://com",
    ]
    assert _judge(urls, domains=["www.example.com"]) == ["domain", "domain", None, None, None]


def test_url_allowed_domains_alone_are_kept() -> None:
    urls = ["http://www.gov.uk/a", "http://x.gov.uk", "http://uk", "http://example.com", None]
    assert _judge(urls, allow_domains=["gov.uk"]) == [None, None, "not_allowed", "not_allowed", None]


def test_url_whole_urls_are_compared_in_their_form() -> None:
    urls = ["https://www.example.com/Bad/?utm_x=1", "http://example.com/Bad/more", "http://example.com/bad"]
    assert _judge(urls, urls=["Example.com/Bad"]) == ["url", None, None]


def test_url_strict_substrings_are_found_inside_and_across_words() -> None:
    urls = ["http://x-ba-d.com", "http://verybaddies.com", "http://x.com/b/a?d", "http://x.com/ba"]
    assert _judge(urls, strict_substrings=["Bad"]) == ["strict_substring"] * 3 + [None]


def test_url_hard_words_are_whole_words() -> None:
    urls = ["http://x.com/BAD_news", "http://badnews.com", "http://x.com/ba-d", "http://x.com/a?b=bad", "http://x.com/bäd"]
    assert _judge(urls, hard_words=["bad"]) == ["hard_word", None, None, "hard_word", None]
    assert _judge(urls, hard_words=["bäd"]) == [None] * 4 + ["hard_word"]


def test_url_entry_of_words_is_found_where_they_follow_each_other() -> None:
    urls = ["http://x.com/very-bad-news", "http://x.com/very/news/bad", "http://x.com/verybad"]
    assert _judge(urls, hard_words=["very bad"]) == ["hard_word", None, None]


def test_url_two_different_soft_words_are_too_many() -> None:
    urls = ["http://x.com/odd-queer", "http://odd.com/odd/odd", "http://x.com/oddqueer"]
    assert _judge(urls, soft_words=["odd", "queer"]) == ["soft_words", None, None]
    assert _judge(urls, soft_words=["odd", "queer"], max_soft_words=0) == ["soft_words", "soft_words", None]


def test_url_first_rule_that_fails_gives_the_reason() -> None:
    lists: dict[str, Any] = {"strict_substrings": ["ad"], "hard_words": ["bad"], "soft_words": ["a", "b"]}
    assert _judge(["http://x.com/a/b/bad"], domains=["x.com"], **lists) == ["domain"]
    assert _judge(["http://x.com/a/b/bad"], **lists) == ["strict_substring"]


@pytest.mark.parametrize("url", [None, "", "http://"])
def test_url_missing_is_kept_unless_it_is_to_be_dropped(url: str | None) -> None:
    assert _judge([url], hard_words=["bad"]) == [None]
    assert _judge([url], hard_words=["bad"], missing="drop") == ["missing"]


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


@pytest.mark.parametrize("entry", ["example.com/a", "0.0.0.0 example.com", "example.com:80", "http://", "/a"])
def test_url_domain_that_is_more_than_a_host_is_refused(entry: str) -> None:
    with pytest.raises(UserError, match=r"option `domains` has '.+' as a domain.*example\.com.*`urls`"):
        _judge([], domains=["example.org", entry])


def test_url_word_without_letters_is_refused() -> None:
    with pytest.raises(UserError, match=r"option `hard_words` has the entry '---', which has no word"):
        _judge([], hard_words=["---"])


@pytest.mark.parametrize("content", [None, b"# nothing\n", b"\x1f\x8bno gzip"])
def test_url_file_that_holds_no_list_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "list.gz"
    if content is not None:
        path.write_bytes(gzip.compress(content) if content.startswith(b"#") else content)
    with pytest.raises(UserError, match=r"list\.gz.*Expected"):
        _judge([], domain_files=[str(path)])


def test_url_file_too_large_for_words_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "domains.txt"
    path.write_text("a-very-long-domain.example.com\n" * 40_000)
    with pytest.raises(UserError, match=r"40,000 entries, too many for a list of words"):
        _judge([], hard_word_files=[str(path)])


def test_url_column_that_is_missing_says_what_to_write() -> None:
    with pytest.raises(UserError, match=r"no column 'link', only key, id, text, url\. Write `keep: \[link\]` in the source"):
        _judge(["http://example.com"], field="link", hard_words=["bad"])


def test_url_column_that_is_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="'url' holds int64, expected text"):
        Url(hard_words=("bad",)).process(_batch(pa.array([1, 2])))


def test_url_column_of_nulls_is_a_column_of_missing_urls() -> None:
    assert Url(hard_words=("bad",)).process(_batch(pa.nulls(2))).keep.all()


def test_url_without_any_list_is_refused() -> None:
    with pytest.raises(ValidationError, match="Expected at least one of: domains"):
        Url()
    assert Url(missing="drop").missing == "drop"


def test_url_stage_pickled_after_it_was_opened_drops_the_same() -> None:
    stage = Url.model_validate({"hard_words": ["bad"]})
    stage.open(StageContext(name="filter.url", seed=1))
    batch = _batch(pa.array(["http://bad.com", "http://good.com"], pa.large_string()))
    assert pickle.loads(pickle.dumps(stage)).process(batch).keep.tolist() == [False, True]
