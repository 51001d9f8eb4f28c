"""The words of a batch, split at Unicode white space."""

from datapipe.kernels.text.words import Words, find_words, selected
from datapipe.stage.documents import DocumentBatch, shared


@shared(selected)
def words(batch: DocumentBatch) -> Words:
    return find_words(*batch.buffers)
