"""The lines of a batch, split at newlines."""

from datapipe.kernels.text.words import Lines, find_lines
from datapipe.stage.documents import DocumentBatch, shared
from datapipe.stage.following import BY_DOCUMENT
from datapipe.stage.segmentation.words import words


@shared(BY_DOCUMENT)
def lines(batch: DocumentBatch) -> Lines:
    return find_lines(words(batch), batch.buffers[1])
