"""Cutting long texts: the same bytes, in pieces that end where words do."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.tokens.cuts import cut_long_texts


def place_of_cut(data: bytes, limit: int) -> int:
    """The first space between letters past a limit; the end where there is none."""
    found = re.search(rb"(?<=[A-Za-z]) (?=[A-Za-z])", data[limit - 1 :]) if len(data) > limit else None
    return limit - 1 + found.start() if found else len(data)


@given(st.lists(st.text("ab é\n 漢.", max_size=200), max_size=8), st.integers(1, 30), st.integers(0, 3))
@settings(deadline=None)
def test_cut_any_texts_cuts_at_first_space_between_letters_past_each_limit(texts, limit, skipped):
    pieces, first = cut_long_texts(pa.array(["x" * skipped, *texts], pa.large_string()).slice(1), limit)
    found = pieces.to_pylist()
    for text, start, stop in zip(texts, first[:-1], first[1:], strict=True):
        rest, expected = text.encode(), list[str]()
        while rest or not expected:
            place = place_of_cut(rest, limit)
            expected, rest = [*expected, rest[:place].decode()], rest[place:]
        assert found[start:stop] == expected


def test_cut_place_beyond_search_window_is_found():
    text = "x" * 300_000 + " y" + "z" * 300_000
    pieces, first = cut_long_texts(pa.array([text], pa.large_string()), 1000)
    assert [len(piece) for piece in pieces.to_pylist()] == [300_000, 300_002]
    assert first.tolist() == [0, 2]
