"""Numbers in words."""

from __future__ import annotations

import pytest

from datapipe.metrics import counted


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1001, "1,001 files"), (-1, "-1 files")]
)
def test_counted_noun_is_singular_for_one_alone(number: int, words: str) -> None:
    assert counted(number, "file") == words


def test_counted_noun_with_a_plural_of_its_own() -> None:
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]
