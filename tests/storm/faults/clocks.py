"""Clocks that jump during a run, by seconds to years in both directions, as of a machine whose time is corrected.

jumping_clock.c stands between the command and the C library. libfaketime, which would do the same, moves the absolute times
of sleeps on the monotonic clock as well, so that they fail.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tests.storm import checks
from tests.storm.faults.preloaded import preloaded
from tests.storm.rounds import Round

_JUMPS_S = (-86_400 * 400, -7_200, -30, 90, 7_200, 86_400 * 4_000)


class ClockJump:
    """The wall clock jumps three times in a run; the monotonic clock does not, as on Linux."""

    name = "clock"
    aim = 20
    is_short = True

    def play(self, round: Round) -> None:
        clock = round.folder / "clock"
        clock.write_bytes(bytes(8))
        environment = {"LD_PRELOAD": str(preloaded(round.storm, "jumping_clock")), "STORM_CLOCK": str(clock)}
        command = round.run(environment=environment)
        for wanted in sorted(round.rng.sample(range(1, 50), 3)):
            seconds = round.rng.choice(_JUMPS_S)
            if round.reaches(command, wanted):
                _set(clock, seconds)
                round.fault(f"the clock is {seconds:+,} s off after {checks.num_records(round.output)} commits")
        ended = command.wait()
        assert ended.status == 0, ended.errors[-2000:]
        round.check_processes()
        round.end_undisturbed()
        round.check_output(is_verified=False)
        round.same()


def _set(clock: Path, seconds: int) -> None:
    with open(clock, "r+b") as file:  # mapped by the command
        file.write(struct.pack("<q", seconds))


FAULTS = (ClockJump(),)
