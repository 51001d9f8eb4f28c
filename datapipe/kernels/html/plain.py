"""The text of web pages without their tags, in one pass over the bytes: for pages that no parser should be given."""

from datapipe.kernels import kernel
from datapipe.kernels.html.elements import CELL, IN_LINE, RAW, SHOWN, kind_of
from datapipe.kernels.html.tags import is_letter, read_name, skip_attributes, skip_declaration, skip_raw_text
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut

_LT, _SLASH, _NEWLINE, _SPACE = 0x3C, 0x2F, 0x0A, 0x20


@kernel
def strip_tags(offsets: Int64s, data: UInt8s, out_offsets: Int64sOut, out: UInt8sOut) -> None:
    """Writes the bytes of every page outside of tags, comments, scripts and styles, in any charset whose
    ASCII bytes are ASCII. A tag that breaks the line becomes a newline, the tag of a cell a space, any other
    nothing."""
    written = 0
    for document in range(len(offsets) - 1):
        at, stop = offsets[document], offsets[document + 1]
        out_offsets[document] = written
        while at < stop:
            at += 1
            byte = data[at - 1]
            is_end = byte == _LT and at < stop and data[at] == _SLASH
            if byte == _LT and at < stop and (data[at] == 0x21 or data[at] == 0x3F):
                at = skip_declaration(data, at + 1, stop)
            elif byte == _LT and at < stop and is_letter(data[min(at + is_end, stop - 1)]):
                at, name = read_name(data, at + is_end, stop)
                at = skip_attributes(data, at, stop)[0]
                kind = kind_of(name)
                if not kind & IN_LINE:
                    out[written] = _SPACE if kind & CELL else _NEWLINE
                    written += 1
                if not is_end and kind & RAW and not kind & SHOWN:
                    at = skip_raw_text(data, at, stop, name)
            else:
                out[written] = byte
                written += 1
    out_offsets[len(offsets) - 1] = written
