"""Memory that does not suffice: a limit on the address space of all processes, and a stage that takes what it can get."""

from __future__ import annotations

import os
import resource
import textwrap

from tests.storm import checks
from tests.storm.rounds import Round
from tests.support import corpora, runs

_WORDS = ("memory", "cannot allocate", "resource temporarily unavailable", "no sign of work", "did not respond", "silent")
_GREEDY = '''
    """A stage that takes memory for one document, more than there is."""
    import numpy as np
    from datapipe.stage import Map

    class Greedy(Map):
        """Keeps what it took."""
        def process(self, batch):
            if any("GREEDY" in text for text in batch.texts.to_pylist()):
                self.__dict__.setdefault("held", []).append(np.ones(BYTES, np.uint8))
            return {"text": batch.texts}
'''


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


class GreedyStage:
    """A stage that takes more memory than its process may have, on one document."""

    name = "memory-greedy"
    aim = 5
    is_short = False

    def play(self, round: Round) -> None:
        size = round.rng.randrange(6, 12) << 30
        (round.folder / "greedy.py").write_text(textwrap.dedent(_GREEDY).replace("BYTES", str(size)))
        rows = corpora.documents(round.number, 60, exact=0, near=0, short=0)
        marked = round.rng.randrange(60)
        rows[marked]["text"] += " GREEDY"
        corpora.write_jsonl(round.folder / "web.jsonl", rows)
        mixture = runs.write_mixture(
            round.folder, f"  web: {{path: {round.folder}/web.jsonl}}\n", "stages: ['greedy:Greedy']", runs.TAIL
        )
        environment = {"PYTHONPATH": f"{round.folder}:{os.environ.get('PYTHONPATH', os.getcwd())}"}
        round.fault(f"a stage takes more than it may have on document {marked}")

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (5 << 30, 5 << 30))

        ended = round.run("--set", "execution.max_retries=1", mixture=mixture, environment=environment, before=limited).wait()
        round.check_processes()
        line = round.check_refusal(ended, _WORDS)
        checks.check_residue(round.output)
        round.refused(line)


FAULTS = (LittleMemory(), GreedyStage())
