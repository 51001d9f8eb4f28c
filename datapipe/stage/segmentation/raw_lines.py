"""The lines of a batch with the white space around them, and counts of newlines and characters."""

from datapipe.kernels.text.raw_lines import RawLines, find_raw_lines
from datapipe.stage.documents import DocumentBatch, shared
from datapipe.stage.segmentation.lines import lines


@shared()
def raw_lines(batch: DocumentBatch) -> RawLines:
    return find_raw_lines(*batch.buffers, lines(batch))
