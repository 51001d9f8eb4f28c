"""SIGSTOP: of the driver, of a worker, of the whole group; most go on later, a worker that never does is ended as a stall."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from tests.storm import checks, processes
from tests.storm.processes import Command
from tests.storm.rounds import Round

STALL_S = 20


class Stop:
    """Processes that are stopped for a while, or, once in a while, for good."""

    name = "stop"
    aim = 20
    is_short = False

    def play(self, round: Round) -> None:
        command = round.run("--set", f"execution.stall_s={STALL_S}")
        for_good = round.number % 3 == 2
        for wanted in sorted(round.rng.sample(range(1, 45), 1 if for_good else 3)):
            if round.reaches(command, wanted):
                self._stop(round, command, for_good)
        ended = command.wait()
        assert ended.status == 0, ended.errors
        round.check_processes()
        round.check_output(is_verified=False)
        round.same()

    def _stop(self, round: Round, command: Command, for_good: bool) -> None:
        workers = processes.workers_of(command)
        who = "a worker" if for_good else round.rng.choice(("the driver", "a worker", "the group"))
        stopped = {"the driver": [command.pid], "a worker": workers[:1], "the group": [command.pid, *workers]}[who]
        seconds = None if for_good else round.rng.uniform(0.2, 3)
        send(stopped, signal.SIGSTOP)
        after = f"after {checks.num_records(round.output)} commits"
        round.fault(f"SIGSTOP of {who} {after}, " + ("for good" if seconds is None else f"for {seconds:.1f} s"))
        if seconds is not None:
            time.sleep(seconds)
            send(stopped, signal.SIGCONT)


def send(process_ids: list[int], number: int) -> None:
    """Sends a signal to all that still run."""
    for process_id in process_ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, number)


FAULTS = (Stop(),)
