"""The keyed sample: the same texts however documents are cut, ordered and named, each text once."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.classifier.annotation.sample import draw_sample, find_sample

TEXTS = [f"text {number} é" for number in range(60)]


def batches(texts, sizes, prefix="a"):
    def documents():
        start = 0
        while start < len(texts):
            size = sizes[start % len(sizes)]
            rows = texts[start : start + size]
            ids = [f"{prefix}:{start + number}" for number in range(len(rows))]
            yield pa.RecordBatch.from_pydict({"id": ids, "text": rows})
            start += size

    return documents


def drawn(tmp_path, texts, number, sizes=(7,), prefix="a", seed=0):
    sample = draw_sample(batches(texts, sizes, prefix), number, seed, tmp_path / "sample.parquet")
    assert find_sample(sample.path).num_sampled == sample.num_sampled == len(list(sample.documents()))
    return list(sample.documents())


@settings(max_examples=25, deadline=None)
@given(st.permutations(TEXTS), st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 70))
def test_sample_is_the_same_texts_in_any_order_and_batches(tmp_path_factory, texts, sizes, number):
    folder = tmp_path_factory.mktemp("sample")
    expected = {text for _, text in drawn(folder, TEXTS, number)}
    assert len(expected) == min(number, len(TEXTS))
    sampled = drawn(folder, texts, number, sizes, "elsewhere")
    assert {text for _, text in sampled} == expected
    assert [text for _, text in sampled] == [text for text in texts if text in expected]


def test_sample_has_a_repeated_text_once_as_its_first_document(tmp_path):
    texts = [text for text in TEXTS for _ in range(3)]
    sampled = drawn(tmp_path, texts, 20, (4,))
    assert {text for _, text in sampled} == {text for _, text in drawn(tmp_path, TEXTS, 20)}
    assert all(texts.index(text) == int(name.removeprefix("a:")) for name, text in sampled)


def test_smaller_sample_is_part_of_a_larger_one_and_other_seeds_draw_others(tmp_path):
    small, large = ({text for _, text in drawn(tmp_path, TEXTS, number)} for number in (10, 30))
    assert small < large
    assert {text for _, text in drawn(tmp_path, TEXTS, 10, seed=1)} != small


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_sample_of_nothing_or_of_empty_texts(tmp_path, texts):
    assert len(drawn(tmp_path, texts, 5)) == len(set(texts))


def test_sample_takes_no_more_than_its_share_of_any_kind(tmp_path):
    texts = [f"{number % 10} {number}" for number in range(5000)]
    sampled = drawn(tmp_path, texts, 1000, (512,))
    kinds = [sum(text.startswith(f"{kind} ") for _, text in sampled) for kind in range(10)]
    assert min(kinds) > 65  # of 100 expected; 4 standard deviations are 35
    assert max(kinds) < 135
