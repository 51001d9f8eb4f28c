"""Each URL rule, the form that URLs are brought into, and the lists' files."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pydantic import ValidationError

from datapipe.columns import text_buffers
from datapipe.errors import UserError
from datapipe.kernels.filters import url as kernels
from datapipe.stage.documents import DocumentBatch
from stages.filter.url import Url
from tests.support.decisions import opened, reasons
from tests.support.global_stages import batch_of


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


CASES: list[tuple[dict[str, Any], dict[Any, str | None]]] = [
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
    (
        {"hard_words": ["very bad"]},
        {"x.com/very-bad-news": "hard_word", "x.com/very/news/bad": None, "x.com/verybad": None},
    ),
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


@pytest.mark.parametrize(("options", "expected"), CASES)
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
FILES: dict[str, bytes | None] = {"no.gz": b"\x1f\x8bno gzip", "empty.gz": gzip.compress(b"# nothing\n"), "absent.gz": None}
FILES |= {"long.txt": b"a-very-long-domain.example.com\n" * 40_000}
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"domains": ["example.org", entry]}, "domains") for entry in MORE_THAN_HOSTS),
    ({"hard_words": ["---"]}, "'---'"),
    ({"hard_words": ["bad"], "field": "link"}, r"'link'.*keep: \[link\]"),
    ({"hard_words": ["bad"], "field": "number"}, r"'number'.*int64"),
    ({"hard_word_files": ["long.txt"]}, "40,000"),
    *(({"domain_files": [name]}, name) for name in ("no.gz", "empty.gz", "absent.gz")),
]


@pytest.mark.parametrize(("options", "named"), REFUSED)
def test_url_lists_and_columns_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=named):
        reasons(opened(Url.model_validate(options)), batch_of(["text"], url=pa.array(["http://a.com"]), number=pa.array([1])))


def test_url_without_any_list_is_refused_and_nulls_are_missing_urls() -> None:
    with pytest.raises(ValidationError, match="domains"):
        Url()
    assert Url(missing="drop").missing == "drop"
    assert Url(hard_words=("bad",)).process(_batch(pa.nulls(2))).keep.all()
