"""Which engine's text a page has with `auto`, what is counted, and what each engine writes: the examples of the README."""

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from datapipe.stage import FilterResult
from stages.extract._engines import num_words
from stages.extract.html import Html
from tests.support.articles import batch_of
from tests.support.decisions import opened, reasons
from tests.support.marked_spans import scraps
from tests.support.pages import PARAGRAPH, PARAGRAPHS, article

pytestmark = pytest.mark.needs("resiliparse", "trafilatura")

STORY = PARAGRAPHS + "".join(
    f"<p>In the spring of {year} the masons came back to the mill at bend number {year % 7}, and the river took {year % 13} of "
    "their boats before the council of the town had paid for the stones.</p>"
    for year in range(1700, 1724)
)
"""Some 900 words, of which no paragraph repeats another."""

MENU = "".join(f"<li><a href=/{number}>Page number {number} of the town</a>" for number in range(60))
MISLEADING = {
    "Substack": '<article class="typography newsletter-post post">',
    "Genesis": '<div class="content-sidebar-wrap">',
    "Squarespace": '<article class="BlogItem h-entry">',
    "React": '<div hidden id="S:0">',
    "a dialog": '<div role="dialog" class="modal">',
    "a sidebar": '<div id="sidebar" class="sidebar widget-area">',
    "aria": '<section aria-hidden="true">',
    "a style": '<div style="display: none">',
}


def _page(content: str) -> str:
    return f"<html><body><nav><ul>{MENU}</ul></nav>{content}</body></html>"


def _processed(*pages: str, **options: Any) -> FilterResult:
    return opened(Html.model_validate(options)).process(batch_of([page.encode() for page in pages]))


def _counted(result: FilterResult) -> list[set[str]]:
    """The counts that each page adds to."""
    return [{name for name in Html.counts if result.columns[name][row].as_py()} for row in range(len(result.rule))]


def _text(page: str, **options: Any) -> str:
    [text] = _processed(page, **options).columns["text"].to_pylist()
    return text


@pytest.mark.parametrize("tag", MISLEADING.values(), ids=MISLEADING)
def test_auto_finds_a_text_whose_wrapper_is_called_as_menus_are(tag: str) -> None:
    result = _processed(_page(f"<div>{tag}{STORY}</div>"), _page(f"<main>{STORY}</main>"))
    misled, plain = result.columns["text"].to_pylist()
    assert misled == plain
    assert "Page number" not in misled


JUNK = PARAGRAPHS.replace("river", "cookie") * 3
ARTICLE = f"<main><article><h1>The mill</h1>{PARAGRAPH}</article></main>"


@pytest.mark.parametrize(
    "boilerplate",
    [
        *("<div hidden>", "<div aria-hidden=true>", '<div role="dialog">', '<div class="a" style="color: red; display:none">'),
        *('<div id="sidebar">', '<div class="footer">', '<div class="cookie-law-info">', '<div class="advertisement">'),
        *('<div id="comments">', "<footer>", "<template>"),
    ],
)
def test_auto_keeps_a_short_text_beside_long_boilerplate(boilerplate: str) -> None:
    page = _page(f"{ARTICLE}{boilerplate}{JUNK}")
    [text] = _processed(page).columns["text"].to_pylist()
    assert [text] == _processed(page, engine="resiliparse").columns["text"].to_pylist()
    assert text.startswith("The mill")


@pytest.mark.parametrize("section", ['<div hidden id="S:{}">', "<div aria-hidden=true>", '<div style="display:none">'])
@pytest.mark.parametrize("first", ["", "<p>Loading</p>"])
def test_auto_finds_all_of_a_page_in_sections_that_mislead_it(section: str, first: str) -> None:
    paragraphs = STORY.split("</p>")
    sections = "".join(section.format(number) + "</p>".join(paragraphs[number::5]) + "</div></section>" for number in range(5))
    result = _processed(f"<nav><ul><li><a href=/>Home</a></ul></nav>{first}{sections}")
    assert _counted(result) == [{"by_trafilatura", "tried_again_small_share"}]
    assert num_words(result.columns["text"][0].as_py()) > 800


HIDDEN = f"<div hidden>{STORY}</div>"
FEW = "".join(f"<li><a href=/{number}>Page {number}</a>" for number in range(20))
COMMENTS = "".join(f"<div class=comments><p>{number} I remember it well.</p></div>" for number in range(100))
CHINESE = "这条河发源于城镇上方的山丘，流经古老的水磨坊和田野，最后流入九十英里外的大海。" * 8
COUNTED = {
    _page(HIDDEN): {"by_resiliparse_unmarked", "tried_again_small_share"},
    _page(f"<aside>{STORY}</aside>"): {"by_trafilatura", "tried_again_small_share"},
    _page(f"{HIDDEN}<main><p>A few words of the town.</p></main>"): {"by_resiliparse_unmarked", "tried_again_small_share"},
    article(PARAGRAPH): {"by_resiliparse"},
    _page(f"<main>{STORY}</main>"): {"by_resiliparse"},
    f"<html><body>{COMMENTS}": {"tried_again_small_share"},  # and dropped
    # pages that show little more are not tried again
    f"<nav><ul>{FEW}</ul></nav><main><p>{'A short text of a photograph. ' * 3}</main>": {"by_resiliparse"},
    _page(f"<main><p>{CHINESE}</p></main>"): {"by_resiliparse"},
}


def test_auto_counts_the_engine_and_the_reason() -> None:
    result = _processed(*COUNTED)
    assert _counted(result) == list(COUNTED.values())
    assert all(f"number {1723 % 7}" in text for text in result.columns["text"].to_pylist()[:3])
    assert [Html().rules()[rule].name for rule in result.rule if rule >= 0] == ["no_main_text"]


FEW_WORDS = "A few words of the town, which are all of it that is found here."


def test_auto_where_the_second_parser_gives_up_has_the_first_ones_text() -> None:
    deep = _page(f"<main><p>{FEW_WORDS}</p></main>") + "<aside>" * 300 + STORY
    assert _text(deep, min_share=0) == FEW_WORDS


def test_page_of_which_little_is_found_is_dropped_with_its_share() -> None:
    page = _page(f"<ul class=menu>{MENU * 10}</ul><main><p>A short text of a photograph.</p></main>")
    result = _processed(page)
    assert reasons(opened(Html()), batch_of([page.encode()])) == ["little_of_page"]
    assert 0 < result.value[0] < 0.05
    assert _processed(page, min_share=0).columns["text"].to_pylist() == ["A short text of a photograph."]
    assert _processed(page, engine="resiliparse").rule.tolist() == result.rule.tolist()


def test_share_of_the_page_is_measured_of_kept_pages() -> None:
    result = _processed(article(STORY), _page(f"<main>{STORY}</main>"))
    shares = result.measured[[rule.name for rule in Html().rules()].index("little_of_page")]
    assert shares[0] > 0.9 > shares[1] > 0.5


WORDS = {
    "": 0,
    "the mill at the river bend stood still": 7,
    "1 2 3 4 5 6 7 8 9 10": 4,
    "这条河发源于城镇上方的山丘": 6,
    "川は町の上の丘から流れ出し、海まで流れる。": 9,
    "แม่น้ำไหลจากเนินเขาไปยังทะเล": 7,
    "Река начинается в холмах над городом": 6,
    "강은 마을 위 언덕에서 시작하여 오래된 물레방아와 들판을 지난다": 7,
}


def test_words_are_counted_in_any_script() -> None:
    assert {text: num_words(text) for text in WORDS} == WORDS


@pytest.mark.parametrize("engine", ["auto", "trafilatura", "fallback"])
def test_full_mode_is_an_option_of_every_engine_with_trafilatura(engine: str) -> None:
    assert "masons came back" in _text(_page(f"<main>{STORY}</main>"), engine=engine, full=True)


TAGS = scraps("math mi mo msup mfrac mtable mtr mtd semantics mover munderover mfenced m:math mspace/ template svg p ul li td")
TAGS += scraps("aside head noscript select frameset title plaintext nav")
TAGS += ['annotation encoding="application/x-tex"', 'script type="math/tex"', "span class=katex", "div class=MathJax_Display"]
TAGS += ["img class=latex alt=x", "mjx-container display=true", "span class=mwe-math-element", "div hidden", "a href=/"]
TAGS += ["body class=x"]


@pytest.mark.slow
def test_auto_takes_tags_in_any_order() -> None:
    random = Random(7)
    for _ in range(120):
        parts = [f"<{random.choice(TAGS)}>" for _ in range(random.randint(1, 40))]
        parts += [f"</{tag[1:].split()[0].rstrip('>/')}>" for tag in random.sample(parts, len(parts) // 2)]
        parts += random.sample(["→ x + ∑ ( 1 ", "α", STORY, PARAGRAPH], 2)
        random.shuffle(parts)
        result = _processed("".join(parts), min_share=0)
        assert (result.columns["text"][0].as_py() == "") == (not result.keep[0])


HOSTILE = {
    "hidden": "<div hidden>" * 240 + "some words of a river " * 15_000,
    "links": "<ul>" + "<li><a href=/>some words of a river</a></li>" * 2_000 + "</ul>",
    "many formulas": '<script type="math/tex">x</script>' * 1_000
    + "<div class=MathJax_Preview><math><mi>y</mi></math></div>" * 1_000,
}
SPACES = " " * 100_000
MORE_HOSTILE = {
    "paragraphs": "<nav>" + "<p>some words of a river</p>" * 4_000 + "</nav>",
    "nested formulas": "<div hidden>" + "<math><mrow>" * 300 + "<mi>x</mi>" * 1_000 + "<p>word" * 1_000,
    "spaces in formulas": f'<p>x</p><script type="math/tex">x{SPACES}y</script><img class=latex alt="x{SPACES}y">',
    "hidden beside a text": f"<main>{PARAGRAPH}</main>" + "<div hidden>" * 240 + "some words of a river " * 15_000,
}


@pytest.mark.medium
@pytest.mark.parametrize(
    "page",
    [
        *(pytest.param(page, id=name) for name, page in HOSTILE.items()),
        *(pytest.param(page, id=name, marks=pytest.mark.slow) for name, page in MORE_HOSTILE.items()),
    ],
)
def test_auto_reads_hostile_pages_to_an_end(page: str) -> None:
    for full in (False, True):
        _processed(page, full=full).columns["text"][0].as_py().encode()


# ------------------------------------------------------------------------------------------------ examples of the README

README = Path(__file__).resolve().parents[3] / "stages/extract/README.md"
CELL = re.compile(r"`([^`]*)`")


def _rows(num_cells: int) -> list[list[str]]:
    """The rows of examples with so many cells: HTML, options, and what the two engines write; or HTML and its text."""
    lines = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("| `<")]
    rows = [[cell.strip() for cell in line.replace("\\|", "¦").strip("| ").split(" | ")] for line in lines]
    return [row for row in rows if len(row) == num_cells]


def _written(html: str, **options: Any) -> str:
    """What stands between two halves of an article, where the HTML stood."""
    text = _text(article(f"{PARAGRAPHS}{html}<p>The last of the paragraphs is here, and it ends the page.</p>"), **options)
    before, _, behind = text.rpartition("The wall has held the river ever since.")
    assert before.count("1912") == 1
    return "⏎".join(line.rstrip() for line in behind.partition("The last of")[0].strip("\n").split("\n"))


def _code(cell: str) -> str:
    found = CELL.fullmatch(cell)
    return found[1].replace("¦", "|") if found else ""


@pytest.mark.parametrize("row", _rows(4), ids=lambda row: f"{row[0][:20]} {row[1]}")
@pytest.mark.parametrize("engine", ["resiliparse", "trafilatura"])
def test_example_of_the_readme_is_what_the_engine_writes(row: list[str], engine: str) -> None:
    html, options, *written = row
    given = {name: value == "true" for name, value in re.findall(r"(\w+): (true|false)", options)}
    expected = written[engine == "trafilatura"]
    assert _written(_code(html).replace("⏎", "\n"), engine=engine, **given).replace("\t", "⇥") == _code(expected)


@pytest.mark.parametrize("row", _rows(2), ids=lambda row: row[1])
def test_formula_of_the_readme_is_latex_with_every_engine(row: list[str]) -> None:
    html, expected = map(_code, row)
    assert [_written(html, engine=engine) for engine in ("auto", "resiliparse", "trafilatura")] == [expected] * 3


def test_readme_has_an_example_of_every_option_and_formulas() -> None:
    named = {name for _, options, *_ in _rows(4) for name in re.findall(r"(\w+): ", options)}
    assert named == {"tables", "code", "lists", "headings", "links", "comments"}
    assert len(_rows(2)) > 10
