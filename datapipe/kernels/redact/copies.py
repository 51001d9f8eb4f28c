"""Further copies of found secrets in their documents, whatever stands around them.

    spans of a document  ->  a table by their first eight bytes  ->  one pass over the document  ->  copies

A value needs 12 bytes and 8 bits of evidence (`randomness.py`), so short passwords and words are not replaced everywhere.
The longest of several values counts. At a byte 64 values are compared at most, so the cost is linear.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import eight_bytes, starts_with
from datapipe.kernels.hashing import mix64, num_slots_for, table_size
from datapipe.kernels.redact.randomness import BITS, best_evidence
from datapipe.kernels.redact.spans import FoundSpans, SpansOut, scanned
from datapipe.kernels.types import Int32sOut, Int64s, UInt8s, input_record

LEAST_BYTES, LEAST_BITS, MOST_COMPARED = 12, 8, 64


def with_copies(offsets: np.ndarray, data: np.ndarray, spans: FoundSpans) -> FoundSpans:
    """The spans and the copies of their texts in the same documents, each under the kind of what it is a copy of."""
    documents, counts = np.unique(np.searchsorted(offsets[1:], spans.starts, side="right"), return_counts=True)
    if not len(documents):
        return spans
    most = int((offsets[documents + 1] - offsets[documents]).sum()) // LEAST_BYTES
    slots, texts = np.empty(num_slots_for(int(counts.max())), np.int32), input_record(FoundSpans, spans)
    return spans.merged(scanned(most, lambda out: find_copies(offsets, data, texts, slots, out)))


@inline
def _slot_of(data, start, num_slots) -> Any:
    return np.int64(mix64(eight_bytes(data, np.uint64(start))) & np.uint64(num_slots - 1))


@inline
def _insert(data, starts, stops, span, slots, num_slots) -> None:
    """Puts a span into the table, unless its text is in it or 64 others are in the way."""
    slot = _slot_of(data, starts[span], num_slots)
    for _ in range(MOST_COMPARED):
        other = slots[slot]
        if other < 0:
            slots[slot] = span
            return
        is_long = stops[other] - starts[other] == stops[span] - starts[span]
        if is_long and starts_with(data, starts[span], stops[span], data[starts[other] : stops[other]], 0):
            return
        slot = (slot + 1) & (num_slots - 1)


@inline
def _longest_at(data, position, limit, starts, stops, slots, num_slots) -> Any:
    """The span of the table with the longest text at a position; -1 where there is none."""
    best, longest = -1, 0
    slot = _slot_of(data, position, num_slots)
    for _ in range(MOST_COMPARED):
        span = slots[slot]
        if span < 0:
            break
        length = stops[span] - starts[span]
        if length > longest and starts_with(data, position, limit, data[starts[span] : stops[span]], 0):
            best, longest = np.int64(span), length
        slot = (slot + 1) & (num_slots - 1)
    return best


@kernel
def find_copies(offsets: Int64s, data: UInt8s, spans: FoundSpans, slots: Int32sOut, out: SpansOut) -> int:
    """Finds copies of spans of the same document, outside all spans, in text order; returns their number. `spans`: in text
    order; none overlap. `slots`: scratch, a power of two, more than a document has spans."""
    starts, stops, kinds = spans.starts, spans.stops, spans.kinds
    num_copies, first = 0, 0
    for document in range(len(offsets) - 1):
        last, end, j = first, offsets[document + 1], offsets[document]
        while last < len(starts) and starts[last] < end:
            last += 1
        if first == last:
            continue
        num_slots = table_size(last - first + 1, len(slots))
        slots[:num_slots] = -1
        for span in range(first, last):
            if (
                stops[span] - starts[span] >= LEAST_BYTES
                and best_evidence(data, starts[span], stops[span]) >= LEAST_BITS * BITS
            ):
                _insert(data, starts, stops, span, slots, num_slots)
        while j + LEAST_BYTES <= end:
            if first < last and j >= starts[first]:
                j = stops[first]
                first += 1
                continue
            limit = starts[first] if first < last else end
            copied = _longest_at(data, j, limit, starts, stops, slots, num_slots) if j + LEAST_BYTES <= limit else -1
            if copied < 0:
                j += 1
                continue
            stop = j + stops[copied] - starts[copied]
            out.starts[num_copies], out.stops[num_copies], out.kinds[num_copies] = j, stop, kinds[copied]
            num_copies += 1
            j = stop
        first = last
    return int(num_copies)
