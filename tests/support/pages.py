"""Web pages for tests, made by us: random ones for oracles, and articles for engines."""

import numpy as np

NAMES = (
    *("div", "P", "span", "b", "li", "ul", "table", "tr", "td", "tbody", "select", "option", "dl", "dd", "svg", "path", "math"),
    *("br", "img", "script", "style", "textarea", "title", "foreignObject", "plaintext", "x-element-of-ours"),
    *("body", "html", "h1"),
)
ATTRIBUTES = ("", "", " a", ' b="1>2"', " c='<b>'", " d=x/y", "/", " / ", ' e = "', " = =", "\n\tf=g", ' "')
BETWEEN = (
    *("<!-- <b> -->", "<!-->", "<!--->", "<!-- --!>", "<!doctype html>", "<?xml >", "<![CDATA[<b>]]>"),
    *("< b>", "</ b>", "<!--", "<3"),
)


def page_of(text: bytes, generator: np.random.Generator) -> bytes:
    """Random tags, most of them whole, with comments and pieces of a text between them."""
    parts: list[bytes] = []
    for _ in range(int(generator.integers(0, 60))):
        start = int(generator.integers(0, len(text) + 1))
        kind, name = int(generator.integers(0, 12)), NAMES[int(generator.integers(0, len(NAMES) - 2))]
        attributes = ATTRIBUTES[int(generator.integers(0, len(ATTRIBUTES)))] * int(generator.integers(0, 3))
        if kind < 6:
            parts.append(f"<{name}{attributes}>".encode())
        elif kind < 10:
            parts.append(f"</{name}>".encode())
        elif kind < 11:
            parts.append(BETWEEN[int(generator.integers(0, len(BETWEEN)))].encode())
        parts.append(text[start : start + 5])
    return b"".join(parts)


MENU = "<nav><ul><li><a href=/>Home</a><li><a href=/about>About</a></ul></nav>"
FOOTER = "<footer><p>Copyright and cookies</p></footer>"
PARAGRAPH = (
    "<p>The river rises in the hills above the town and runs for ninety miles to the sea, past mills that have stood for three "
    "hundred years and past fields that are flooded every spring. People who live on its banks know the signs of high water, "
    "and they move their cattle before the rain has ended.</p>"
)
PARAGRAPHS = PARAGRAPH + "".join(
    f"<p>In the year {year} the council of the town built a new wall along the {side} bank, and the mills stood still for a "
    f"whole season while the masons carried stones from the quarry to the water. The wall has held the river ever since.</p>"
    for year, side in ((1803, "left"), (1847, "right"), (1912, "lower"))
)
"""Four paragraphs, of which none repeats another: engines drop repeats within a page."""


def article(content: str, head: str = "", attributes: str = "") -> str:
    """A page with a menu, a main part and a footer."""
    body = f"{MENU}<div id=page><div class=wide><main><article>{content}</article></main></div></div>{FOOTER}"
    return f"<!doctype html><html{attributes}><head>{head}</head><body>{body}</body></html>"
