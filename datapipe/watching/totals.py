"""What the runs of one command have counted in all: one run, or those of `--follow`, one after the other.

The driver's thread writes, others read. The size is that of the steps and sources, never of the tasks.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from datapipe.figures import Histogram
from datapipe.watching.state import RunState


class Totals:
    """Sums.

    Attributes:
        counters: by name of a figure, by its labels.
        histograms: by name of a figure, by the value of its label; "" where it has none.
    """

    def __init__(self) -> None:
        self.counters: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
        self.histograms: defaultdict[str, dict[str, Histogram]] = defaultdict(dict)

    def copy(self) -> Totals:
        copied = Totals()
        copied.counters.update({name: Counter(counter) for name, counter in self.counters.items()})
        copied.histograms.update({name: dict(histograms) for name, histograms in self.histograms.items()})
        return copied

    def with_process(self, state: RunState) -> Totals:
        """These sums and what a run has counted in this process alone."""
        after, driver = self.copy(), state.driver
        after._count("failures", state.failures)
        after._add("driver_lag_seconds", {"": driver.lag_s})
        after._add("commit_seconds", {"": driver.commit_s})
        after._add("commit_records", {"": driver.commit_records})
        return after

    def with_committed(self, state: RunState) -> Totals:
        """These sums and those over the committed tasks of a run's plan."""
        after, sums = self.copy(), state.sums
        after.counters["documents"].update(dict(sums.documents))
        after.counters["task_seconds"].update({(name,): step.seconds for name, step in state.steps.items()})
        after._count("input_bytes", sums.input_bytes)
        after._count("tokens", sums.tokens)
        after._count("output_bytes", sums.output_bytes)
        after._count("second_attempts", sums.second_attempts)
        after._add("task_duration_seconds", dict(sums.task_seconds))
        return after

    def _count(self, name: str, counter: Counter[str]) -> None:
        self.counters[name].update({(label,): value for label, value in dict(counter).items()})

    def _add(self, name: str, histograms: dict[str, Histogram]) -> None:
        before = self.histograms[name]
        before.update({label: each.plus(before.get(label)) for label, each in histograms.items()})


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
        self._shown: tuple[Totals, RunState | None, RunState] = Totals(), None, RunState()

    @property
    def state(self) -> RunState:
        """The run that is at work, or was last."""
        return self._shown[2]

    def begin_run(self, state: RunState, output: str) -> None:
        """Counts the next run, from where the one before has ended. A run into the same output finds the committed tasks of the
        one before, and counts them itself."""
        ended, earlier, before = self._shown
        ended = ended.with_process(before)
        last = _planned(before, earlier)
        if output != self._output:
            self._output = output
            self._shown = ended.with_committed(last), None, state
        else:
            self._shown = ended, last, state

    def totals(self) -> Totals:
        """Of all runs so far."""
        ended, earlier, state = self._shown
        return ended.with_process(state).with_committed(_planned(state, earlier))


def _planned(state: RunState, earlier: RunState | None) -> RunState:
    """The run whose committed tasks count: the earlier one into the same output, until the later one has a plan."""
    return state if state.steps or earlier is None else earlier
