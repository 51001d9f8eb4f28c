"""The storm: faults of every kind, one after the other, against real runs. `README.md` describes how to read it.

python -m tests.storm --seed 1 --budget 600                 seconds; the last rounds end a little later
python -m tests.storm --seed 1 --only kill,flip             some kinds; flip: all that begin so
python -m tests.storm --seed 1 --round kill:4               one round again, as it was

Exit status 1 if anything was wrong.
"""

import argparse
import importlib
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.storm.rounds import KINDS, Faults, Round, SkipError, Storm

MOST_FAILURES = 5
"""Rounds of a kind that may go wrong until no more are played."""

for _module in ("processes", "flips", "disks", "stores", "inputs"):
    importlib.import_module(f"tests.storm.faults.{_module}")


def play(storm: Storm, faults: Faults, number: int) -> None:
    """One round, whatever happens in it."""
    round, is_right = Round(storm, faults.name, number), False
    storm.table.rounds[faults.name] += 1
    before = storm.table.total(faults.name)
    try:
        faults.play(round)
        is_right = True
        assert not round.pending, f"{round.name} has no verdict for {round.pending}"
        if storm.table.total(faults.name) == before:
            round.say("  nothing happened: the run ended before")
    except SkipError as error:
        storm.table.skipped[faults.name] = str(error)
        storm.say(f"{round.name}: skipped, {error}")
        is_right = True
    except AssertionError as error:
        round.wrong(str(error))
    except Exception:
        round.wrong(f"the storm itself failed:\n{traceback.format_exc()}")
    finally:
        round.close(keeps=not is_right)


def run(storm: Storm, kinds: Sequence[Faults]) -> None:
    """Rounds of all kinds until the budget is spent or every aim is reached; the kind with the least time so far is next."""
    spent, numbers = {kind.name: 0.0 for kind in kinds}, {kind.name: 0 for kind in kinds}
    try:
        while time.monotonic() < storm.stops_at:
            open_kinds = [
                kind
                for kind in kinds
                if kind.name not in storm.table.skipped
                and storm.table.total(kind.name) < kind.aim
                and storm.table.num_failures(kind.name) < MOST_FAILURES
            ]
            if not open_kinds:
                break
            kind = min(open_kinds, key=lambda kind: spent[kind.name])
            began = time.monotonic()
            play(storm, kind, numbers[kind.name])
            numbers[kind.name] += 1
            spent[kind.name] += time.monotonic() - began
    finally:
        storm.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description="Faults of every kind against real runs.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds")
    parser.add_argument("--only", default="", help="kinds, separated by commas")
    parser.add_argument("--round", default="", help="KIND:NUMBER, one round again")
    parser.add_argument("--folder", type=Path, help="for rounds; those that failed stay there")
    options = parser.parse_args()
    known = {kind.name: kind for kind in KINDS}
    wanted = [options.round.partition(":")[0]] if options.round else [name for name in options.only.split(",") if name]
    names = [name for name in known if any(name == each or name.startswith(f"{each}-") for each in wanted)]
    if unknown := [each for each in wanted if not any(f"{name}-".startswith(f"{each}-") for name in known)]:
        parser.error(f"no such kind: {', '.join(unknown)}; there are {', '.join(known)}")
    folder = Path(options.folder or tempfile.mkdtemp(prefix="storm-"))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # which ends the processes of the round
    storm = Storm(folder.resolve(), options.seed, lambda line: print(line, flush=True), time.monotonic() + options.budget)
    if options.round:
        play(storm, known[names[0]], int(options.round.partition(":")[2]))
        storm.close()
    else:
        run(storm, [known[name] for name in names or known])
    print("", *storm.table.lines(), sep="\n")
    if storm.table.is_wrong:
        print("", *storm.table.failures, sep="\n")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
