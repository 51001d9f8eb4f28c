"""The words of a batch in any script, without punctuation."""

from datapipe.kernels.text.unicode_words import find_unicode_words
from datapipe.kernels.text.words import Words
from datapipe.stage.documents import DocumentBatch, shared
from datapipe.stage.following import BY_LINE


@shared(BY_LINE)
def unicode_words(batch: DocumentBatch) -> Words:
    return find_unicode_words(*batch.buffers)
