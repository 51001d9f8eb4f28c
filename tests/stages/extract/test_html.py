"""What `extract.html` makes of pages: text, columns, rules, and the same in any order and batch."""

import random
from typing import Any

import pyarrow as pa
import pytest

from datapipe.config.catalogue import build_stage, code_digest, libraries_of
from datapipe.config.stage_use import parse_stage
from datapipe.errors import StageError, UserError
from datapipe.stage import FilterResult
from stages.extract.html import Html
from tests.support.articles import batch_of
from tests.support.decisions import opened, reasons
from tests.support.pages import MENU, PARAGRAPH, PARAGRAPHS, article

ENGINES = ("auto", "resiliparse", "trafilatura", "fallback")
OWN = "tests.stages.extract.own_extractors"
TEXT = PARAGRAPH.removeprefix("<p>").removesuffix("</p>")


def _processed(pages: list[bytes], charsets: list[str | None] | None = None, **options: Any) -> FilterResult:
    extra = {} if charsets is None else {"charset": pa.array(charsets, pa.string())}
    return Html.model_validate(options).process(batch_of(pages, **extra))  # makes its engine itself, if nobody opened it


def _reasons(pages: list[bytes], **options: Any) -> list[str | None]:
    return reasons(opened(Html.model_validate(options)), batch_of(pages))


def _texts(pages: list[bytes], **options: Any) -> list[str]:
    return _processed(pages, **options).columns["text"].to_pylist()


# ------------------------------------------------------------------------------------------------ text and rules

EMPTY = [b"", b" \r\n\t\f", b"\0\0 \n"]
TEXTLESS = [b"<html><head><script>var x = 1</script></head><body><div></div></body></html>", b"<script>x</script>", b"<p></p>"]


@pytest.mark.medium
@pytest.mark.parametrize("engine", ENGINES)
def test_html_main_text_is_kept_without_menu_and_footer(engine: str) -> None:
    [text] = _texts([article(PARAGRAPHS).encode()], engine=engine)
    assert all(expected in text for expected in (TEXT, "1803", "1847", "1912"))
    assert "About" not in text and "cookies" not in text
    assert _reasons([*EMPTY, *TEXTLESS], engine=engine) == ["empty_page"] * 3 + ["no_main_text"] * 3
    assert set(_texts([*EMPTY, *TEXTLESS], engine=engine)) == {""}
    deep = ("<body>" + "<div>" * 300 + PARAGRAPHS + "</div>" * 300).encode()
    gives_up = engine == "trafilatura"
    assert _reasons([deep], engine=engine) == ["parser_gave_up" if gives_up else None]
    assert (TEXT in _texts([deep], engine=engine)[0]) == (not gives_up)


# ------------------------------------------------------------------------------------------------ charsets


def test_html_header_charset_is_read_from_its_column() -> None:
    page = article("<p>Река и море</p>" + PARAGRAPH).encode("cp1251")
    for charsets in (["windows-1251", None], ["Windows-1251", "utf-8"]):
        assert "Река и море" in _processed([page] * 2, charsets=charsets).columns["text"][0].as_py()


@pytest.mark.parametrize(("detector", "is_read"), [("both", True), ("resiliparse", False), ("chardetng", True)])
def test_html_undeclared_charset_is_that_of_the_chosen_detector(detector: str, is_read: bool) -> None:
    korean = "강은 마을 위 언덕에서 시작하여 오래된 물레방아와 들판을 지난다"
    [text] = _texts([article(f"<p>{korean}</p>{PARAGRAPH}").encode("euc_kr")], detector=detector)
    assert (korean in text) == is_read


def test_html_pages_with_bad_bytes_are_counted() -> None:
    bad = article("<p>größer, schöner, weiter – und älter als überall</p>" * 3).encode() + b"\xff"
    result = _processed([bad + b" ", article(PARAGRAPH).encode()])
    assert result.columns["with_bad_bytes"].to_pylist() == [1, 0]


MARKS = ["\ud800", "\0", "\ufffe", "\uffff", "\x01", "\x0b", "\U0010ffff", "&#xD800;", "&#0;", "&#1;", "&#xFFFE;"]


@pytest.mark.parametrize("engine", ENGINES)
def test_html_characters_that_parsers_refuse_end_in_valid_text(engine: str) -> None:
    pages = [article(f"<p>before{mark}after</p>" + PARAGRAPHS) for mark in MARKS]
    encoded = [page.encode(charset, "surrogatepass") for page in pages for charset in ("utf-8", "utf-16")]
    for text in _texts(encoded, engine=engine):
        text.encode()
        assert "\0" not in text
        assert TEXT in text


# ------------------------------------------------------------------------------------------------ limits

ATTRIBUTES = " ".join(f"a{number}=1" for number in range(40_000))
HOSTILE = {
    "8,000 nested": ("<div>" * 8_000 + PARAGRAPH, "too_costly"),
    "1,500 nested": ("<div>" * 1_500 + PARAGRAPH, "too_deep"),
    "40,000 nested": ("<div>" * 40_000 + PARAGRAPH, "too_costly"),
    "nested and closed": ("<div>" * 1_500 + PARAGRAPH + "</div>" * 1_500, "too_deep"),
    "nested in a hidden script": ("<script><!--<script></script>--></script>" + "<div>" * 1_500 + PARAGRAPH, "too_deep"),
    "40,000 attributes": (f"<div {ATTRIBUTES}>{PARAGRAPH}", "too_many_attributes"),
    "200,000 unclosed links": ("<a>x" * 200_000 + PARAGRAPH, "too_costly"),
    "6 MB in a paragraph": ("<p>" + "some words " * 550_000 + PARAGRAPH, "too_many_bytes"),
    "19,000 paragraphs": (PARAGRAPH * 19_000, "too_many_bytes"),
    "deep and wide": ("<div>" * 900 + "<b>word</b> " * 20_000 + PARAGRAPH, "too_costly"),
    "a list of 20,000 options": ("<select>" + "<option>a" * 20_000 + "</select>" + PARAGRAPH, "too_costly"),
    "40,000 roots": ("".join(f"<body a{number}=1>" for number in range(40_000)) + PARAGRAPH, "too_many_attributes"),
    "misnested links": ("<a><div></a>" * 30_000 + PARAGRAPH, "too_costly"),
    "240,000 short paragraphs": ("<p>a</p>" * 240_000 + PARAGRAPH, "too_costly"),
    "many wide tags": (f"<div {ATTRIBUTES[: 1_990 * 7]}>x</div>" * 100 + PARAGRAPH, "too_costly"),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", HOSTILE)
def test_html_hostile_page_is_dropped_by_its_rule_or_read_as_plain_text(name: str) -> None:
    page, reason = HOSTILE[name]
    result, limit = _processed([page.encode()]), next(rule.limit for rule in Html().rules() if rule.name == reason)
    assert Html().rules()[result.rule[0]].name == reason
    assert result.value[0] > limit
    [text] = _texts([page.encode()], beyond="plain_text")
    assert text.endswith(TEXT)


@pytest.mark.parametrize("name", ["1,500 nested", "19,000 paragraphs", "6 MB in a paragraph"])
def test_html_limits_are_options(name: str) -> None:
    page, _ = HOSTILE[name]
    [text] = _texts([page.encode()], max_bytes=1 << 30, max_depth=2_000, max_cost=1 << 40)
    assert text.endswith(TEXT)


@pytest.mark.parametrize("option", ["max_bytes", "max_attributes", "max_cost", "min_share"])
def test_html_page_at_a_limit_is_kept(option: str) -> None:
    page = (article(PARAGRAPH) + "<div a=1 b=2 c=3>").encode()
    dropped = _processed([page], **{option: 1})
    assert not dropped.keep[0]
    value = dropped.value[0] if option == "min_share" else int(dropped.value[0])
    assert _reasons([page], **{option: value}) == [None]
    depths = [_reasons([page], max_depth=depth) for depth in (6, 7)]  # html, body, two div, main, article, p
    assert depths == [["too_deep"], [None]]


LOOKS_DEEP = [
    *("<ul>" + "<li>item" * 3_000 + "</ul>", "<p>short " * 3_000, "<table>" + "<tr><td>a<td>b" * 3_000 + "</table>"),
    *("<select>" + "<option>a" * 3_000 + "</select>", "<dl>" + "<dt>a<dd>b" * 3_000 + "</dl>"),
    *("<svg>" + "<path d='M0 0'/>" * 3_000 + "</svg>", "<div><b><i>x</b></i></div>" * 2_000, "<br>" * 3_000),
    *("<script>" + "document.write('<div>');" * 3_000 + "</script>", "<!-- <div> -->" * 3_000),
]


@pytest.mark.medium
def test_html_page_that_only_looks_deep_is_read_and_odd_roots_are() -> None:
    pages = [page + PARAGRAPH for page in LOOKS_DEEP]
    assert _reasons([page.encode() for page in pages], min_share=0) == [None] * len(pages)
    odd = [b"<frameset><frame src=a></frameset>", b"<svg><text>x</text></svg>", b"plain words"]
    assert _reasons(odd) == ["no_main_text", "no_main_text", None]
    assert _reasons([("<div>" * 1500 + PARAGRAPH).encode("utf-16")]) == ["too_deep"]  # measured as text


def test_html_plain_text_has_lines_and_no_scripts() -> None:
    page = "<h1>A</h1>\n<script>no</script><p>b &amp; <b>c</b>d<br>e<!-- no --><table><tr><td>f</td><td>g</td></tr></table>"
    page += f"&#{'0' * 5_000}104; &#{'9' * 5_000};"
    [text] = _texts([(page + "<div>" * 1_500).encode()], beyond="plain_text")
    assert text == "A\n\nb & cd\ne\n\nf g\n\nh \ufffd"


# ------------------------------------------------------------------------------------------------ columns


@pytest.mark.parametrize("engine", ENGINES)
def test_html_columns_are_found(engine: str) -> None:
    head = "<title> A river\n &amp; its towns </title><meta name=Robots content='NOINDEX,  noai'>"
    head += "<meta name=robots content=noimageai><link rel=license href=https://creativecommons.org/licenses/by-sa/4.0/>"
    pages = [article(PARAGRAPH, head, " lang=en-GB"), article(PARAGRAPH)]
    columns = _processed([page.encode() for page in pages], engine=engine).columns
    assert columns["title"].to_pylist() == ["A river & its towns", None]
    assert columns["html_lang"].to_pylist() == ["en-GB", None]
    assert columns["robots"].to_pylist() == ["noindex, noai, noimageai", None]
    assert columns["license"].to_pylist() == ["cc-by-sa-4.0", None]


CC = "https://creativecommons.org"
LICENSES = {
    '<a rel="noopener LICENSE" href="http://www.creativecommons.org/licenses/by/3.0/us/deed.en">c</a>': "cc-by-3.0-us",
    f'<a rel=license href="{CC}/publicdomain/zero/1.0/">cc0</a>': "cc0-1.0",
    '<a href="//creativecommons.org/licenses/by-nc-nd/2.5">cc</a>': "cc-by-nc-nd-2.5",
    '<a rel=license href="/our-terms">terms</a>': "/our-terms",
    f'<a rel=license href="/terms">t</a><a href="{CC}/licenses/by/4.0/">of a picture</a>': "/terms",
    f'<a href="{CC}/licenses/by/4.0/">a</a><a href="{CC}/licenses/by-sa/4.0/">b</a>': "cc-by-4.0, cc-by-sa-4.0",
    f'<a href="{CC}/about/">cc</a>': None,
    "<a rel=license>nothing</a>": None,
    "<a rel=licensed href=/x>other</a>": None,
}


def test_html_license_is_named() -> None:
    pages = [article(f"{PARAGRAPH}<p>{marked}</p>").encode() for marked in LICENSES]
    assert dict(zip(LICENSES, _processed(pages).columns["license"].to_pylist())) == LICENSES


@pytest.mark.parametrize("hidden", ["&#%d;", "&#%d", "&#x%x;", "&#X%X;", "\0%c"])
def test_html_marks_are_found_where_a_letter_of_their_names_is_written_otherwise(hidden: str) -> None:
    license, robots, tex = (f"{hidden % ord(word[0])}{word[1:]}" for word in ("license", "robots", "math/tex"))
    marked = (
        f'<p>Math: <script type="{tex}">x_1</script></p><a rel={license} href=/terms>t</a><meta name={robots} content=noai>'
    )
    columns = _processed([article(PARAGRAPHS + marked).encode()]).columns
    assert columns["license"].to_pylist() == ["/terms"]
    assert columns["robots"].to_pylist() == ["noai"]
    assert "Math: $x_1$" in columns["text"][0].as_py()


@pytest.mark.parametrize("sign", ["/", "&#47;", "&#x2F", "&sol;"])
def test_html_formulas_are_found_by_a_type_with_a_reference(sign: str) -> None:
    [text] = _texts([article(f'{PARAGRAPHS}<p>So <script type="math{sign}tex">x_1</script></p>').encode()])
    assert "So $x_1$" in text


def test_html_directives_for_robots_are_found_in_head_and_body() -> None:
    mark, other = "<meta name=robots content=%s>", "<meta name=description content=robots>"
    heads = ["", mark % "a", mark % "robots", other, mark % "a" + other]
    pages = [article(PARAGRAPH + body, head).encode() for head in heads for body in ("", mark % "b", "<p>robots</p>")]
    found = [None, "b", None, "a", "a, b", "a", "robots", "robots, b", "robots", None, "b", None, "a", "a, b", "a"]
    assert _processed(pages).columns["robots"].to_pylist() == found


# ------------------------------------------------------------------------------------------------ order, batches, engines


def _mixed_pages() -> list[bytes]:
    numbered = [article(f"<p>Number {number}</p>" + PARAGRAPHS, f"<title>{number}</title>") for number in range(1, 7)]
    pages = [page.encode() for page in numbered]
    legacy = article("<p>Größe und Übermut</p>" + PARAGRAPHS, "<meta charset=latin1>").encode("latin-1")
    hidden = [f"<nav>{MENU * 40}</nav><{tag} hidden>{PARAGRAPHS * 4}".encode() for tag in ("div", "aside")]
    return [*pages, *hidden, legacy, b"", b"<div>" * 1_500, b"<script>x</script>", *pages[:2], legacy]


@pytest.mark.parametrize("engine", ENGINES)
def test_html_pages_in_any_order_and_batch_give_the_same(engine: str) -> None:
    pages = _mixed_pages()
    whole = _rows(_processed(pages, engine=engine))
    assert [_rows(_processed([page], engine=engine))[0] for page in pages] == whole
    order = random.Random(3).sample(range(len(pages)), len(pages))
    assert _rows(_processed([pages[number] for number in order], engine=engine)) == [whole[number] for number in order]


def _rows(result: FilterResult) -> list[str]:
    named = pa.table(dict(result.columns)).to_pylist()
    return [f"{row} {rule} {value}" for row, rule, value in zip(named, result.rule, result.value, strict=True)]


def test_html_own_engine_decides_text_and_giving_up_and_a_wrong_result_is_named() -> None:
    options = {"engine": f"{OWN}:Shouts"}
    pages = [b"<p>words</p>", b"<p>it gives up</p>", b"<script>it gives up</script>"]
    assert _reasons(pages, **options) == [None, "parser_gave_up", "no_main_text"]
    assert _texts(pages, **options)[0] == "<P>WORDS</P>"
    with pytest.raises(StageError, match=r"Wrong.*int"):
        _processed([b"<p>words"], engine=f"{OWN}:Wrong")


def _built(**options: object) -> Any:
    return build_stage(parse_stage({"extract.html": options}))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"engine": "justext"}, "justext"),
        ({"engine": f"{OWN}:Absent"}, OWN),
        ({"engine": f"{OWN}:WithoutMethod"}, "extract"),
        ({"engine": f"{OWN}:WithArguments"}, "language"),
        ({"engine": "no_such_module_of_ours:Engine"}, "no_such_module_of_ours"),
        ({"mode": "tag"}, "mode"),
    ],
)
def test_html_options_that_do_not_fit_are_refused_when_planning(options: dict[str, str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        _built(**options)


def test_html_fingerprint_covers_the_own_class_and_the_library_in_use() -> None:
    built = [*(_built(engine=engine) for engine in ENGINES), _built(engine=f"{OWN}:Shouts"), _built(detector="resiliparse")]
    digests = [code_digest(stage) for stage in built]
    assert code_digest(_built()) == digests[0]
    assert len(set(digests)) == 2  # without and with the module of the class
    assert len({libraries_of(stage) for stage in built}) == 4  # with trafilatura, without it, with any, without chardetng
    assert ["trafilatura" in stage.libraries_used() for stage in built[:4]] == [True, False, True, True]
