"""Differences between two texts: the counts, the marks, and that no character is lost."""

from __future__ import annotations

import random

from datapipe.inspect import differences
from datapipe.inspect.differences import CONTEXT_WORDS, Difference, difference
from tests.oracles import case_folding as oracle


def _marked(result: Difference) -> list[tuple[list[str], list[str]]]:
    """The differing segments of each passage, in both texts."""
    return [
        tuple([segment.text.strip() for segment in side if segment.differs] for side in (passage.first, passage.second))
        for passage in result.passages
    ]


def _numbered(start: int, stop: int) -> str:
    return " ".join(f"word{number}" for number in range(start, stop))


def test_difference_marks_the_words_that_differ_with_some_around_them():
    first = f"{_numbered(0, 50)} the cat sat {_numbered(50, 100)}"
    second = f"{_numbered(0, 50)} the dog sat {_numbered(50, 100)}"
    result = difference(first, second)
    assert _marked(result) == [(["cat"], ["dog"])]
    assert result.passages[0].first[0].text.split() == [*_numbered(50 - CONTEXT_WORDS + 1, 50).split(), "the"]
    assert not result.passages[0].begins
    assert (result.words, result.only) == ((103, 103), (1, 1))
    assert result.in_common == 94 / 104  # 99 5-grams each, of which 5 hold the word


def test_difference_in_distant_words_gives_a_passage_for_each():
    middle = _numbered(0, 100)
    result = difference(f"begins here {middle} ends", f"starts here {middle} ends {_numbered(200, 203)}")
    assert _marked(result) == [(["begins"], ["starts"]), ([], [_numbered(200, 203)])]
    assert [(passage.begins, passage.ends) for passage in result.passages] == [(True, False), (False, True)]
    assert [passage.differing for passage in result.passages] == [2, 3]


def test_difference_counts_each_occurrence_of_a_folded_word():
    result = difference("One two, two! three", "one: TWO three four", (2, "word"))
    assert (result.words, result.only) == ((4, 4), (1, 1))
    assert result.in_common == 2 / 4  # one two, two three | two two, three four
    same = difference("It's  here.", "it s HERE")
    assert same.has_same_words
    assert not same.is_equal
    assert same.in_common == 1.0
    assert difference("a b", "a b").is_equal


def test_difference_signs_spaces_case_and_normal_form_are_no_difference():
    result = difference("Don't stop - the caf\u00e9's house", "DON’T\u00a0STOP — the cafe\u0301’s hou\u00adse", (2, "word"))
    assert result.has_same_words
    assert (result.words, result.in_common) == ((7, 7), 1.0)
    assert _marked(difference("a — b c", "a – d c")) == [(["b"], ["d"])]


def test_difference_words_are_those_that_signatures_are_made_of():
    text = "Don’t pay 3,50 €: naïve Ærger ΣΊΣΥΦΟΣ 太郎 ชาก่ ガ\u3099 हिन्दी co\u00adop \u0301 각각"
    words = [text[start:stop] for start, stop in differences.word_spans(text)]
    folded = [oracle.words(word.encode()) for word in words]
    assert [parts[0] for parts in folded if parts] == oracle.words(text.encode())


def test_difference_of_short_and_empty_texts():
    assert difference("one two", "one two!").in_common == 1.0
    assert difference("one two", "one three").in_common == 0.0
    empty = difference("", " ... ")
    assert (empty.has_same_words, empty.is_equal, empty.in_common, empty.words) == (True, False, 1.0, (0, 0))
    assert _marked(difference("", "new")) == [([], ["new"])]


def test_difference_in_a_script_without_spaces_marks_characters():
    result = difference("我们今天去学校读书", "我们今天去公园读书")
    assert _marked(result) == [(["学校"], ["公园"])]


def test_difference_counts_a_few_equal_words_between_long_differences_as_differing():
    head, tail = _numbered(0, 20), _numbered(20, 40)
    first = f"{head} {_numbered(100, 110)} of the {_numbered(110, 120)} {tail}"
    second = f"{head} {_numbered(200, 210)} of the {_numbered(210, 220)} {tail}"
    assert [len(side) for side in _marked(difference(first, second))[0]] == [1, 1]


def test_difference_with_whole_texts_gives_back_every_character():
    rng = random.Random(5)
    for _ in range(200):
        texts = ["".join(rng.choices(["a", "b", "C", " ", "\n", ", ", "字", "é"], k=rng.randint(0, 40))) for _ in range(2)]
        result = difference(*texts, context=None)
        if result.has_same_words or not all(result.words):
            continue
        [passage] = result.passages
        assert ["".join(segment.text for segment in side) for side in (passage.first, passage.second)] == texts
        assert passage.begins
        assert passage.ends


def test_difference_of_long_texts_is_bounded_and_reports_it(monkeypatch):
    monkeypatch.setattr(differences, "COMPARED_CHARS", 2000)
    monkeypatch.setattr(differences, "ALIGNED_WORDS", 50)
    common = _numbered(0, 100)
    assert difference(common, f"{common} more").is_aligned
    result = difference(f"{common} a {_numbered(100, 140)} b {common}", f"{common} x {_numbered(100, 140)} y {common}")
    assert (result.is_whole, result.is_aligned) == (True, True)  # 42 words between the common beginning and end
    apart = difference(f"a {_numbered(0, 90)} b", f"x {_numbered(0, 90)} y")
    assert not apart.is_aligned
    assert _marked(apart) == [(["a"], ["x"])]
    assert not apart.passages[0].ends
    long = difference(_numbered(0, 400), _numbered(0, 401))
    assert (long.is_whole, long.has_same_words) == (False, True)
