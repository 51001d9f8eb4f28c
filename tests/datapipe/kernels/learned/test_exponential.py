"""The exponential function of additions and multiplications is as precise as the library's."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest

from datapipe.kernels.learned.exponential import exp, logistic


def test_exp_is_within_two_units_in_the_last_place_of_the_true_value() -> None:
    getcontext().prec = 40
    powers = np.concatenate([np.linspace(-690, 690, 2001), np.linspace(-1, 1, 2001), [0.0, -0.0, 1e-300, 0.34657359]])
    for power in powers.tolist():
        true = Decimal(power).exp()
        assert abs(Decimal(float(exp(power))) - true) <= 2 * Decimal(math.ulp(float(true)))


def test_exp_has_these_bits_on_every_machine() -> None:
    bits = ["0x1.d257d547e083fp-73", "0x1.78b56362cef38p-2", "0x1.0000000000000p+0", "0x1.5829dcf950560p+14"]
    assert [float(exp(power)).hex() for power in (-50.0, -1.0, 0.0, 10.0)] == bits


def test_exp_beyond_its_bounds_is_that_of_the_bound() -> None:
    assert exp(-1e9) == exp(-700.0) > 0
    assert exp(1e9) == exp(700.0) < math.inf


@pytest.mark.parametrize("power", [-800.0, -3.0, 0.0, 0.5, 40.0, 800.0])
def test_logistic_and_its_opposite_make_one(power: float) -> None:
    assert logistic(power) + logistic(-power) == pytest.approx(1.0, abs=1e-15)
