"""The words of a batch by the rule that the option `words` of a filter names, or by those of each document's language.

documents of each rule  ─▶  their words, as of a batch of these alone  ─▶  words of the batch, in the order of its documents
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from datapipe.kernels.text.line_spans import LineSpans, copied, spans_of_documents
from datapipe.kernels.text.words import Words
from datapipe.kernels.types import input_record
from datapipe.stage.documents import DocumentBatch, Following, Origin
from datapipe.stage.segmentation.english_words import english_words
from datapipe.stage.segmentation.unicode_words import unicode_words
from datapipe.stage.segmentation.words import words

WordRule = Literal["whitespace", "english", "unicode"]
_RULES: dict[WordRule, Callable[[DocumentBatch], Words]] = {
    "whitespace": words,
    "english": english_words,
    "unicode": unicode_words,
}


def words_by(batch: DocumentBatch, rule: WordRule) -> Words:
    return _RULES[rule](batch)


def words_of_each(batch: DocumentBatch, rules: Sequence[WordRule], rows: np.ndarray) -> Words:
    """The words of a batch whose document i has the rule `rules[rows[i]]`, (num_docs,) int64. Stages with equal rules share
    them, as they do any segmentation."""
    numbers = np.array([list(_RULES).index(rule) for rule in rules])[rows]
    used = np.unique(numbers)
    if len(used) <= 1:
        return words_by(batch, rules[0] if not len(used) else list(_RULES)[used[0]])
    found = batch.once(_WordsOfEach(numbers), Following(follow=_by_document, by_line=False))
    same = np.array_equal(found.numbers, numbers)  # else of a stage with other rules, or another language column
    return found.words if same else _WordsOfEach(numbers)(batch).words


class _Found(NamedTuple):
    words: Words
    numbers: np.ndarray  # (num_docs,), the rule of each document


class _WordsOfEach:
    """Finds words by the rule of each document. All are one segmentation of a batch, whatever the rules."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers, self.__name__ = numbers, "words_of_each"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WordsOfEach)

    def __hash__(self) -> int:
        return hash(_WordsOfEach)

    def __call__(self, batch: DocumentBatch) -> _Found:
        offsets, rules = batch.buffers[0], list(_RULES)
        firsts, stops, moved = np.zeros((3, batch.num_docs), np.int64)
        joined: Words | None = None
        for number in np.unique(self.numbers):
            is_new = self.numbers == number
            part = batch.filter(is_new)
            new = words_by(part, rules[number])
            firsts[is_new], stops[is_new] = new.doc_offsets[:-1], new.doc_offsets[1:]
            moved[is_new] = offsets[:-1][is_new] - part.buffers[0][:-1]
            if joined is not None:
                each = np.arange(batch.num_docs + 1)
                joined = copied(joined, new, input_record(LineSpans, (each, firsts, stops, moved, is_new)))
                firsts, stops, moved = joined.doc_offsets[:-1].copy(), joined.doc_offsets[1:].copy(), np.zeros_like(moved)
            else:
                joined = new
        assert joined is not None
        return _Found(joined, self.numbers)


def _by_document(find: Callable[[DocumentBatch], _Found], earlier: _Found, origin: Origin, batch: DocumentBatch) -> _Found:
    spans = spans_of_documents(earlier.words, origin.offsets, origin.rows, batch.buffers[0])
    return _Found(copied(earlier.words, earlier.words, spans), earlier.numbers[origin.rows])
