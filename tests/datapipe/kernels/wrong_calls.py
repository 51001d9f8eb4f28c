"""Calls of kernels that a type checker must refuse. Nothing imports this file; pyright checks it with the package.

Each wrong call is marked with the rule that it breaks, and a mark that is not needed is an error itself: where pyright no
longer sees the mistake, the check of types fails.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=error

from typing import NamedTuple

import numpy as np

from datapipe.kernels import Kernel
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, input_record


class _Words(NamedTuple):
    starts: Int64s


class _Lines(NamedTuple):
    starts: Int64s


def _count(words: _Words, data: UInt8s, limit: int, out: Int64sOut) -> int:
    out[0] = min(len(words.starts), limit, len(data))
    return out[0]


def call_wrongly() -> None:
    count = Kernel(_count)
    starts, data, out = np.zeros(1, np.int64), np.zeros(1, np.uint8), np.zeros(1, np.int64)
    words = input_record(_Words, (starts,))
    number: int = count(words, data, 3, out)
    count(words, data, number)  # pyright: ignore[reportCallIssue]
    count(words, data, 3, out, out)  # pyright: ignore[reportCallIssue]
    count(words, starts, 3, out)  # pyright: ignore[reportArgumentType]
    count(words, data, data, out)  # pyright: ignore[reportArgumentType]
    count(starts, data, 3, out)  # pyright: ignore[reportArgumentType]
    count(_Lines(starts=starts), data, 3, out)  # pyright: ignore[reportArgumentType]
    text: str = count(words, data, 3, out)  # pyright: ignore[reportAssignmentType]
    print(text)
