"""What befalls processes and machines: SIGKILL, SIGSTOP, other drivers, little memory, jumping clocks.

Most stopped processes go on later; a worker that never does is ended as a stall. Of several drivers on one output one works,
the others are refused and leave everything as it is. `jumping_clock.c` stands between a command and the C library, since
libfaketime moves the absolute times of sleeps on the monotonic clock as well, so that they fail.
"""

import contextlib
import os
import resource
import signal
import struct
import time

from tests.storm import checks, processes
from tests.storm.processes import Command
from tests.storm.rounds import Round, faults

_NUM_TASKS = 57


@faults("kill", aim=100, is_short=True)
def kill(round: Round) -> None:
    """Kills of drivers and groups, each followed by the same command; single workers die on the way."""
    assert round.storm.expected
    before, command = 0, None
    num_kills = 2 if round.storm.is_small else 6
    for _ in range(num_kills):
        wanted = before + round.rng.randint(1, 2 * _NUM_TASKS // (num_kills + 1) - 1)
        is_group = round.rng.random() < 0.4
        worker_after = round.rng.randint(before + 1, wanted) if round.rng.random() < 0.5 else None
        command = round.run()
        if worker_after is not None and round.reaches(command, worker_after) and (workers := processes.workers_of(command)):
            send([round.rng.choice(workers)], signal.SIGKILL)
            round.fault(f"SIGKILL of one of {len(workers)} workers after {checks.num_records(round.output)} commits")
        if not round.reaches(command, wanted):
            break
        committed = checks.num_records(round.output)
        assert committed > before, f"{committed} records, {before} before: records were lost"
        if is_group:
            command.kill_group()
        else:
            command.signal(signal.SIGKILL)
        round.fault(f"SIGKILL of the {'group' if is_group else 'driver'} after {committed} commits")
        round.ended(command)
        before = committed
    else:
        round.end_undisturbed()
    assert command is not None
    ended = round.ended(command)
    assert ended.status in (0, -signal.SIGKILL), f"exit status {ended.status}"
    round.check_output(is_verified=round.number % 4 == 0)
    round.same()


STALL_S = 20


@faults("stop", aim=20)
def stop(round: Round) -> None:
    """Processes that are stopped for a while, or, once in a while, for good."""
    command = round.run("--set", f"execution.stall_s={STALL_S}")
    for_good = round.number % 3 == 2
    for wanted in sorted(round.rng.sample(range(1, 45), 1 if for_good else 3)):
        if round.reaches(command, wanted):
            _stop(round, command, for_good)
    round.ended_well(command)
    round.check_output(is_verified=False)
    round.same()


def _stop(round: Round, command: Command, for_good: bool) -> None:
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


_HELD = ("another run is using this output", "another run took this output", "lease", "holds this output")


@faults("drivers", aim=20, is_short=True)
def drivers(round: Round) -> None:
    """Two or three drivers at once on a local output, also while the first is stopped."""
    first = round.run()
    if round.number % 2:
        round.reaches(first, 4)
        first.signal(signal.SIGSTOP)
    others = [round.run() for _ in range(2)]
    round.fault(f"three drivers{', the first is stopped' if round.number % 2 else ' at once'}")
    ended = [other.wait() for other in others]
    first.signal(signal.SIGCONT)
    ended.append(round.ended(first))
    refused = [each for each in ended if each.status]
    for each in refused:
        round.check_refusal(each, _HELD)
    assert len(refused) < len(ended), [each.last_line for each in ended]
    checks.check_same(checks.digests(round.output), round.storm.expected)
    checks.check_residue(round.output)
    round.finish(refused[0].last_line if refused else "")


_WORDS = ("memory", "cannot allocate", "resource temporarily unavailable", "no sign of work", "did not respond", "silent")


@faults("memory-limit", aim=15)
def memory_limit(round: Round) -> None:
    """A limit on the address space (RLIMIT_AS), from what the imports alone take up to plenty."""
    limit = round.rng.randrange(700 << 20, 3_000 << 20)
    round.fault(f"address space of {limit >> 20} MiB a process")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    # Where OpenBLAS gets no memory as it is loaded, it asks again without an end: the worker is ended as a stall.
    patience = ("--set", "execution.max_infrastructure_retries=2", "--set", "execution.stall_s=40")
    ended = round.ended(round.run(*patience, before=limited))
    round.finish(round.refusal(ended, _WORDS, last_line_only=True))


_JUMPS_S = (-86_400 * 400, -7_200, -30, 90, 7_200, 86_400 * 4_000)


@faults("clock", aim=20, is_short=True)
def clock(round: Round) -> None:
    """The wall clock jumps three times in a run; the monotonic clock does not, as on Linux."""
    file = round.folder / "clock"
    file.write_bytes(bytes(8))
    environment = {"LD_PRELOAD": round.storm.library("jumping_clock"), "STORM_CLOCK": str(file)}
    command = round.run(environment=environment)
    for wanted in sorted(round.rng.sample(range(1, 50), 3)):
        seconds = round.rng.choice(_JUMPS_S)
        if round.reaches(command, wanted):
            with open(file, "r+b") as mapped:  # by the command
                mapped.write(struct.pack("<q", seconds))
            round.fault(f"the clock is {seconds:+,} s off after {checks.num_records(round.output)} commits")
    round.ended_well(command)
    round.finish()
