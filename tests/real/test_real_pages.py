"""`extract.html` on real pages: the main texts that people marked, and charsets whose declarations are removed."""

import contextlib
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from datapipe.stage import StageContext
from stages.extract._charsets import DETECTORS, UTF_8, codec_of, codecs_of, declared_in, decode_page
from stages.extract.html import Html
from tests.support.articles import Article, batch_of, crawled, mixed, news, readable, records, score

pytestmark = [pytest.mark.real, pytest.mark.needs("resiliparse", "trafilatura", "chardetng_py", "fastwarc")]

FIRST_BYTES = 4096


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "articles", "f1"),
    [
        ("auto", mixed, 0.829),
        ("auto", news, 0.932),
        ("auto", readable, 0.957),
        ("resiliparse", news, 0.937),
        ("trafilatura", news, 0.961),
        ("fallback", news, 0.959),
        ("fallback", readable, 0.965),
    ],
)
def test_main_text_is_as_good_as_it_was_measured(
    real_data: Path, engine: str, articles: Callable[[Path], tuple[Article, ...]], f1: float
) -> None:
    stage = Html(engine=engine)
    stage.open(StageContext(name="extract.html", seed=1))
    marked = articles(real_data)
    texts = stage.process(batch_of([article.html.encode() for article in marked])).columns["text"].to_pylist()
    assert score(marked, texts).f1 == pytest.approx(f1, abs=0.01)


def _undeclared(page: bytes) -> bytes:
    """The page with names in place of its declarations that no one reads, of the same length."""
    return re.sub(rb"(?i)(char)set|(enco)ding", lambda found: (found[1] or found[2]) + b"-" * (len(found[0]) - 4), page)


def _declared_text(page: bytes, header: str) -> str | None:
    """The text of a page, which declares nothing any more, by the charset that it declared; None where it declares none."""
    declared = codec_of(header) or declared_in(page[:FIRST_BYTES])
    for codec in codecs_of(declared) if declared else ():
        try:
            return _undeclared(page).decode(codec).removeprefix("\ufeff").replace("\0", "")
        except UnicodeDecodeError:
            continue
    return None


@pytest.mark.parametrize("detector", DETECTORS)
def test_charset_without_its_declaration_is_found(real_data: Path, detector: str) -> None:
    found = []
    for page, header in chain(*crawled(real_data).values()):
        text = _declared_text(page, header)
        if text is not None and not page.isascii():
            decoded = decode_page(_undeclared(page), "", DETECTORS[detector])
            found.append((decoded.text == text, decoded.codec != UTF_8))
    legacy = [is_same for is_same, is_legacy in found if is_legacy]
    print(f"{len(found)} pages, {sum(same for same, _ in found)} the same; {len(legacy)} legacy, {sum(legacy)} the same")
    assert len(found) > 90
    assert sum(is_same for is_same, _ in found) >= 0.97 * len(found)


_SENTENCES = {
    "cp1252": "de fr es it nl pt sv da nb fi is ca",
    "cp1250": "pl cs sk hu hr sl",
    "iso8859_2": "pl cs sk hu",
    "cp1251": "ru uk bg sr",
    "koi8_r": "ru",
    "cp1253": "el",
    "cp1254": "tr",
    "cp1255": "he",
    "cp1256": "ar fa",
    "cp1257": "lt lv",
    "cp874": "th",
    "cp932": "ja",
    "euc_jp": "ja",
    "gb18030": "zh",
    "big5": "zh",
    "cp949": "ko",
}
"""Languages of undeclared pages that a crawl has, by charset."""


def _pages_of_sentences(folder: Path) -> Iterator[tuple[bytes, str]]:
    """20 pages of three to five sentences in every language and charset, with their texts."""
    texts: dict[str, list[str]] = {}
    for record in records(folder / "lang/lingua_sentences.jsonl.zst"):
        texts.setdefault(record["lang"], []).append(record["text"].replace("\u301c", "\uff5e"))  # cp932 has one of the two
    for codec, languages in _SENTENCES.items():
        for language in languages.split():
            made = 0
            for start in range(0, len(texts[language]), 4):
                text = "".join(f"<p>{sentence}</p>" for sentence in texts[language][start : start + 3 + start % 3])
                with contextlib.suppress(UnicodeEncodeError):
                    page = text.encode(codec)
                    made += not page.isascii()
                    yield from [(page, text)] if not page.isascii() else []
                if made == 20:
                    break


def test_charset_of_undeclared_sentences_is_found(real_data: Path) -> None:
    same = [decode_page(page, "", DETECTORS["both"]).text == text for page, text in _pages_of_sentences(real_data)]
    print(f"{len(same)} pages of sentences, {sum(same) / len(same):.3f} the same")
    assert len(same) > 700
    assert sum(same) >= 0.975 * len(same)
