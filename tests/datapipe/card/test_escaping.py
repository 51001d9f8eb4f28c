"""Text of users in a card, read back by a parser of Markdown."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from datapipe.card.escaping import MOST_CHARS, code, link, plain, prose, shown


class _Cells(HTMLParser):
    """The texts of the cells of a table, and the tags in them."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def _read_back(cell: str) -> tuple[list[str], set[str]]:
    page = _Cells()
    page.feed(MarkdownIt("commonmark").enable("table").render(f"| a | b |\n|---|---|\n| {cell} | end |\n"))
    return [text.strip() for text in page.cells], page.tags - {"table", "thead", "tbody", "tr", "th", "td"}


@given(st.text(max_size=60) | st.text(alphabet="`|\\<>&*_[]()!#~$ \n-a", max_size=30))
@example("\\|")
@example("![x](https://e.org/p.png) <!-- x --> &amp; **b** ~~d~~ $x$")
@example("a\nb\n\n# c \u202e\u0000 `|` a\\|b`")
def test_text_in_a_table_is_read_back_as_it_is(text: str) -> None:
    for written, allowed in ((code(text), {"code"}), (prose(text), set()), (shown(text), {"code"})):
        cells, tags = _read_back(written)
        assert cells == ["a", "b", plain(text).strip(), "end"]
        assert tags <= allowed
    assert "\n" not in plain(text)


def test_long_text_is_cut_and_credentials_are_masked() -> None:
    assert len(plain("x" * 10**6)) == MOST_CHARS
    assert "SECRET" not in code("s3://KEY:SECRETSECRET@bucket/a")
    assert link("https://example.org/a?b=c") == "<https://example.org/a?b=c>"
    assert shown(1234567) == "1,234,567"
