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
from datapipe.stage.segmentation.dictionary_words import dictionary_words
from datapipe.stage.segmentation.english_words import english_words
from datapipe.stage.segmentation.unicode_words import unicode_words
from datapipe.stage.segmentation.words import words

WordRule = Literal["whitespace", "english", "unicode", "dictionary"]
WHAT_WORDS_ARE = (
    "What a word is. whitespace: text between white space. english: as spaCy tokenizes English. unicode: words of Unicode, "
    "without signs; each Han, Hiragana or Thai letter by itself. dictionary: as english, and Chinese, Japanese, Thai, Khmer, "
    "Lao, Burmese and Tibetan by ICU's dictionaries (`pip install 'datapipe[words]'`). "
)
"""The description of options `words`, without the defaults."""

_RULES: dict[WordRule, Callable[[DocumentBatch], Words]] = {
    "whitespace": words,
    "english": english_words,
    "unicode": unicode_words,
    "dictionary": dictionary_words,
}

_NEARLY_ALL = 0.75  # of the bytes


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
        num_bytes, joined = np.bincount(self.numbers, np.diff(batch.buffers[0])), None
        used = sorted(np.unique(self.numbers).tolist(), key=lambda number: -num_bytes[number])
        if num_bytes[used[0]] >= _NEARLY_ALL * num_bytes.sum():  # found in all documents: nothing is copied for that
            joined = words_by(batch, list(_RULES)[used.pop(0)])
        for number in used:
            is_new = self.numbers == number
            part = batch.filter(is_new)
            joined = _with_those_of(joined, part, words_by(part, list(_RULES)[number]), is_new, batch)
        assert joined is not None
        return _Found(joined, self.numbers)


def _with_those_of(joined: Words | None, part: DocumentBatch, new: Words, is_new: np.ndarray, batch: DocumentBatch) -> Words:
    """The words of a batch: `joined`, those of some documents, with those of a part of it, `is_new` (num_docs,) bool."""
    firsts, stops, moved = np.zeros((3, batch.num_docs), np.int64)
    if joined is not None:
        firsts, stops = joined.doc_offsets[:-1].copy(), joined.doc_offsets[1:].copy()
    firsts[is_new], stops[is_new] = new.doc_offsets[:-1], new.doc_offsets[1:]
    moved[is_new] = batch.buffers[0][:-1][is_new] - part.buffers[0][:-1]
    spans = input_record(LineSpans, (np.arange(batch.num_docs + 1), firsts, stops, moved, is_new))
    return copied(new if joined is None else joined, new, spans)


def _by_document(find: Callable[[DocumentBatch], _Found], earlier: _Found, origin: Origin, batch: DocumentBatch) -> _Found:
    spans = spans_of_documents(earlier.words, origin.offsets, origin.rows, batch.buffers[0])
    return _Found(copied(earlier.words, earlier.words, spans), earlier.numbers[origin.rows])
