"""The column of segments: what a stage returns becomes a row of it, and what is none is refused."""

import pyarrow as pa
import pytest

from datapipe.errors import StageError
from datapipe.stage.segments import SEGMENTS_TYPE, check_segments, text_and_segments


def test_row_of_the_column_has_the_byte_at_which_each_segment_begins():
    listed = [{"token": "<u>", "learn": False}, {"text": "é", "learn": False}, {"text": "b"}, {"token": "<e>"}]
    text, rows = text_and_segments([*listed, {"token": "<f>"}, {"text": "c"}])
    assert text == "éb\nc"
    assert [(row["start"], row["token"], row["learned"]) for row in rows] == [
        (0, "<u>", False),
        (0, None, False),
        (2, None, True),
        (3, "<e>", True),  # a line end stands for it
        (4, "<f>", True),
        (4, None, True),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        [1],
        [{}],
        [{"text": "a", "token": "b"}],
        [{"text": 1}],
        [{"token": ""}],
        [{"text": "a", "learn": 1}],
        [{"txt": "a"}],
        {},
    ],
)
def test_list_that_is_none_of_segments_is_refused(wrong):
    with pytest.raises(StageError, match=r"segments.*expected a list such as"):
        text_and_segments(wrong)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([1], "found the start 1 in a text of 3 bytes"),
        ([4], "found the start 4"),
        ([3, 2], "found the start 2"),
        ([-1], "start -1"),
    ],
)
def test_column_with_starts_outside_or_within_a_character_is_refused(starts, message):
    texts = pa.array(["x", "éb"], pa.large_string())
    rows = [{"start": start, "token": None, "learned": True} for start in starts]
    with pytest.raises(StageError, match=message):
        check_segments(pa.array([[], rows], SEGMENTS_TYPE), texts)


def test_column_of_another_type_or_without_texts_is_refused():
    texts = pa.array(["x"], pa.large_string())
    with pytest.raises(StageError, match="expected list<"):
        check_segments(pa.array([[1]]), texts)
    with pytest.raises(StageError, match="expected list<"):
        check_segments(pa.array([[{"start": None, "token": None, "learned": True}]], SEGMENTS_TYPE), texts)
    with pytest.raises(StageError, match="no column 'text'"):
        check_segments(pa.array([[]], SEGMENTS_TYPE), None)
