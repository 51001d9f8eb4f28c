"""The words of a batch as spaCy's English tokenizer splits them, punctuation separate."""

from datapipe.kernels.text.english_words import find_english_words
from datapipe.kernels.text.words import Words
from datapipe.stage.documents import DocumentBatch, shared
from datapipe.stage.following import BY_LINE
from datapipe.stage.segmentation.words import words


@shared(BY_LINE)
def english_words(batch: DocumentBatch) -> Words:
    return find_english_words(words(batch), batch.buffers[1])
