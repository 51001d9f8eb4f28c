"""Memory that does not suffice: a limit on the address space of all processes."""

from __future__ import annotations

import resource

from tests.storm.rounds import Round

_WORDS = ("memory", "cannot allocate", "resource temporarily unavailable", "no sign of work", "did not respond", "silent")


class LittleMemory:
    """A limit on the address space (RLIMIT_AS), from what the imports alone take up to plenty."""

    name = "memory-limit"
    aim = 15
    is_short = False

    def play(self, round: Round) -> None:
        limit = round.rng.randrange(700 << 20, 3_000 << 20)
        round.fault(f"address space of {limit >> 20} MiB a process")

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        # Where OpenBLAS gets no memory as it is loaded, it asks again without an end: the worker is ended as a stall.
        patience = ("--set", "execution.max_infrastructure_retries=2", "--set", "execution.stall_s=40")
        ended = round.run(*patience, before=limited).wait()
        round.check_processes()
        line = round.check_refusal(ended, _WORDS, last_line_only=True) if ended.status else ""
        round.end_undisturbed()
        round.check_output(is_verified=False)
        round.refused(line) if line else round.same()


FAULTS = (LittleMemory(),)
