"""Kinds of characters for the rules about lines and sentences, beside the classes of `unicode_classes`.

    code point  ->  mark_table()[code point]: a set of bits
    bytes       ->  stripped: where a text begins and ends without white space

SMALL and LARGE are as in spaCy's English tokenizer (`english_signs.py`), END as in its sentencizer.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.tables import stored_table
from datapipe.kernels.text.english_signs import LOWER, UPPER, sign_table
from datapipe.kernels.text.unicode_classes import LETTER, NUMBER, PUNCTUATION, SPACE, SYMBOL, class_table, decode, decode_before
from datapipe.kernels.types import read_only

WHITE, PUNCT, END, SMALL, LARGE, CAPITAL, DIGIT, ALNUM = (1 << bit for bit in range(8))
"""SMALL, LARGE: also letters without case; CAPITAL, DIGIT: `str.isupper`, `str.isdigit`."""

END_CHARS = (
    "!.?։؟۔܀܁܂߹।॥၊။።፧፨᙮᜵᜶᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿‼‽⁇⁈⁉⸮⸼꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗！．？｡。"
    "𐩖𐩗𑁇𑁈𑂾𑂿𑃀𑃁𑅁𑅂𑅃𑇅𑇆𑇍𑇞𑇟𑈸𑈹𑈻𑈼𑊩𑑋𑑌𑗂𑗃𑗉𑗊𑗋𑗌𑗍𑗎𑗏𑗐𑗑𑗒𑗓𑗔𑗕𑗖𑗗𑙁𑙂𑜼𑜽𑜾𑩂𑩃𑪛𑪜𑱁𑱂𖩮𖩯𖫵𖬷𖬸𖭄𛲟𝪈"
)
_CASED_BELOW = 0x20000  # no letter above has case, and few of those below


@stored_table
def mark_table() -> np.ndarray:
    """The marks of every code point: (0x110000,) uint16."""
    classes = class_table()
    table = np.zeros(len(classes), np.uint16)
    table[classes == SPACE] |= WHITE
    table[classes == PUNCTUATION] |= PUNCT
    table[(classes & (LETTER | NUMBER)) != 0] |= ALNUM
    for code in np.flatnonzero((classes & (LETTER | NUMBER | SYMBOL)) != 0).tolist():
        if code >= _CASED_BELOW:
            break
        if chr(code).isupper():
            table[code] |= CAPITAL
        if chr(code).isdigit():
            table[code] |= DIGIT
    table[[ord(character) for character in END_CHARS]] |= END
    table[(sign_table() & LOWER) != 0] |= SMALL
    table[(sign_table() & UPPER) != 0] |= LARGE
    return read_only(table)


@inline
def mark_at(data, offset, stop, marks) -> tuple[Any, Any]:
    """The marks of the character at `offset`, and its size in bytes."""
    byte = data[offset]
    if byte < 0x80:
        return np.int64(marks[byte]), np.int64(1)
    code, size = decode(data, offset, stop)
    return np.int64(marks[code]), np.int64(size)


@inline
def mark_before(data, offset, start, marks) -> tuple[Any, Any]:
    """The marks of the character that ends at `offset`, after `start`, and its size in bytes."""
    code, size = decode_before(data, offset, start)
    return np.int64(marks[code]), np.int64(size)


@inline
def white_stop(data, offset, stop, marks) -> Any:
    while offset < stop:
        mark, size = mark_at(data, offset, stop, marks)
        if mark & WHITE == 0:
            break
        offset += size
    return offset


@inline
def stripped(data, start, stop, marks) -> tuple[Any, Any]:
    """Start and stop of [start, stop) without the white space around it."""
    start = white_stop(data, start, stop, marks)
    while start < stop:
        mark, size = mark_before(data, stop, start, marks)
        if mark & WHITE == 0:
            break
        stop -= size
    return start, stop
