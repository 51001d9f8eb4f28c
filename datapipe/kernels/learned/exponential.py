"""The exponential function by sums and products of float64 alone, so that every machine gives the same bits.

The `exp` of libraries differs in its last bit. Numba fuses no product with a sum, so each step is rounded by IEEE 754.
"""

import math
from typing import Any

import numpy as np

from datapipe.kernels import inline

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # of fdlibm: whole multiples of HIGH are exact
_LEAST, _MOST = -700.0, 700.0
_FACTORS = np.array([1.0 / math.factorial(power) for power in range(13, -1, -1)])


@inline
def exp(power) -> Any:
    """e to the power of a float64, at most 700 in size, with a relative error below 4e-16. The power is split into whole
    multiples of ln 2 and a rest of at most 0.35, where 14 terms of the Taylor series suffice."""
    bounded = min(max(power, _LEAST), _MOST)
    doublings = np.rint(bounded * _LOG2_E)
    rest = (bounded - doublings * _LN2_HIGH) - doublings * _LN2_LOW
    total = 0.0
    for factor in _FACTORS:
        total = total * rest + factor
    return np.ldexp(total, np.int64(doublings))


@inline
def logistic(power) -> Any:
    """1 / (1 + exp(-power)) of a float64."""
    return 1.0 / (1.0 + exp(-power))
