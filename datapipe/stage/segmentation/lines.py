"""The lines of a batch, split at newlines."""

from datapipe.kernels.text.words import Lines, find_lines, selected
from datapipe.stage.documents import DocumentBatch, shared


@shared(selected)
def lines(batch: DocumentBatch) -> Lines:
    return find_lines(*batch.buffers)
