"""The words of a batch as spaces would separate them: split at white space, and by a dictionary in scripts without spaces."""

from datapipe.kernels.text.spaced_words import find_spaced_words
from datapipe.kernels.text.words import Words
from datapipe.stage.documents import DocumentBatch, shared
from datapipe.stage.following import BY_LINE
from datapipe.stage.segmentation.words import words


@shared(BY_LINE)
def spaced_words(batch: DocumentBatch) -> Words:
    return find_spaced_words(words(batch), *batch.buffers)
