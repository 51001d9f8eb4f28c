"""How long a run waits for a disk that is full, or for a store that does not answer.

    failure with an outage ─▶ Patience.wait ─▶ a pause for all tasks, and a line: what, where, free bytes, attempt n of N, when
                                           └▶ DatapipeError after PATIENCE_S in which nothing was committed and no room was made

All tasks wait for one outage together: failures during a pause belong to the attempt before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from datapipe.engine.retries import pause_after
from datapipe.errors import DatapipeError, UserError
from datapipe.metrics import counted
from datapipe.outages import Outage, outage_of, refusal_of

PATIENCE_S = 60.0
"""Seconds without any change until a run stops. Committed tasks stay, so a stop costs no work; waiting costs the nodes."""

_CHANGE_BYTES = 1 << 20
"""Growth of free space that counts as a change: other processes write and delete small files all the time."""

_RESUME = "Committed tasks are kept. Then run the same command again"


@dataclass(slots=True)
class Patience:
    """The outage that a run is waiting for.

    Attributes:
        most_attempts: of a run without any change, including the first.
        clock: seconds, monotonic.
    """

    most_attempts: int
    clock: Callable[[], float] = time.monotonic
    resumes_at: float = 0.0
    _since: float | None = None
    _attempts: int = 0
    _most_free: int = 0
    _pauses: list[float] = field(default_factory=list)

    @property
    def is_waiting(self) -> bool:
        return self.clock() < self.resumes_at

    def change(self) -> None:
        """Notes that something was written: the outage is over, or has parts that work."""
        self._since, self._attempts = None, 0

    def wait(self, outage: Outage) -> str:
        """Notes a failure and sets `resumes_at`. Raises DatapipeError after `PATIENCE_S` or `most_attempts` without a change.

        Returns:
            A line for the user; empty for a failure of the attempt that the run is waiting after.
        """
        now = self.clock()
        free = outage.free_bytes or 0
        if self._since is None or free >= self._most_free + _CHANGE_BYTES:
            self._since, self._attempts, self._pauses, self._most_free = now, 0, _pauses(self.most_attempts), free
        elif now < self.resumes_at:
            return ""
        self._attempts += 1
        left_s = self._since + PATIENCE_S - now
        if self._attempts > len(self._pauses) or left_s <= 0:
            attempts = f"{counted(self._attempts, 'attempt')} in {now - self._since:.0f} s, without a change"
            raise DatapipeError(f"{outage} ({attempts}). {_advice(outage)}")
        pause_s = min(self._pauses[self._attempts - 1], left_s)
        hope = "it answers again" if outage.free_bytes is None else "space is freed"
        self.resumes_at = now + pause_s
        return (
            f"{outage}. Attempt {self._attempts} of at most {len(self._pauses) + 1} failed; the next is in {pause_s:.1f} s. "
            f"The run stops in {left_s:.0f} s unless {hope}"
        )


def _pauses(most_attempts: int) -> list[float]:
    """The pauses between attempts that fail at once: doubled each time, together `PATIENCE_S`."""
    pauses: list[float] = []
    while len(pauses) < most_attempts - 1 and sum(pauses) < PATIENCE_S:
        pause_s = pause_after(len(pauses) + 1)
        pauses.append(min(pause_s, PATIENCE_S - sum(pauses)))
    return pauses


def _advice(outage: Outage) -> str:
    if outage.free_bytes is None:
        return f"Check that the disk, store or network is up. {_RESUME}."
    return f"Delete files on the disk of {outage.where}, or give a larger one. {_RESUME}."


def stopped_by(error: Exception, url: str) -> DatapipeError | None:
    """The error of a run that a disk, store or hub stopped outside of its tasks; None for any other exception.

    Args:
        url: of the output.
    """
    outage, refusal = outage_of(error, url), refusal_of(error, url)
    if outage is not None:
        return DatapipeError(f"{outage}. {_advice(outage)}")
    if refusal is not None:
        return UserError(f"{refusal}. {_RESUME}.")
    return None
