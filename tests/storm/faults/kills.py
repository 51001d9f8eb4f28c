"""SIGKILL of the driver, of its whole process group, and of single workers, each after more work was committed."""

from __future__ import annotations

import os
import signal

from tests.storm import checks, processes
from tests.storm.rounds import Round

_NUM_TASKS = 57


class Kill:
    """Kills of drivers and groups, each followed by the same command; single workers die on the way."""

    name = "kill"
    aim = 100
    is_short = True

    def play(self, round: Round) -> None:
        assert round.storm.expected
        before = 0
        num_kills = 2 if round.storm.is_small else 6
        for _ in range(num_kills):
            wanted = before + round.rng.randint(1, 2 * _NUM_TASKS // (num_kills + 1) - 1)
            is_group = round.rng.random() < 0.4
            worker_after = round.rng.randint(before + 1, wanted) if round.rng.random() < 0.5 else None
            command = round.run()
            if worker_after is not None and round.reaches(command, worker_after):
                _kill_worker(round, command)
            if not round.reaches(command, wanted):
                break
            committed = checks.num_records(round.output)
            assert committed > before, f"{committed} records, {before} before: records were lost"
            if is_group:
                command.kill_group()
            else:
                command.signal(signal.SIGKILL)
                command.process.wait()
            round.fault(f"SIGKILL of the {'group' if is_group else 'driver'} after {committed} commits")
            round.check_processes()
            before = committed
        else:
            round.end_undisturbed()
        ended = command.process.poll()
        assert ended in (0, -signal.SIGKILL), f"exit status {ended}"
        round.check_processes()
        round.check_output(is_verified=round.number % 4 == 0)
        round.same()


def _kill_worker(round: Round, command: processes.Command) -> None:
    workers = processes.workers_of(command)
    if workers:
        committed = checks.num_records(round.output)
        try:
            os.kill(round.rng.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return
        round.fault(f"SIGKILL of one of {len(workers)} workers after {committed} commits")


FAULTS = (Kill(),)
