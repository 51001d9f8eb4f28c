"""Copies spans of text, or the text around them with other bytes in their places.

    spans  +  replacements: rows (num_spans, 32) uint8 and their lengths  ->  new offsets and bytes

The caller chooses the replacements (`kernels/redact/stand_ins.py`).
"""

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.arrays import copy_into
from datapipe.kernels.types import Int64s, Int64sOut, UInt8Matrix, UInt8s, UInt8sOut


@kernel
def copy_spans(starts: Int64s, stops: Int64s, data: UInt8s, out: UInt8sOut) -> None:
    """Copies the bytes of each span, one after another, into `out`."""
    to = np.int64(0)
    for span in range(len(starts)):
        size = stops[span] - starts[span]
        copy_into(out[to : to + size], data[starts[span] : stops[span]])
        to += size


@kernel
def replace_spans(
    offsets: Int64s,
    data: UInt8s,
    starts: Int64s,
    stops: Int64s,
    rows: UInt8Matrix,
    lengths: Int64s,
    out_offsets: Int64sOut,
    out: UInt8sOut,
) -> None:
    """Writes the texts with every span [starts, stops) of `data`, ascending and within a document, replaced by its row."""
    num_written, span = 0, 0
    out_offsets[0] = 0
    for document in range(len(offsets) - 1):
        offset, end = offsets[document], offsets[document + 1]
        while offset < end:
            stop = starts[span] if span < len(starts) and starts[span] < end else end
            copy_into(out[num_written : num_written + stop - offset], data[offset:stop])
            num_written += stop - offset
            offset = stop
            if stop < end:
                for k in range(lengths[span]):
                    out[num_written + k] = rows[span, k]
                num_written += lengths[span]
                offset = stops[span]
                span += 1
        out_offsets[document + 1] = num_written
