"""The tags of a page, and the text outside of them, in plain Python."""

import re
from collections.abc import Iterator

_SPACE = rb"[ \t\n\f\r]"
_VALUE = rb"(?:\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z)|[^> \t\n\f\r]*)"
_ATTRIBUTE = re.compile(rb"[^ \t\n\f\r/>][^=>/ \t\n\f\r]*(?:%b*=%b*(?:(?!\Z)%b|\Z))?" % (_SPACE, _SPACE, _VALUE), re.DOTALL)
_NAME = re.compile(rb"[A-Za-z][^ \t\n\f\r/>]*")
_COMMENT = re.compile(rb"<!--(?:>|->|.*?(?:-->|--!>|\Z))", re.DOTALL)
_DECLARATION = re.compile(rb"<[!?][^>]*(?:>|\Z)", re.DOTALL)

VOID = {
    *("area", "base", "basefont", "bgsound", "br", "col", "embed", "frame", "hr", "img", "input", "keygen", "link", "meta"),
    *("param", "source", "track", "wbr"),
}
RAW = {"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"}
NOT_FOREIGN = {"gnobject", "div", "p", "span", "ul", "ol", "table", "center", "b", "i"}
GROUPS = [("p",), ("option", "optgroup"), ("li",), ("dd", "dt"), ("td", "th"), ("tr",), ("tbody", "thead", "tfoot")]
RANKS = {name: rank for rank, names in enumerate(GROUPS, 1) for name in names}
CLOSED = {"ul": 4, "ol": 4, "dl": 4, "menu": 4, "select": 2, **dict.fromkeys(("table", "td", "th", "tr", *GROUPS[6]), 7)}


def name_of(name: bytes) -> str:
    """The last eight bytes, in lower case: longer names that end alike are taken as one."""
    lower = bytes(byte | 0x20 if 0x41 <= byte <= 0x5A else byte for byte in name)
    return lower[-8:].lstrip(b"\0").decode("latin-1")


def attributes_from(page: bytes, at: int) -> tuple[int, int, bool]:
    """The byte behind the tag, its attributes, and whether it ends in `/>`."""
    count, is_closed = 0, False
    while at < len(page):
        if page[at : at + 1] == b">":
            return at + 1, count, is_closed
        if page[at : at + 1] in (b" ", b"\t", b"\n", b"\f", b"\r", b"/"):
            is_closed = page[at : at + 1] == b"/"
            at += 1
            continue
        attribute = _ATTRIBUTE.match(page, at)
        assert attribute is not None
        at, count, is_closed = attribute.end(), count + 1, False
    return len(page), count, False


def end_of_raw_text(page: bytes, at: int, name: str) -> int:
    """Where the end tag of `name` begins; the end of the page without one."""
    state, start = "plain", at
    marks = re.compile(rb"<!--|-->|<(/?)([A-Za-z][^ \t\n\f\r/>]*)(?=[ \t\n\f\r/>])")
    while found := marks.search(page, at):
        at = found.start() + 1
        if found[0] == b"-->" and found.start() >= start:
            state = "plain"
        elif found[0] == b"<!--":
            state = "hidden" if name == "script" and state == "plain" else state
        elif found[0] != b"-->" and found[1] and name_of(found[2]) == name:
            if state != "inner":
                return found.start()
            state = "hidden"
        elif found[0] != b"-->" and not found[1] and name_of(found[2]) == "script" and state == "hidden":
            state = "inner"
    return len(page)


def tags(page: bytes, is_foreign: list[bool]) -> Iterator[tuple[bool, str, int, bool, int]]:
    """Whether each tag is an end tag, its name, its attributes, whether it ends in `/>`, and the byte behind it.

    Args:
        is_foreign: one value, which the caller changes: whether the next tag stands in SVG or MathML.
    """
    at = page.find(b"<")
    while at >= 0:
        declaration = (_COMMENT if page.startswith(b"<!--", at) else _DECLARATION).match(page, at)
        is_end = page.startswith(b"</", at)
        name = _NAME.match(page, at + 1 + is_end)
        behind = at + 1
        if declaration:
            behind = declaration.end()
        elif name:
            behind, count, is_closed = attributes_from(page, name.end())
            word = name_of(name[0])
            yield is_end, word, count, is_closed, behind
            if not is_end and not is_foreign[0] and word in RAW:
                behind = end_of_raw_text(page, behind, word)
            elif not is_end and not is_foreign[0] and word == name_of(b"plaintext"):
                return
        at = page.find(b"<", behind)


def measures(page: bytes, limit: int) -> tuple[int, int, int]:
    """Depth, the most attributes of a tag, and cost."""
    opened: list[str] = []
    deepest, widest, cost, lost, foreign = 0, 0, 0, 0, [False]
    root, options, of_root, unsure = 0, 0, 0, False
    for is_end, name, num_attributes, is_closed, _ in tags(page, foreign):
        of_root += num_attributes if name in ("html", "body") else 0
        count = of_root if name in ("html", "body") else num_attributes
        widest = max(widest, count)
        if is_end:
            near = opened[::-1][:64]
            if name in near:
                element = len(opened) - 1 - near.index(name)
                lost += sum(not 0 < RANKS.get(other, 0) <= CLOSED.get(name, 0) for other in opened[element + 1 :])
                del opened[element:]
            foreign[0] = foreign[0] and root < len(opened)
            continue
        if name == "select":
            options = 0
        options += name in ("option", "optgroup")
        cost += 100 + len(opened) + lost // 4 + count * count // 32 + (options // 10 if name in ("option", "optgroup") else 0)
        foreign[0] = foreign[0] and name not in NOT_FOREIGN
        unsure = foreign[0] and (unsure or (name == "font" and num_attributes > 0))
        if (not foreign[0] and (name in RAW or name == name_of(b"plaintext"))) or name in VOID or len(opened) >= limit:
            continue
        if is_closed and foreign[0] and not unsure:
            continue
        if not foreign[0] and name in ("svg", "math") and not is_closed:
            foreign[0], root = True, len(opened)
        close_like(opened, name)
        opened.append(name)
        deepest = max(deepest, len(opened) + lost)
    return min(deepest, limit), widest, cost


def close_like(opened: list[str], name: str) -> None:
    """Closes the element that `name` closes by beginning, as one item of a list closes the item before it."""
    rank = RANKS.get(name, 0)
    for element in range(len(opened) - 1, -1, -1):
        inner = RANKS.get(opened[element], 0)
        if rank and inner == rank:
            del opened[element:]
            return
        if not 0 < inner < rank or (rank < RANKS["td"] and inner != 1):
            return


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


_REFERENCE = re.compile(rb"&#(?:[xX]([0-9a-fA-F]+)|([0-9]+))")
_IN_TAG = re.compile(rb"(?:(?<=data-)|(?<=mwe-))math|math/tex|math&")
_TAG = re.compile(rb"(?:(?<=<)|(?<=<m:)|(?<=<mml:))math(?=[\t\n\f\r />])")
_TOKEN = rb"(?<![be-z])%b(?=[\t\n\f\r \"'>&]|\Z)"
_LATEX, _LICENSE = re.compile(_TOKEN % b"latex"), re.compile(_TOKEN % b"license")


def mentions(page: bytes, many: int) -> tuple[int, int, int]:
    """What a page mentions of formulas, licences and directives for robots; `many` of each where something may hide."""
    codes = [int(found[1], 16) if found[1] else int(found[2]) for found in _REFERENCE.finditer(page)]
    if b"\0" in page or any(code < 128 and (chr(code).isalpha() or chr(code) in "-/") for code in codes):
        return many, many, many
    page = page.lower()
    formulas, licenses = (len(each.findall(page)) for each in (_LATEX, _LICENSE))
    formulas += len(_IN_TAG.findall(page)) + len(_TAG.findall(page))
    return formulas, licenses + page.count(b"vecommon"), page.count(b"robots")
