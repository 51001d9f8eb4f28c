"""Segments of documents stay with their text when stages edit and cut it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from datapipe.columns import text_buffers
from datapipe.stage.segments import SEGMENTS_TYPE, Segments, check_segments, segments_of, text_and_segments
from datapipe.steps.edited_segments import after_cuts, after_edit, searched

parts = st.lists(st.text("ab@xé \n", max_size=6), max_size=6)
documents = st.lists(parts, min_size=1, max_size=5)


def batch(listed: list[list[str]]) -> tuple[pa.Array, Segments]:
    """Documents whose segments are these texts, with a token before each, sliced out of a larger column."""
    segments = [[segment for text in [*of_doc] for segment in ({"token": "<t>"}, {"text": text})] for of_doc in listed]
    pairs = [text_and_segments(each) for each in [[{"text": "before"}], *segments]]
    texts = pa.array([text for text, _ in pairs], pa.large_string()).slice(1)
    column = pa.array([rows for _, rows in pairs], SEGMENTS_TYPE).slice(1)
    return texts, segments_of(column, text_buffers(texts)[0])


def split(texts: pa.Array, column: pa.Array) -> list[list[str]]:
    """The texts of the segments of documents."""
    found = []
    for text, rows in zip(texts.to_pylist(), column.to_pylist()):
        borders = [row["start"] for row in rows] + [len(text.encode())]
        assert [row["token"] for row in rows] == ["<t>", None] * (len(rows) // 2)
        found.append([text.encode()[start:stop].decode() for start, stop in zip(borders, borders[1:])][1::2])
    return found


def edited(texts: pa.Array, chosen: Any = None) -> pa.Array:
    return pa.array([text.replace("x", "").replace("@", "<AT>") for text in texts.to_pylist()], pa.large_string())


@given(documents)
def test_segments_hold_the_edits_of_their_texts(listed):
    texts, segments = batch(listed)
    after = edited(texts)
    column, failed = after_edit(segments, texts, after, edited)
    check_segments(column, after)
    assert not failed
    assert split(after, column) == [edited(pa.array(of_doc, pa.large_string())).to_pylist() for of_doc in listed]


def _failing(texts: pa.Array, chosen: Any) -> pa.Array:
    return pa.nulls(len(texts), pa.large_string())


def _other(texts: pa.Array, chosen: Any) -> pa.Array:
    return pa.array(["?"] * len(texts), pa.large_string())


@given(documents)
def test_borders_ascend_within_texts_that_a_stage_edits_as_a_whole_alone(listed):
    texts, segments = batch(listed)
    after = edited(texts)
    for edit in (_failing, _other):
        column, failed = after_edit(segments, texts, after, edit)
        check_segments(column, after)
        assert all(not rows or rows[0]["start"] == 0 for rows in column.to_pylist())
        for number, rows in enumerate(column.to_pylist()):
            part, text, new = singly(segments, texts, after)[number]
            alone, failed_alone = after_edit(segments_of(part, text_buffers(text)[0]), text, new, edit)
            assert alone.to_pylist() == [rows]
            assert bool(failed_alone) == (number in failed)


def singly(segments: Segments, texts: pa.Array, after: pa.Array) -> list[tuple[pa.Array, pa.Array, pa.Array]]:
    """Each document as a batch."""
    column = segments.column(text_buffers(texts)[0])
    return [tuple(each.slice(number, 1) for each in (column, texts, after)) for number in range(len(texts))]  # type: ignore[misc]


def borders(new: bytes, texts: Sequence[bytes | None]) -> list[int] | None:
    found = searched(new, texts)
    return None if found is None else found.tolist()


def test_edits_over_a_border_leave_it_before_the_text_behind():
    texts = [b"user\n", b"  Hi", b"\n", b"assistant\n", b"Hello "]
    assert borders(b"user Hi assistant Hello", texts) == [0, 5, 7, 8, 18, 23]
    assert borders(b"one two", [b"one", b"lost", b"two"]) == [0, 3, 4, 7]
    assert borders(b"one <X> two", [b"one", b"changed", b"\n", b"two"]) == [0, 3, 7, 8, 11]
    assert borders(b"one some two", [b"one", None, b"two"]) == [0, 3, 9, 12]
    assert borders(b"", [b"a", b"b"]) == [0, 0, 0]
    assert borders(b"Hi Hi Hi", [b"Hi ", b"\n", b"Hi", b"Hi"]) == [0, 2, 3, 6, 8]


def test_texts_with_more_than_one_place_have_no_borders():
    later = b"You only repeated me. Is Paris far?"
    assert borders(b"Paris\n" + later, [b"Paris", b"\n", b"Paris", b"\n", later]) is None
    assert borders(b"Paris\n" + later[:-4], [b"Paris", b"\n", b"Paris", b"\n", later]) is None
    assert borders(b"Hi", [b"Hi", b"Hi"]) is None
    assert borders(b"one <X> two", [b"one", b"sec", b"ret", b"two"]) is None
    assert borders(b"a b c b", [b"a", None, b"b"]) is None
    assert borders(b"more one", [b"one"]) is None
    assert borders(b"a " * 5000, [b"a  " * 50] * 100) is None


@given(documents, st.data())
def test_segments_after_cuts_hold_what_is_left_of_their_texts(listed, data):
    texts, segments = batch(listed)
    offsets, content = text_buffers(texts)
    kept, cuts = np.ones(len(content), np.bool_), []
    for start, stop in zip(offsets.tolist(), offsets[1:].tolist()):
        chosen = sorted(data.draw(st.sets(st.integers(start, stop), max_size=4)))
        cuts += zip(chosen[::2], chosen[1::2])
    for start, stop in cuts:
        kept[start:stop] = False
    starts, stops = (np.array([cut[side] for cut in cuts], np.int64) for side in (0, 1))
    left = np.concatenate([[0], np.cumsum(kept)])[offsets]
    column = after_cuts(segments, offsets, starts, stops, left - left[0])
    new = content[offsets[0] : offsets[-1]][kept[offsets[0] : offsets[-1]]]
    found = segments_of(column, left - left[0])
    ends = [np.append(each.starts[1:], -1) for each in (segments, found)]
    for number, document in enumerate(segments.documents.tolist()):
        is_last = number + 1 == len(segments.documents) or segments.documents[number + 1] != document
        stop, new_stop = (
            (offsets[document + 1], (left - left[0])[document + 1]) if is_last else (ends[0][number], ends[1][number])
        )
        old_start = segments.starts[number]
        expected = content[old_start:stop][kept[old_start:stop]]
        assert new[found.starts[number] : new_stop].tolist() == expected.tolist()


def test_texts_without_a_segment_are_unchanged_by_edits_of_others():
    texts, segments = batch([[], ["ax"], []])
    column, _ = after_edit(segments, texts, edited(texts), edited)
    assert column.to_pylist()[0] == column.to_pylist()[2] == []


def test_a_document_without_sure_borders_fails_with_the_reason():
    texts, segments = batch([["Paris", "Paris", "Is Paris far?"], ["a@b"]])
    after = pa.array(["Paris\nIs Paris far?", "a<AT>b"], pa.large_string())
    _, failed = after_edit(segments, texts, after, edited)
    assert list(failed) == [0]
    assert failed[0].endswith("\nthe edit reaches over a border between segments")
