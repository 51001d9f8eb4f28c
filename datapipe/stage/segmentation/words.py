"""The words of a batch, split at Unicode white space."""

from datapipe.kernels.text.words import Words, find_words
from datapipe.stage.documents import DocumentBatch, shared
from datapipe.stage.following import BY_LINE


@shared(BY_LINE)
def words(batch: DocumentBatch) -> Words:
    return find_words(*batch.buffers)
