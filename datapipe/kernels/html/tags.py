"""How large, deep and wide the tags of web pages are: a bound of the work of a parser, in one pass over the bytes.

Parsers of HTML take time in the square of the attributes of a tag, and main-text detection in the square of the depth, so
pages are measured first. Tags, attributes, comments and elements of raw text are those of the HTML Standard's tokenizer
(https://html.spec.whatwg.org/multipage/parsing.html#tokenization).

No tree is more than about twice as deep as this depth, as random tags show (`tests/datapipe/kernels/html/test_tags.py`). An
element without its end tag counts to the end of the page; `<li>`, `<p>`, cells and rows close their like.
"""

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import NO_BITS, ONES, find_any
from datapipe.kernels.html.elements import (
    CELL,
    CELL_RANK,
    CLOSES_SHIFT,
    FONT,
    FOREIGN,
    IN_LINE,
    NOT_FOREIGN,
    OPTION_RANK,
    PLAINTEXT,
    RANK,
    RAW,
    ROOT,
    SCRIPT,
    SELECT,
    SHOWN,
    VOID,
    kind_of,
)
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut, UInt64sOut

_SLASH, _LT, _EQUALS, _GT, _QUOTE, _APOSTROPHE = 0x2F, 0x3C, 0x3D, 0x3E, 0x22, 0x27
TAG_COST = 100
"""Of any start tag: what trafilatura takes for one, 40 µs, at `max_cost` 5,000,000 for 2 s. Resiliparse takes 2 µs."""

_MOST_CROSSED = 64  # the most open elements that an end tag is compared with


_SIGN, _END, _SPACE = 1, 2, 3


def _kinds() -> np.ndarray:
    """What each byte is inside a tag, (256,) uint8."""
    kinds = np.zeros(256, np.uint8)
    kinds[list(b"\t\n\f\r ")] = _SPACE
    kinds[list(b"/>")] = _END
    kinds[_EQUALS] = _SIGN
    return kinds


_KINDS = _kinds()


@inline
def is_letter(byte):
    return 0x61 <= byte | 0x20 <= 0x7A


@inline
def is_space(byte):
    return _KINDS[byte] == _SPACE


@inline
def find_byte(data, i, stop, byte):
    """The next position of a byte, `stop` without one."""
    eight_times = np.uint64(byte) * ONES
    return find_any(data, i, stop, (eight_times,), NO_BITS)


@inline
def read_name(data, i, stop):
    """The end of the name of a tag that begins at `i`, and its last eight bytes in lower case."""
    name = np.uint64(0)
    while i < stop:
        byte = data[i]
        if _KINDS[byte] >= _END:
            break
        lower = byte | 0x20 if 0x41 <= byte <= 0x5A else byte
        name = (name << np.uint64(8)) | np.uint64(lower)
        i += 1
    return i, name


@inline
def skip_attributes(data, i, stop):
    """The byte behind a tag, its attributes, and whether it ends in `/>`. A tag that does not end counts to the end."""
    attributes, closes = np.int64(0), False
    while i < stop:
        byte = data[i]
        i += 1
        if byte == _GT:
            return i, attributes, closes
        if is_space(byte) or byte == _SLASH:
            closes = byte == _SLASH
            continue
        attributes, closes = attributes + 1, False
        while i < stop and _KINDS[data[i]] == 0:
            i += 1
        i = _skip_value(data, i, stop)
    return stop, attributes, False


@inline
def _skip_value(data, i, stop):
    """The byte behind `= value`, quoted or not; `i` itself where no value follows."""
    value = i
    while value < stop and is_space(data[value]):
        value += 1
    if value >= stop or data[value] != _EQUALS:
        return i
    value += 1
    while value < stop and is_space(data[value]):
        value += 1
    if value < stop and (data[value] == _QUOTE or data[value] == _APOSTROPHE):
        return min(find_byte(data, value + 1, stop, data[value]) + 1, stop)
    while value < stop and data[value] != _GT and _KINDS[data[value]] != _SPACE:
        value += 1
    return value


@inline
def _is_at(data, i, stop, name):
    """Whether the bytes at `i` are the name of an element, in any case, and no longer one."""
    end, read = read_name(data, i, stop)
    return read == name and end < stop


@inline
def skip_raw_text(data, i, stop, name):
    """The end tag of an element of raw text whose start tag ends at `i`; `stop` without one. In a
    script that a comment hides, an inner `<script>` takes the next end tag."""
    start, escaped, nested = i, False, False
    while i < stop:
        if not escaped:
            i = find_byte(data, i, stop, _LT)
        if i >= stop:
            break
        byte = data[i]
        i += 1
        if byte == _GT and i - start >= 3 and data[i - 2] == 0x2D and data[i - 3] == 0x2D:
            escaped = nested = False
        if byte != _LT or i >= stop:
            continue
        if data[i] == _SLASH and _is_at(data, i + 1, stop, name):
            if not nested:
                return i - 1
            nested = False
        elif name == SCRIPT and i + 2 < stop and data[i] == 0x21 and data[i + 1] == 0x2D and data[i + 2] == 0x2D:
            escaped = True
        elif escaped and _is_at(data, i, stop, SCRIPT):
            nested = True
    return stop


@inline
def skip_declaration(data, i, stop):
    """The byte behind a comment, doctype or processing instruction; `i` is behind its `<!` or `<?`."""
    if i + 1 < stop and data[i - 1] == 0x21 and data[i] == 0x2D and data[i + 1] == 0x2D:
        i += 2
        start = i
        while i < stop:
            inside, is_end = i - start, data[i] == _GT
            i += 1
            if is_end and (inside == 0 or (inside == 1 and data[i - 2] == 0x2D)):
                return i
            if is_end and inside >= 2 and data[i - 2] == 0x2D and data[i - 3] == 0x2D:
                return i
            if is_end and inside >= 3 and data[i - 2] == 0x21 and data[i - 3] == 0x2D and data[i - 4] == 0x2D:
                return i
        return stop
    return min(find_byte(data, i, stop, _GT) + 1, stop)


@inline
def _top_for(stack, top, rank):
    """The number of elements that stay open when one of this rank opens."""
    element = top
    while rank > 0 and element > 0:
        inner = kind_of(stack[element - 1]) & RANK
        if inner == rank:
            return element - 1
        if inner == 0 or inner > rank or (rank < CELL_RANK and inner != 1):
            break
        element -= 1
    return top


@inline
def _closed_by(stack, top, name):
    """The open element that an end tag closes, as an index; -1 where it closes none."""
    element = top - 1
    while element >= 0 and top - element <= _MOST_CROSSED:
        if stack[element] == name:
            return element
        element -= 1
    return -1


@inline
def _lost(stack, element, top):
    """The elements above `element` that its end tag may leave open: any but the items of a list, and the cells of a table."""
    closed, lost = (kind_of(stack[element]) >> CLOSES_SHIFT) & RANK, 0
    for other in range(element + 1, top):
        rank = kind_of(stack[other]) & RANK
        lost += rank == 0 or rank > closed
    return lost


@inline
def cost_of(depth, attributes, options):
    """The cost of a start tag: main-text detection climbs to the root, parsers compare each
    attribute with every other, and lexbor walks the options of a list for each."""
    return TAG_COST + depth + attributes * attributes // 32 + options // 10


@inline
def next_tag(data, i, stop):
    """The byte behind the next tag, its name, 0 without one, its attributes, and whether it is an end tag and ends in `/>`."""
    while i < stop:
        i = find_byte(data, i, stop, _LT) + 1
        if i >= stop:
            break
        if data[i] == 0x21 or data[i] == 0x3F:
            i = skip_declaration(data, i + 1, stop)
            continue
        is_end = data[i] == _SLASH
        if is_letter(data[min(i + is_end, stop - 1)]):
            i, name = read_name(data, i + is_end, stop)
            i, width, closes = skip_attributes(data, i, stop)
            return i, name, width, is_end, closes
    return stop, np.uint64(0), np.int64(0), False, False


@kernel
def measure_tags(
    offsets: Int64s, data: UInt8s, stack: UInt64sOut, depths: Int64sOut, attributes: Int64sOut, costs: Int64sOut
) -> None:
    """Measures every page: about its depth, at most the limit, the most attributes of a tag (all
    `<html>` and `<body>` count as one), and the sum of `cost_of`. `stack`: (limit,) scratch."""
    for document in range(len(offsets) - 1):
        i, stop = offsets[document], offsets[document + 1]
        top, lost, foreign, deepest, widest, cost, options, of_root = 0, 0, -1, 0, 0, 0, 0, 0
        unsure = False  # whether foreign content may have ended: a <font> ends it by its color, face or size alone
        while i < stop:
            i, name, width, is_end, closes = next_tag(data, i, stop)
            kind = kind_of(name)
            of_root += width if kind & ROOT else 0
            width = of_root if kind & ROOT else width
            widest = max(widest, width)
            if is_end:
                element = _closed_by(stack, top, name)
                if element >= 0:
                    lost, top = lost + _lost(stack, element, top), element
                foreign = foreign if foreign < top else -1
            if is_end or name == 0:
                continue
            is_option = kind & RANK == OPTION_RANK
            options = 0 if kind == SELECT else options + is_option
            cost += cost_of(top + lost // 4, width, options * is_option)
            foreign = -1 if kind & NOT_FOREIGN else foreign
            unsure = foreign >= 0 and (unsure or (name == FONT and width > 0))
            if foreign < 0 and kind & (RAW | PLAINTEXT):
                i = stop if kind & PLAINTEXT else skip_raw_text(data, i, stop, name)
            elif not kind & VOID and not (closes and foreign >= 0 and not unsure) and top < len(stack):
                foreign = top if foreign < 0 and kind & FOREIGN and not closes else foreign
                top = _top_for(stack, top, kind & RANK)
                stack[top] = name
                top += 1
                deepest = max(deepest, top + lost)
        depths[document], attributes[document], costs[document] = min(deepest, len(stack)), widest, cost


@kernel
def strip_tags(offsets: Int64s, data: UInt8s, out_offsets: Int64sOut, out: UInt8sOut) -> None:
    """Writes every page without tags, comments, scripts and styles, in any charset whose ASCII bytes are ASCII. A tag that
    breaks the line becomes a newline, the tag of a cell a space, any other nothing."""
    written = 0
    for document in range(len(offsets) - 1):
        i, stop = offsets[document], offsets[document + 1]
        out_offsets[document] = written
        while i < stop:
            i += 1
            byte = data[i - 1]
            is_end = byte == _LT and i < stop and data[i] == _SLASH
            if byte == _LT and i < stop and (data[i] == 0x21 or data[i] == 0x3F):
                i = skip_declaration(data, i + 1, stop)
            elif byte == _LT and i < stop and is_letter(data[min(i + is_end, stop - 1)]):
                i, name = read_name(data, i + is_end, stop)
                i = skip_attributes(data, i, stop)[0]
                kind = kind_of(name)
                if not kind & IN_LINE:
                    out[written] = 0x20 if kind & CELL else 0x0A
                    written += 1
                if not is_end and kind & RAW and not kind & SHOWN:
                    i = skip_raw_text(data, i, stop, name)
            else:
                out[written] = byte
                written += 1
    out_offsets[len(offsets) - 1] = written
