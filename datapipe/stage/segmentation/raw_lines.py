"""The lines of a batch with the white space around them, and per text its newlines and characters."""

from __future__ import annotations

from datapipe.kernels.text.raw_lines import RawLines, find_raw_lines
from datapipe.stage.documents import DocumentBatch, shared
from datapipe.stage.segmentation.lines import lines


@shared()
def raw_lines(batch: DocumentBatch) -> RawLines:
    """The raw lines of each document; see `kernels/text/raw_lines.py`. They are cheap to compute from the lines."""
    return find_raw_lines(*batch.buffers, lines(batch))
