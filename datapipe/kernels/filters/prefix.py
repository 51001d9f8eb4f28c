"""Ends of the first characters of each text, for models that read no more of it."""

from datapipe.kernels import kernel
from datapipe.kernels.text.unicode_classes import ahead
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s


@kernel
def prefix_stops(offsets: Int64s, data: UInt8s, num_chars: int, stops: Int64sOut) -> None:
    """The byte after the first `num_chars` characters of every text of UTF-8, or its end: `stops` (num_docs,) int64."""
    for document in range(len(offsets) - 1):
        stops[document] = ahead(data, offsets[document], offsets[document + 1], num_chars)
