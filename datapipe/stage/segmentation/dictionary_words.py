"""The words of a batch, by a dictionary in scripts without spaces, and in others as spaCy's English tokenizer splits them."""

from datapipe.kernels.text.english_words import find_english_words
from datapipe.kernels.text.words import Words
from datapipe.stage.documents import DocumentBatch, shared
from datapipe.stage.following import BY_LINE
from datapipe.stage.segmentation.spaced_words import spaced_words


@shared(BY_LINE)
def dictionary_words(batch: DocumentBatch) -> Words:
    return find_english_words(spaced_words(batch), batch.buffers[1])
