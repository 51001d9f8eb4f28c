"""The text of a page outside of its tags, in plain Python."""

from __future__ import annotations

from tests.oracles.tags import _COMMENT, _DECLARATION, _NAME, RAW, attributes_from, end_of_raw_text, name_of

IN_LINE = {
    *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img", "ins"),
    *("kbd", "mark", "nobr", "q", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u"),
    *("var", "wbr"),
}


def plain(page: bytes) -> bytes:
    """A newline for each tag, a space for the tag of a cell, nothing for a tag within a line."""
    out, at = bytearray(), 0
    while at < len(page):
        declaration = (_COMMENT if page.startswith(b"<!--", at) else _DECLARATION).match(page, at)
        is_end = page.startswith(b"</", at)
        name = _NAME.match(page, at + 1 + is_end) if page[at : at + 1] == b"<" else None
        if declaration:
            at = declaration.end()
        elif name:
            at, _, _ = attributes_from(page, name.end())
            word = name_of(name[0])
            out += b"" if word in IN_LINE else b" " if word in ("td", "th") else b"\n"
            if not is_end and word in RAW - {"textarea", "title"}:
                at = end_of_raw_text(page, at, word)
        else:
            out.append(page[at])
            at += 1
    return bytes(out)
