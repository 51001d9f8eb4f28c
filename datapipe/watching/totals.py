"""What the runs of one command have counted in all: one run, or those of `--follow`, one after the other.

The driver's thread writes, others read. The size is that of the steps and sources, never of the tasks.
"""

from __future__ import annotations

from datapipe.figures import Figures
from datapipe.watching.state import RunState


class CommandFigures:
    """The figures of one command.

    Attributes:
        num_published: new snapshots that this process has published.
        looked_at: when it last looked for new files, in seconds since 1970; None where it does not follow.
    """

    def __init__(self) -> None:
        self.num_published = 0
        self.looked_at: float | None = None
        self._output = ""
        self._shown: tuple[Figures, RunState | None, RunState] = Figures(), None, RunState()

    @property
    def state(self) -> RunState:
        """The run that is at work, or was last."""
        return self._shown[2]

    def begin_run(self, state: RunState, output: str) -> None:
        """Counts the next run, from where the one before has ended. A run into the same output finds the committed tasks of the
        one before, and counts them itself."""
        ended, earlier, before = self._shown
        ended = Figures(ended).add(_of_process(before))
        last = _planned(before, earlier)
        if output != self._output:
            self._output = output
            self._shown = ended.add(last.sums), None, state
        else:
            self._shown = ended, last, state

    def totals(self) -> Figures:
        """Of all runs so far."""
        ended, earlier, state = self._shown
        return Figures(ended).add(_of_process(state)).add(_planned(state, earlier).sums)


def _of_process(state: RunState) -> Figures:
    """What a run has counted in this process alone."""
    return Figures(state.driver.sums).add({("failures", kind): count for kind, count in dict(state.failures).items()})


def _planned(state: RunState, earlier: RunState | None) -> RunState:
    """The run whose committed tasks count: the earlier one into the same output, until the later one has a plan."""
    return state if state.steps or earlier is None else earlier
