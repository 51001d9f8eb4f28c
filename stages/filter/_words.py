"""The words of a batch by the rule that the option `words` of a filter names."""

from typing import Literal

from datapipe.kernels.text.words import Words
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segmentation.english_words import english_words
from datapipe.stage.segmentation.unicode_words import unicode_words
from datapipe.stage.segmentation.words import words


def words_by(batch: DocumentBatch, rule: Literal["whitespace", "english", "unicode"]) -> Words:
    return {"whitespace": words, "english": english_words, "unicode": unicode_words}[rule](batch)
