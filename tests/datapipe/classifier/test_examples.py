"""Labelled texts are chosen and split by their hashes: the order of batches does not matter, and copies stay together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from datapipe.classifier.examples import LabelledTexts, Limits, Prepared, prepare
from datapipe.columns import text_lengths
from datapipe.errors import UserError

_ALL = Limits(sample_bytes=1 << 20)
Rows = Sequence[tuple[str, str]]


def _batches(rows: Rows, size: int = 7, groups: Sequence[str | None] | None = None) -> Iterator[LabelledTexts]:
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        yield LabelledTexts(
            texts=pa.array([text for text, _ in part], pa.large_string()),
            labels=pa.array([label for _, label in part], pa.large_string()),
            groups=None if groups is None else pa.array(groups[start : start + size], pa.large_string()),
        )


def _numbers(rows: Sequence[tuple[str, float]]) -> Iterator[LabelledTexts]:
    texts = pa.array([text for text, _ in rows], pa.large_string())
    yield LabelledTexts(texts=texts, numbers=np.array([number for _, number in rows]))


def _rows(number: int = 300) -> list[tuple[str, str]]:
    rng = random.Random(3)
    return [(f"text {index} {'x' * rng.randint(0, 50)}", rng.choice(["yes", "no"])) for index in range(number)]


def _told(prepared: Prepared) -> list[list[tuple[str, float]]]:
    sides = (prepared.training, prepared.held_out)
    return [list(zip(side.texts.to_pylist(), side.targets.tolist(), strict=True)) for side in sides]


@pytest.mark.parametrize("limits", [_ALL, Limits(sample_bytes=1500)])
def test_examples_do_not_depend_on_the_order_and_size_of_batches(limits):
    rows = _rows()
    expected = prepare(_batches(rows), limits)
    for seed, size in ((1, 1), (2, 50), (3, 300)):
        shuffled = rows + rows[:20]
        random.Random(seed).shuffle(shuffled)
        found = prepare(_batches(shuffled, size), limits)
        assert _told(found) == _told(expected)
        assert found.digest == expected.digest
        assert (found.counts.kept, found.counts.is_full) == (expected.counts.kept, limits is not _ALL)
    sizes, targets = text_lengths(expected.training.texts), expected.training.targets
    assert limits is _ALL or all(1100 < sizes[targets == number].sum() <= 1500 for number in (0, 1))  # some are held out


def test_examples_held_out_are_about_the_share_and_none_is_on_both_sides():
    training, held_out = _told(prepare(_batches(_rows(2000)), Limits(sample_bytes=1 << 20, held_out=0.25)))
    assert 400 < len(held_out) < 600
    assert len(training) + len(held_out) == 2000
    assert not {text for text, _ in training} & {text for text, _ in held_out}


def test_examples_of_a_group_are_on_one_side():
    rows, rng = _rows(400), random.Random(5)
    groups = [rng.choice(["a", "b", "c", "d", "e", "f", None]) for _ in rows]
    of_text = dict(zip((text for text, _ in rows), groups))
    sides = _told(prepare(_batches(rows, groups=groups), Limits(sample_bytes=1 << 20, held_out=0.5)))
    first, second = ({of_text[text] for text, _ in side} for side in sides)
    assert first & second == {None}


def test_examples_of_one_text_with_two_labels_are_left_out_and_counted():
    prepared = prepare(_batches([*_rows(50), ("both", "yes"), ("both", "no"), (" \n", "no"), ("", "yes")]), _ALL)
    assert "both" not in {text for side in _told(prepared) for text, _ in side}
    assert (prepared.counts.conflicting, prepared.counts.empty, prepared.counts.read) == (1, 2, 54)


def test_examples_of_one_text_with_two_numbers_have_their_mean():
    prepared = prepare(_numbers([("a", 1.0), ("b", 4.0), ("a", 2.0), ("a", 2.0)]), Limits(sample_bytes=99, held_out=0.0))
    assert sorted(_told(prepared)[0]) == [("a", 1.5), ("b", 4.0)]
    assert prepared.training.predicts_number


def test_examples_are_cut_before_they_are_compared():
    rows = [("abcX", "yes"), ("abcY", "yes"), ("éfgh", "no")]
    prepared = prepare(_batches(rows), Limits(sample_bytes=99, max_chars=3, held_out=0))
    assert sorted(_told(prepared)[0]) == [("abc", 1.0), ("éfg", 0.0)]


def test_examples_that_are_balanced_count_as_much_for_each_label():
    rows = [(f"text {index}", "no" if index % 5 else "yes") for index in range(100)]
    training = prepare(_batches(rows), Limits(sample_bytes=1 << 20, held_out=0.0, balanced=True)).training
    sums = [training.weights[training.targets == number].sum() for number in (0, 1)]
    assert sums == pytest.approx([50, 50])


@pytest.mark.parametrize(
    ("found", "positive", "labels"),
    [
        (["yes", "no"], None, ("no", "yes")),
        (["b", "a"], None, ("a", "b")),
        (["b", "a"], "a", ("b", "a")),
        (["2", "0", "1"], None, ("0", "1", "2")),
    ],
)
def test_examples_have_labels_in_the_order_of_names_and_the_positive_one_last(found, positive, labels):
    rows = [(f"{label} {number}", label) for label in found for number in range(3)]
    assert prepare(_batches(rows), Limits(sample_bytes=999, held_out=0.0), positive).training.labels == labels


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([("a", "x"), ("b", "x")], {}, "'x'"),
        ([], {}, "no document"),
        ([(str(number), str(number)) for number in range(101)], {}, "100"),
        ([("a", "x"), ("b", "y")], {"held_out": 1.0}, "no document"),
        ([("same", "x"), ("same", "y"), ("z", "y")], {"held_out": 0.0}, "'x'"),
    ],
)
def test_examples_that_do_not_suffice_say_what_to_do(rows, options, message):
    with pytest.raises(UserError, match=message):
        prepare(_batches(rows), Limits(sample_bytes=999, **options))
    with pytest.raises(UserError, match="hq"):
        prepare(_batches(_rows()), _ALL, "hq")
