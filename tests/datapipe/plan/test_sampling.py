"""Quotas of the tokenizer's sample: by share, capped by the size of a source, the rest from the others."""

from __future__ import annotations

from fractions import Fraction

import pytest

from datapipe.plan.sampling import sample_fractions, sample_quotas


def quotas(sizes: dict[str, int], shares: dict[str, int], sample_bytes: int) -> dict[str, Fraction]:
    total = sum(shares.values())
    return sample_quotas(
        {name: Fraction(size) for name, size in sizes.items()},
        {name: Fraction(share, total) for name, share in shares.items()},
        sample_bytes,
    )


@pytest.mark.parametrize(
    ("sizes", "shares", "expected"),
    [
        ({"a": 1000, "b": 1000}, {"a": 3, "b": 1}, {"a": 75, "b": 25}),  # by weight, whatever the sizes
        ({"a": 9000, "b": 30}, {"a": 3, "b": 1}, {"a": 75, "b": 25}),
        ({"a": 1000, "b": 10, "c": 1000}, {"a": 2, "b": 1, "c": 1}, {"a": 60, "b": 10, "c": 30}),  # b is short
        ({"a": 40, "b": 10, "c": 1000}, {"a": 2, "b": 1, "c": 1}, {"a": 40, "b": 10, "c": 50}),  # then a is, too
        ({"a": 40, "b": 10}, {"a": 1, "b": 1}, {"a": 40, "b": 10}),  # all there is
        ({"a": 1000, "b": 1000}, {"a": 1, "b": 0}, {"a": 100, "b": 0}),  # never drawn, never sampled
        ({"a": 0, "b": 1000}, {"a": 1, "b": 1}, {"a": 0, "b": 100}),  # kept nothing
        ({"a": 0}, {"a": 1}, {"a": 0}),
    ],
)
def test_quotas_follow_weights_as_far_as_there_is_text(sizes, shares, expected):
    assert quotas(sizes, shares, 100) == expected


def test_quotas_do_not_depend_on_the_order_of_sources():
    sizes, shares = {"a": 40, "b": 10, "c": 1000, "d": 33}, {"a": 2, "b": 1, "c": 1, "d": 7}
    turned = quotas(dict(reversed(sizes.items())), dict(reversed(shares.items())), 100)
    assert turned == quotas(sizes, shares, 100)


def test_fractions_are_of_the_training_split():
    shares = {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    fractions = sample_fractions({"a": 200, "b": 800}, shares, 200, validation=0.5)
    assert fractions == {"a": 1.0, "b": 0.25}
    assert sample_fractions({"a": 0, "b": 0}, shares, 200, validation=0.0) == {"a": 0.0, "b": 0.0}
