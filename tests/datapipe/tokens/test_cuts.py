"""Cutting long texts: the same bytes, in pieces that end where words do."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.tokens.cuts import cut_long_texts


@given(st.lists(st.text("ab é\n 漢.", max_size=80), max_size=8), st.integers(1, 30), st.integers(0, 3))
@settings(deadline=None)
def test_cut_any_texts_gives_pieces_that_join_to_them(texts, limit, skipped):
    column = pa.array(["x" * skipped, *texts], pa.large_string()).slice(1)
    pieces, first = cut_long_texts(column, limit)
    found = pieces.to_pylist()
    assert ["".join(found[start:stop]) for start, stop in zip(first[:-1], first[1:])] == texts


@given(st.text("ab é.", max_size=200), st.integers(1, 30))
@settings(deadline=None)
def test_cut_one_text_cuts_at_first_space_between_letters_past_each_limit(text, limit):
    data, expected, start = text.encode(), [0], 0
    while len(data) - start > limit:
        found = re.search(rb"(?<=[A-Za-z]) (?=[A-Za-z])", data[start + limit - 1 :])
        if found is None:
            break
        start += limit - 1 + found.start()
        expected.append(start)
    pieces, _ = cut_long_texts(pa.array([text], pa.large_string()), limit)
    ends = [len(piece.encode()) for piece in pieces.to_pylist()]
    assert [sum(ends[:number]) for number in range(len(ends))] == expected


def test_cut_place_beyond_search_window_is_found():
    text = "x" * 300_000 + " y" + "z" * 300_000
    pieces, first = cut_long_texts(pa.array([text], pa.large_string()), 1000)
    assert [len(piece) for piece in pieces.to_pylist()] == [300_000, 300_002]
    assert first.tolist() == [0, 2]


def test_cut_text_without_words_stays_whole():
    pieces, first = cut_long_texts(pa.array(["漢字" * 1000], pa.large_string()), 100)
    assert (len(pieces), first.tolist()) == (1, [0, 1])
