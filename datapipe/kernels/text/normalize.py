"""Line ends and control characters: one pass finds them, another rewrites the documents with any.

    bytes  ->  find_unstable  which spans may not be in NFC
           ->  survey   which documents must be rewritten, and which may not be in normal form
           ->  rewrite  new bytes, never more than before

`survey` takes a document as normalised where every character keeps its form beside any other (`stable_table`): of web text
this leaves very little for a real normaliser, which is 20 times slower.
"""

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.text.unicode_classes import CLASS_SHIFT, JOINED, JOINS, MAY_CHANGE, decode
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut, UInt16s

REWRITE, UNSTABLE = 1, 2  # Flags that `survey` sets for a document
_ANY_BEFORE = JOINED | 0xFF << CLASS_SHIFT  # the character before a span, which no mark may follow
_KEEP, _DROP, _BREAK, _BLANK = range(4)
_TAB, _NEWLINE, _RETURN, _SPACE, _DELETE = 0x09, 0x0A, 0x0D, 0x20, 0x7F
_LINE_SEPARATOR, _PARAGRAPH_SEPARATOR, _BYTE_ORDER_MARK = 0x2028, 0x2029, 0xFEFF


def actions(fix_newlines: bool, strip_control: bool) -> np.ndarray:
    """The action for each ASCII character, (128,) uint8: keep, drop, or replace by a newline or a space. Vertical tab and
    form feed end a line. U+001C to U+001F separate words for `str.split`, so a space replaces them."""
    table = np.full(128, _KEEP, np.uint8)
    if strip_control:
        table[:_SPACE] = _DROP
        table[_DELETE] = _DROP
        table[0x1C:_SPACE] = _BLANK
        table[[_TAB, _NEWLINE]] = _KEEP
        table[[_RETURN, 0x0B, 0x0C]] = _BLANK
    if fix_newlines:
        table[[_RETURN, 0x0B, 0x0C]] = _BREAK
    return table


@kernel
def survey(offsets: Int64s, data: UInt8s, actions: UInt8s, stable: UInt8s, breaks: bool, marks: bool, out: UInt8sOut) -> None:
    """Surveys each document: flags REWRITE and UNSTABLE. With `breaks` U+2028 and U+2029 become
    newlines, with `marks` a byte order mark at the start is dropped."""
    for doc in range(len(offsets) - 1):
        offset, stop = offsets[doc], offsets[doc + 1]
        action_bits, unstable = np.int64(0), np.int64(0)
        while offset < stop:
            if data[offset] < 0x80:
                action_bits |= np.int64(actions[data[offset]])
                offset += 1
                continue
            code, size = decode(data, offset, stop)
            unstable |= 1 - np.int64(stable[code])
            if breaks and (code == _LINE_SEPARATOR or code == _PARAGRAPH_SEPARATOR):
                action_bits |= _BREAK
            if marks and code == _BYTE_ORDER_MARK:
                action_bits |= _DROP
            offset += size
        out[doc] = (REWRITE if action_bits else 0) | (UNSTABLE if unstable else 0)


@kernel
def find_unstable(
    starts: Int64s, stops: Int64s, ends: Int64s, data: UInt8s, table: UInt16s, sizes: UInt8s, out: UInt8sOut
) -> None:
    """Writes 1 for each span of UTF-8 that may not be in NFC, alone or with the characters around it, else 0.

    Reads on to the first character behind the span that is no combining mark. `starts`, `stops`,
    `ends`: (num_spans,) int64, in `data`; where the text of each span ends. `table`, `sizes`:
    `unicode_classes.composition_table`, `unicode_classes.plain_sizes`.
    """
    for span in range(len(starts)):
        offset, stop, before, unstable = starts[span], stops[span], np.int64(_ANY_BEFORE), False
        while offset < ends[span] and not unstable:
            code, size, kind = np.int64(0), np.int64(sizes[data[offset]]), np.int64(0)
            if size == 0:
                code, size = decode(data, offset, ends[span])
                kind = np.int64(table[code])
                own = kind >> CLASS_SHIFT
                unstable = kind & MAY_CHANGE != 0 or (kind & JOINS != 0 and before & JOINED != 0)
                unstable = unstable or 0 < own < before >> CLASS_SHIFT
            if offset >= stop and kind >> CLASS_SHIFT == 0:
                break
            offset, before = offset + size, kind
        out[span] = unstable


@kernel
def rewrite(
    offsets: Int64s, data: UInt8s, actions: UInt8s, breaks: bool, marks: bool, out_offsets: Int64sOut, out: UInt8sOut
) -> None:
    """Writes every text with its characters kept, dropped or replaced. A carriage return and
    newline become one newline; a byte order mark is dropped where no kept character precedes it."""
    num_written = np.int64(0)
    out_offsets[0] = 0
    for doc in range(len(offsets) - 1):
        offset, stop = offsets[doc], offsets[doc + 1]
        while offset < stop:
            code, size = decode(data, offset, stop)
            action = np.int64(_KEEP)
            if code < 0x80:
                action = np.int64(actions[code])
                if code == _RETURN and action != _KEEP and offset + 1 < stop and data[offset + 1] == _NEWLINE:
                    action = np.int64(_DROP)
            elif breaks and (code == _LINE_SEPARATOR or code == _PARAGRAPH_SEPARATOR):
                action = np.int64(_BREAK)
            elif marks and code == _BYTE_ORDER_MARK and num_written == out_offsets[doc]:
                action = np.int64(_DROP)
            if action == _KEEP:
                for index in range(offset, offset + size):
                    out[num_written] = data[index]
                    num_written += 1
            elif action != _DROP:
                out[num_written] = _NEWLINE if action == _BREAK else _SPACE
                num_written += 1
            offset += size
        out_offsets[doc + 1] = num_written
