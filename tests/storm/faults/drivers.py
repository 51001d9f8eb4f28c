"""Two drivers on one output: one of them works, the other is refused and leaves everything as it is."""

from __future__ import annotations

import signal

from tests.storm import checks, corpus
from tests.storm.rounds import Round

_HELD = ("another run is using this output", "another run took this output", "lease", "holds this output")


class TwoDrivers:
    """Two or three drivers at once on a local output, also while the first is stopped."""

    name = "drivers"
    aim = 20
    is_short = True

    def play(self, round: Round) -> None:
        first = round.run()
        if round.number % 2:
            round.reaches(first, 4)
            first.signal(signal.SIGSTOP)
        others = [round.run() for _ in range(2)]
        round.fault(f"three drivers{', the first is stopped' if round.number % 2 else ' at once'}")
        if round.number % 2:
            ended = [other.wait() for other in others]
            first.signal(signal.SIGCONT)
            ended.append(first.wait())
        else:
            ended = [each.wait() for each in (first, *others)]
        refused = [each for each in ended if each.status]
        for each in refused:
            round.check_refusal(each, _HELD)
        assert len(refused) < len(ended), [each.last_line for each in ended]
        round.check_processes()
        checks.check_same(corpus.digests(round.output), round.storm.expected)
        checks.check_residue(round.output)
        round.end_undisturbed()
        round.check_output(is_verified=False)
        round.refused(refused[0].last_line) if refused else round.same()


FAULTS = (TwoDrivers(),)
