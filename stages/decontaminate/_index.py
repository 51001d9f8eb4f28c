"""The index of evaluation items: n-grams, whole short items, and the items of each.

    items  ─▶  texts in up to four spellings  ─▶  windows of n words  ─▶  entries, each with its items
           ─▶  short items  ─▶  tails, questions and answers

A text is indexed as it is written, without the apostrophes inside of words ("dont"), and without all punctuation inside of
words ("stateoftheart", "1000"; with and without underscores). Documents are searched in one way (`folded_words.py`).

**Own n-grams.** An n-gram is an item's own if no item of the same benchmark with another question has it. Templates and
passages that several questions share count only in documents that have an own n-gram of the same item.

**Short items.** An item whose question has fewer than n words, or that has no own n-gram, is found as a whole: its question,
of at least `TAIL_WORDS` words, and behind it, within `REACH` words, its answer; together, as they are written, at least
`least_words`. A shorter question is found with its answer directly behind it. Items without an answer need a question of
`least_words`. All other items without an own n-gram cannot be detected, and are listed.

`coverage` compares n-grams of the question and of the answer, weighted by ln((N + 1) / items that have it), of N items. An
n-gram that more than `MOST_MEMBERS` items have is left out, which bounds what a document costs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import is_first
from datapipe.dataclass import dataclass
from datapipe.kernels.decontaminate import search, word_runs
from datapipe.kernels.decontaminate.coverage import Postings
from datapipe.kernels.decontaminate.folded_words import WHOLE, WordTable, words_table
from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.text.spaced_words import find_spaced_words, spaced_texts
from datapipe.kernels.text.words import find_words
from datapipe.kernels.types import input_record
from stages.decontaminate._evaluation_files import EvaluationSet

MOST_MEMBERS = 256
PASSAGE_GAP = 64
EXACT_WORDS, FULL_WORDS = 20, 50
"""A shorter item must be covered whole; a longer one by `min_coverage`; between them the need falls in proportion. These are
the numbers of AI2's decon (`perfect_match_decay_start`, `_end`), in words instead of tokens."""

_IDF_SCALE = 1000
_APOSTROPHES = re.compile(r"['’‘ʼ＇`´](?<=[^\W_].)(?=[^\W_])")
_INNER_PUNCTUATION = re.compile(r"[^\w\s](?<=\w.)[^\w\s]*(?=\w)")
_INNER_SIGNS = re.compile(r"[\W_](?<=[^\W_]\S)(?:[^\w\s]|_)*(?=[^\W_])")
"""The sign is searched first, and what stands before it only then: three times as fast as in the order of the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wholes:
    """Short items that are found as a whole, as entries of the table from `first` on, that of the
    first question. Lists of items are offsets (num + 1,) int64 and int64: `alone` of each question
    that needs no answer, `pair` of each question with its answer."""

    first: int
    tails: search.Tails
    alone_offsets: np.ndarray
    alone_items: np.ndarray
    answers: search.Answers
    pair_offsets: np.ndarray
    pair_items: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """The tables that documents are searched with."""

    sets: tuple[EvaluationSet, ...]
    # (num_items,) int64, the benchmark of each item; items are counted over all benchmarks
    set_of: np.ndarray
    words: WordTable  # with which texts are read
    table: word_runs.GramTable  # keys of n-grams, tails and questions
    postings: Postings  # the items of each n-gram; of `coverage` the spellings of items
    # item_of, totals: (num_spellings,) int64, of each posting's number the item, and the sum of all weights
    item_of: np.ndarray
    totals: np.ndarray
    wholes: Wholes
    undetectable: np.ndarray  # (num_items,) bool

    @property
    def num_grams(self) -> int:
        return len(self.postings.offsets) - 1

    @property
    def num_bytes(self) -> int:
        arrays = [*self.table, *(value for value in self.postings if isinstance(value, np.ndarray)), self.item_of]
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The options that shape an index: words of an n-gram, least words of a whole item, and the least share of `coverage`."""

    n: int
    least_words: int
    min_coverage: float | None
    by_dictionary: bool  # whether a dictionary finds the words of scripts without spaces

    @property
    def words(self) -> WordTable:
        return words_table(by_spaces=self.by_dictionary)


def build_index(sets: Sequence[EvaluationSet], rules: Rules) -> Index:
    set_of = np.repeat(np.arange(len(sets)), [len(evaluation.items) for evaluation in sets])
    spelled = _Spelled.of(sets, rules)
    groups = _groups(set_of, spelled)
    grams, item_of = _grams(spelled, rules)
    keys, offsets, members, of_choice = _entries(grams)
    own = _owned(offsets, members, item_of, set_of, groups)
    has_own = np.zeros(len(set_of), np.bool_)
    has_own[item_of[members[own & ~of_choice]]] = True
    wholes, whole_keys, found_whole = _wholes(spelled, has_own, len(keys), rules)
    own &= (has_own | found_whole)[item_of[members]]
    postings, totals = _weighed(offsets, members, own, item_of, spelled, rules)
    return Index(
        sets=tuple(sets),
        set_of=set_of,
        words=rules.words,
        table=word_runs.gram_table(np.concatenate([keys, *whole_keys])),
        postings=postings,
        item_of=item_of,
        totals=totals,
        wholes=wholes,
        undetectable=~(has_own | found_whole),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Texts:
    """Texts with their words: `runs` has a row for each, and `offsets` and `data` hold them."""

    offsets: np.ndarray
    data: np.ndarray
    runs: word_runs.RunsOut

    @classmethod
    def of(cls, texts: Sequence[str], rules: Rules) -> _Texts:
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        offsets, data = columns.text_buffers(pa.array(clean, pa.large_string()))
        if rules.by_dictionary:
            found = find_spaced_words(find_words(offsets, data), offsets, data)
            offsets, data, *_ = spaced_texts(found, offsets, data)
        runs = word_runs.windows_of(offsets, data, rules.words, WHOLE * search.TAIL_WORDS, word_runs.TAIL)
        return cls(offsets=offsets, data=data, runs=runs)

    def grams(self, rules: Rules) -> word_runs.RunsOut:
        return word_runs.windows_of(self.offsets, self.data, rules.words, WHOLE * rules.n, word_runs.GRAM)

    def keys(self, kind: np.uint64) -> np.ndarray:
        """The key of all words of each text, (num_texts,) uint64; 0 for texts that are too long for one."""
        keys = np.empty(len(self.runs.num_words), np.uint64)
        word_runs.key_texts(self.runs.num_words, self.runs.prefixes, kind, keys)
        return keys


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spelled:
    """Questions, answers and both together, in every spelling, (num_spellings,) each; the first of an item is as written.
    `items`: (num_spellings,) int64. `choices`: the other choices in every spelling, with the items `choice_items`."""

    items: np.ndarray
    questions: _Texts
    answers: _Texts
    together: _Texts
    choices: _Texts
    choice_items: np.ndarray

    @classmethod
    def of(cls, sets: Sequence[EvaluationSet], rules: Rules) -> _Spelled:
        items, questions, answers = list[int](), list[str](), list[str]()
        choices, choice_items = list[str](), list[int]()
        everything = (item for evaluation in sets for item in evaluation.items)
        for number, item in enumerate(everything):
            for question, answer in dict.fromkeys(zip(_spellings(item.question), _spellings(item.answer))):
                items.append(number)
                questions.append(question)
                answers.append(answer)
            for choice in item.choices:
                for spelling in dict.fromkeys(_spellings(choice)):
                    choices.append(spelling)
                    choice_items.append(number)
        return cls(
            items=np.array(items, np.int64),
            questions=_Texts.of(questions, rules),
            answers=_Texts.of(answers, rules),
            together=_Texts.of([f"{question}\n{answer}" for question, answer in zip(questions, answers)], rules),
            choices=_Texts.of(choices, rules),
            choice_items=np.array(choice_items, np.int64),
        )

    def item_words(self) -> np.ndarray:
        """Words of question and answer of each item, (num_items,) int64, as they are written."""
        first = np.unique(self.items, return_index=True)[1]
        return self.together.runs.weights[first] // WHOLE


def _spellings(text: str) -> tuple[str, ...]:
    """A text as it is written; without apostrophes inside of words; without any sign but underscores; without any sign."""
    if not _INNER_SIGNS.search(text):
        return (text,) * 4
    return text, _APOSTROPHES.sub("", text), _INNER_PUNCTUATION.sub("", text), _INNER_SIGNS.sub("", text)


def _groups(set_of: np.ndarray, spelled: _Spelled) -> np.ndarray:
    """(num_items,) int64, equal for items of a benchmark that have the same question; ascending over benchmarks."""
    first = np.unique(spelled.items, return_index=True)[1]
    runs = spelled.questions.runs
    names = np.stack([set_of.astype(np.uint64), runs.prefixes[first], runs.num_words[first].astype(np.uint64)], axis=1)
    return np.unique(names, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


_Grams = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Keys (num_windows,) uint64; what has them, items or spellings of items, (num_windows,) int64;
whether that is a choice which is not the answer, (num_windows,) bool."""


def _grams(spelled: _Spelled, rules: Rules) -> tuple[_Grams, np.ndarray]:
    """The n-grams of all items, and the item of each number that has them."""
    if rules.min_coverage is not None:
        of_texts = [texts.grams(rules) for texts in (spelled.questions, spelled.answers)]
        keys, texts = np.concatenate([runs.keys for runs in of_texts]), np.concatenate([runs.texts for runs in of_texts])
        counts = (_covered_weights(spelled, rules) >= WHOLE * rules.least_words)[texts]
        return (keys[counts], texts[counts], np.zeros(int(counts.sum()), np.bool_)), spelled.items
    whole, choices = (texts.grams(rules) for texts in (spelled.together, spelled.choices))
    having = np.concatenate([spelled.items[whole.texts], spelled.choice_items[choices.texts]])
    of_choice = np.repeat([False, True], [len(whole.keys), len(choices.keys)])
    return (np.concatenate([whole.keys, choices.keys]), having, of_choice), np.arange(int(spelled.items.max(initial=-1)) + 1)


def _covered_weights(spelled: _Spelled, rules: Rules) -> np.ndarray:
    """The weight of the words of each spelling that `coverage` compares, (num_spellings,) int64: of
    the question and of the answer, if they have an n-gram."""
    parts = [texts.runs.weights for texts in (spelled.questions, spelled.answers)]
    return sum((np.where(weights >= WHOLE * rules.n, weights, 0) for weights in parts), np.zeros(len(spelled.items), np.int64))


def _entries(grams: _Grams) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The distinct keys, the members of each, and whether these have it in other choices alone: (num_grams,) uint64, offsets
    (num_grams + 1,) int64, (num_postings,) int64 in ascending order and bool. Keys of more than `MOST_MEMBERS` are left out."""
    keys, members, of_choice = grams
    order = np.lexsort((of_choice, members, keys))
    keys, members, of_choice = keys[order], members[order], of_choice[order]
    is_new = is_first(keys, members)
    keys, members, of_choice = keys[is_new], members[is_new], of_choice[is_new]
    firsts = np.flatnonzero(is_first(keys))
    counts = np.diff(np.append(firsts, len(keys)))
    is_kept = counts <= MOST_MEMBERS
    kept = np.repeat(is_kept, counts)
    return keys[firsts[is_kept]], np.append(0, np.cumsum(counts[is_kept])), members[kept], of_choice[kept]


def _owned(offsets: np.ndarray, members: np.ndarray, item_of: np.ndarray, set_of: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Whether each posting is of an n-gram that no other question of the same benchmark has, (num_postings,) bool."""
    own, counts = np.ones(len(members), np.bool_), np.diff(offsets)
    several = np.flatnonzero(np.repeat(counts > 1, counts))  # an n-gram that one member has is its own
    if not len(several):
        return own
    entries = np.repeat(np.arange(len(counts)), counts)[several]
    items = item_of[members[several]]
    group, benchmark = groups[items], set_of[items]
    order = np.lexsort((group, entries))
    entries, group, benchmark = entries[order], group[order], benchmark[order]
    new_set = is_first(entries, benchmark)
    new_group = new_set | is_first(group)
    num_groups = np.add.reduceat(new_group, np.flatnonzero(new_set), dtype=np.int64)
    own[several[order]] = num_groups[np.cumsum(new_set) - 1] == 1
    return own


def _weighed(
    offsets: np.ndarray, members: np.ndarray, own: np.ndarray, item_of: np.ndarray, spelled: _Spelled, rules: Rules
) -> tuple[Postings, np.ndarray]:
    num_grams = len(offsets) - 1
    totals, weights, needs = np.zeros_like(item_of), np.ones(num_grams, np.int64), np.ones_like(item_of)
    if rules.min_coverage is not None:
        entries = np.repeat(np.arange(num_grams), np.diff(offsets))
        item = item_of[members]
        num_items = np.bincount(entries, is_first(entries, item), num_grams)  # spellings of an item are next to each other
        idf = np.log((item_of.max(initial=0) + 2) / np.maximum(num_items, 1))
        weights = np.maximum(np.rint(_IDF_SCALE * idf), 1).astype(np.int64)
        np.add.at(totals, members, weights[entries])
        words = _covered_weights(spelled, rules) / WHOLE
        eased = np.clip((words - EXACT_WORDS) / (FULL_WORDS - EXACT_WORDS), 0, 1)
        needs = np.maximum(np.ceil(totals * (1 - (1 - rules.min_coverage) * eased)), 1).astype(np.int64)
    fields = (offsets.astype(np.int64), members.astype(np.int32), own, weights, needs, PASSAGE_GAP)
    return input_record(Postings, fields), totals


def _wholes(
    spelled: _Spelled, has_own: np.ndarray, first_entry: int, rules: Rules
) -> tuple[Wholes, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The short items, the keys of tails and questions, and which items are found as a whole, (num_items,) bool."""
    questions, answers, together = spelled.questions.runs, spelled.answers.runs, spelled.together.runs
    least, tail = WHOLE * rules.least_words, WHOLE * search.TAIL_WORDS
    has_grams = questions.weights >= WHOLE * rules.n
    if rules.min_coverage is not None:
        has_grams &= _covered_weights(spelled, rules) >= least
    is_long_enough = (~has_grams | ~has_own[spelled.items]) & (spelled.item_words() >= rules.least_words)[spelled.items]
    is_question = is_long_enough & (questions.weights >= tail) & (questions.num_words < word_runs.RING)
    is_pair = is_question & (answers.num_words > 0) & (answers.num_words <= search.REACH)
    is_alone = is_question & (answers.num_words == 0)
    is_joined = is_long_enough & (questions.weights < tail) & (together.num_words < word_runs.RING)
    rows = np.flatnonzero(is_pair | is_alone)
    joined = np.flatnonzero(is_joined)
    keys = np.concatenate([spelled.questions.keys(word_runs.QUESTION)[rows], spelled.together.keys(word_runs.QUESTION)[joined]])
    lengths = np.concatenate([questions.num_words[rows], together.num_words[joined]])
    ends = np.concatenate([_last_windows(questions)[rows], _last_windows(together)[joined]])
    question_keys, numbers = np.unique(keys, return_inverse=True)
    tail_keys, tails = _tails(ends, lengths, first_entry)
    items = spelled.items[np.concatenate([rows, joined])]
    alone = np.concatenate([is_alone[rows], np.ones(len(joined), np.bool_)])
    alone_offsets, alone_items = _lists(numbers[alone], items[alone], len(question_keys))
    answered = rows[is_pair[rows]]
    answer_keys, answer_lengths = spelled.answers.keys(word_runs.ANSWER)[answered], answers.num_words[answered]
    pairs = _pairs(numbers[~alone], answer_keys, answer_lengths, items[~alone], len(question_keys))
    is_found = np.zeros(len(has_own), np.bool_)
    is_found[items] = True
    first = first_entry + len(tail_keys)
    wholes = Wholes(first=first, tails=tails, alone_offsets=alone_offsets, alone_items=alone_items, **pairs)
    return wholes, (tail_keys, question_keys), is_found


def _last_windows(runs: word_runs.RunsOut) -> np.ndarray:
    """The key of the last window of each text, (num_texts,) uint64; 0 for texts without one."""
    last = np.zeros(len(runs.num_words), np.uint64)
    last[runs.texts] = runs.keys  # windows are in order, and the last assignment to a place stays
    return last


def _tails(ends: np.ndarray, lengths: np.ndarray, first_entry: int) -> tuple[np.ndarray, search.Tails]:
    keys, numbers = np.unique(ends, return_inverse=True)
    offsets, distinct_lengths = _lists(numbers, lengths, len(keys))
    first = first_entry if len(keys) else -1
    return keys, input_record(search.Tails, (first, offsets, distinct_lengths.astype(np.int32)))


def _lists(numbers: np.ndarray, values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of each number below `count`: offsets (count + 1,) int64, and int64."""
    distinct = np.unique(np.stack([numbers.reshape(-1), values], axis=1), axis=0)
    return np.searchsorted(distinct[:, 0], np.arange(count + 1)).astype(np.int64), distinct[:, 1].astype(np.int64)


def _pairs(numbers: np.ndarray, keys: np.ndarray, lengths: np.ndarray, items: np.ndarray, num_questions: int) -> dict:
    named = np.stack([numbers.reshape(-1).astype(np.uint64), keys], axis=1)
    distinct, pair = np.unique(named, axis=0, return_inverse=True)
    slots = num_slots_for(len(distinct))
    table, entries = np.zeros(slots, np.uint64), np.zeros(slots, np.int32)
    questions = np.ascontiguousarray(distinct[:, 0]).astype(np.int64)
    search.fill_pairs(np.ascontiguousarray(distinct[:, 1]), questions, table, entries)
    length_offsets, distinct_lengths = _lists(numbers, lengths, num_questions)
    pair_offsets, pair_items = _lists(pair, items, len(distinct))
    answers = input_record(search.Answers, (length_offsets, distinct_lengths.astype(np.int32), table, entries))
    return {"answers": answers, "pair_offsets": pair_offsets, "pair_items": pair_items}
