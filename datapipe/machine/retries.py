"""Requests and files that are tried again after pauses which double.

action ─▶ result
   └▶ OSError ─▶ `pause_after` raises, where no attempt helps, or gives seconds ─▶ pause ─▶ action …
"""

from collections.abc import Callable
from itertools import count
from math import inf
from typing import TypeVar

from datapipe.dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    # first_s, longest_s: each pause is twice the one before, from the first to the longest
    first_s: float
    longest_s: float
    # including the first. most_s: of one failure after another, without a success.
    most_attempts: float = inf
    most_s: float = inf
    longest_asked_s: float = 60.0  # of a pause that a server asks for

    def pause_s(self, number: int, asked_s: float | None = None) -> float:
        """Seconds between failure `number`, from 1 on, and the next attempt. `asked_s` is that of a server (Retry-After)."""
        if asked_s is not None:
            return min(asked_s, self.longest_asked_s)
        return min(self.first_s * 2.0 ** min(number - 1, 32), self.longest_s)


def retry_io(action: Callable[[], T], pause_after: Callable[[OSError, int], float], sleep: Callable[[float], object]) -> T:
    """The result of an action, which is tried again after an OSError, and after the seconds that
    `pause_after` gives for it and the number of failures. It raises where no attempt helps."""
    for number in count(1):
        try:
            return action()
        except OSError as error:
            sleep(pause_after(error, number))
    raise AssertionError
