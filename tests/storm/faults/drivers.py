"""Two drivers on one output: one of them works, the other is refused and leaves everything as it is."""

from __future__ import annotations

import signal
import time

from tests.storm import checks, corpus, processes
from tests.storm.faults.stops import send
from tests.storm.faults.stores import BUCKET, Store
from tests.storm.rounds import Round
from tests.support.unreliable_store import UnreliableStore

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


class TwoStoreDrivers:
    """Two drivers on an output of an object store; the first is paused until its lease has run out, or both begin at once."""

    name = "store-drivers"
    aim = 6
    is_short = False
    lease_s = 70.0

    def play(self, round: Round) -> None:
        store: Store = round.storm.once("store", lambda: Store(round.storm))
        proxy = UnreliableStore(store.upstream)
        folder = f"{BUCKET}/two-{round.number}"
        try:
            mixture = store.write_mixture(round.folder, proxy)
            chosen = ("--output", f"s3://{folder}{proxy.query}")
            first = round.run(*chosen, mixture=mixture)
            if is_paused := round.number % 2 == 0:
                processes.wait_until(lambda: first.is_over or any("work/ledger" in path for path in proxy.gets), "a ledger")
                time.sleep(round.rng.uniform(0, 5))
                stopped = [first.pid, *processes.workers_of(first)]
                send(stopped, signal.SIGSTOP)
                time.sleep(self.lease_s)
            second = round.run(*chosen, mixture=mixture)
            round.fault("two drivers, " + (f"the first paused for {self.lease_s:.0f} s and more" if is_paused else "at once"))
            if is_paused:
                time.sleep(round.rng.uniform(3, 10))
                send(stopped, signal.SIGCONT)
            ended = [first.wait(), second.wait()]
            refused = [each for each in ended if each.status]
            for each in refused:
                round.check_refusal(each, _HELD)
            assert len(refused) < len(ended), [each.last_line for each in ended]
            round.check_processes()
            last = round.run(*chosen, mixture=mixture).wait()
            assert last.status == 0, last.errors[-2000:]
            checks.check_output(store.fetched(folder, round.folder / "copy"), store.expected)
            round.refused(refused[0].last_line) if refused else round.same()
        finally:
            proxy.close()


FAULTS = (TwoDrivers(), TwoStoreDrivers())
