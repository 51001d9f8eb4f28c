"""Conversations of too many tokens, beside a loop over every token."""

import random

import numpy as np

from datapipe.tokens.long_conversations import shortened
from datapipe.tokens.segments import Encoded

CONTROL = np.array([1, 2])


def cut_of(ids: list[int], learned: list[bool], most: int) -> int:
    stops = [0]
    for stop in range(1, len(ids)):
        if learned[stop - 1] and not learned[stop]:
            following = learned.index(True, stop) if True in learned[stop:] else None
            before = ids[: learned.index(True)]
            if following is not None and before[-(following - stop) :] == ids[stop:following]:
                continue
            is_open = ids[stop - 1] not in CONTROL and ids[stop] in CONTROL
            stops.append(stop + is_open)
    return max(stop for stop in stops if stop <= most)


def test_documents_are_whole_cut_behind_an_answer_or_left_out() -> None:
    rng = random.Random(7)
    for cuts in (True, False):
        documents = [
            ([rng.randrange(6) for _ in range(size)], [rng.random() < 0.5 for _ in range(size)])
            for size in (rng.randrange(0, 20) for _ in range(300))
        ]
        most = np.array([rng.randrange(1, 15) for _ in documents])
        ids, learned = (np.array([value for each in documents for value in each[part]]) for part in (0, 1))
        offsets = np.cumsum([0, *(len(each[0]) for each in documents)])
        made = shortened(Encoded(ids, offsets, learned.astype(bool)), most, CONTROL, cuts=cuts)
        expected = []
        for (own, mask), limit in zip(documents, most.tolist()):
            stop = len(own) if len(own) <= limit else cut_of(own, mask, limit) if cuts else 0
            expected.append(None if stop == 0 < len(own) else (own[:stop], mask[:stop]))
        left = [each for each in expected if each is not None]
        found = [
            (made.encoded.ids[start:stop].tolist(), made.encoded.learned[start:stop].tolist())
            for start, stop in zip(made.encoded.offsets, made.encoded.offsets[1:])
        ]
        assert found == left and made.keep.tolist() == [each is not None for each in expected]
        whole = [len(own) for own, _ in documents]
        assert made.num_cut == sum(each is not None and len(each[0]) < size for each, size in zip(expected, whole))
        assert made.num_cut > 50 or not cuts


def test_a_document_without_a_mask_has_no_answer_to_cut_behind() -> None:
    made = shortened(Encoded(np.arange(5), np.array([0, 2, 5]), None), np.array([2, 2]), CONTROL, cuts=True)
    assert (made.encoded.ids.tolist(), made.keep.tolist(), made.num_cut) == ([0, 1], [True, False], 0)


def test_no_cut_stands_between_two_calls_of_one_message() -> None:
    start, end, assistant, user, call = 1, 2, 3, 4, 5
    asked, header, called = [start, user, 9, end], [start, assistant], [call, 7, end]
    ids = [*asked, *header, *called, *asked[:2], 8, end, *header, *called, *header, *called, *asked]
    learned = [False] * 6 + [True] * 3 + [False] * 6 + [True] * 3 + [False] * 2 + [True] * 3 + [False] * 4
    stops = []
    for most in (8, 9, 20, 22, 23, 26):
        made = shortened(Encoded(np.array(ids), np.array([0, 27]), np.array(learned)), np.array([most]), CONTROL, cuts=True)
        stops.append(len(made.encoded.ids))
    assert stops == [0, 9, 9, 9, 23, 23]
