"""A round of the storm: a few faults of one kind, then the same command without any, and all checks.

    Storm  one folder, one seed, a table        Round  own folder, own seed, own /dev/shm and TMPDIR, a mark on its processes
       └─ rounds of kinds in turn                  ├─ fault(…)  one line for each, as it happens
                                                   └─ same() | refused(…) | AssertionError ─▶ result of its faults

A round depends on its seed, kind and number alone, so `--round kill:4` with the same seed makes the same choices again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.storm import checks, processes
from tests.storm.processes import Command, Ended
from tests.support.cli_processes import wait_until


class Verdict(StrEnum):
    """What became of a fault.

    Attributes:
        SAME: the run, or the same command again, made the bytes of an undisturbed run.
        REFUSED: a command ended with a message that names the fault, and the same command made the right bytes once the fault
            was gone, where it can go.
        WRONG: anything else.
    """

    SAME = "same bytes"
    REFUSED = "refused, fault named"
    WRONG = "wrong"


@dataclass(slots=True)
class Table:
    """Faults by kind and result. `skipped`: why a kind cannot be tried on this machine."""

    counts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    rounds: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, verdict: Verdict, count: int) -> None:
        self.counts.setdefault(kind, Counter())[verdict] += count

    def total(self, kind: str) -> int:
        return self.counts.get(kind, Counter()).total()

    def num_failures(self, kind: str) -> int:
        return sum(failure.startswith(f"{kind}:") for failure in self.failures)

    @property
    def is_wrong(self) -> bool:
        return any(counts[Verdict.WRONG] for counts in self.counts.values()) or bool(self.failures)

    def lines(self) -> list[str]:
        """A Markdown table."""
        lines = [f"| fault | rounds | faults | {' | '.join(Verdict)} |", "|---" * 6 + "|"]
        for kind, counts in self.counts.items():
            numbers = (self.rounds[kind], counts.total(), *(counts[verdict] for verdict in Verdict))
            lines.append(f"| {kind} | {' | '.join(f'{number:,}' for number in numbers)} |")
        return lines + [f"{kind}: skipped, {reason}" for kind, reason in self.skipped.items()]


class SkipError(Exception):
    """A kind of fault cannot be made on this machine; says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Faults:
    """A kind of fault.

    Attributes:
        aim: how many faults are enough.
        is_short: whether the short storm has it.
        play: makes faults and checks what follows. Raises AssertionError for what is wrong, SkipError for what cannot be made.
    """

    name: str
    aim: int
    is_short: bool
    play: Callable[[Round], None]


KINDS: list[Faults] = []
"""In the order in which the modules of `faults/` declare them."""


def faults(name: str, *, aim: int, is_short: bool = False) -> Callable[[Callable[[Round], None]], Callable[[Round], None]]:
    """Declares a function as a kind of fault."""

    def declare(play: Callable[[Round], None]) -> Callable[[Round], None]:
        KINDS.append(Faults(name=name, aim=aim, is_short=is_short, play=play))
        return play

    return declare


@dataclass(slots=True)
class Storm:
    """What all rounds share.

    Attributes:
        folder: of the rounds, and of the undisturbed run.
        seed: of all choices.
        say: prints one line.
        stops_at: of `time.monotonic`; a round that has begun ends.
        is_small: whether rounds are to make few faults.
        shared: what kinds made once for all their rounds, by name.
    """

    folder: Path
    seed: int
    say: Callable[[str], None]
    stops_at: float
    is_small: bool = False
    table: Table = field(default_factory=Table)
    shared: dict[str, Any] = field(default_factory=dict)
    closing: list[Callable[[], None]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]

    @property
    def mixture(self) -> Path:
        return self.once("mixture", lambda: checks.write_mixture(_made(self.folder / "undisturbed")))

    @property
    def expected(self) -> Mapping[str, str]:
        """Digests of the output that an undisturbed run makes."""
        return self.once("expected", self._undisturbed)

    def _undisturbed(self) -> Mapping[str, str]:
        round = Round(self, "undisturbed", 0)
        round.ended_well(round.run())
        checks.check_output(round.output, expected := checks.digests(round.output))
        return expected

    @property
    def finished(self) -> Path:
        """The output of the undisturbed run. Rounds copy it."""
        assert self.expected
        return self.folder / "undisturbed-0" / "out"

    def library(self, name: str) -> str:
        """NAME.c of `faults/`, compiled once, for LD_PRELOAD. Raises SkipError where there is no compiler."""
        return str(self.once(name, lambda: self._compiled(name)))

    def _compiled(self, name: str) -> Path:
        library, source = _made(self.folder) / f"{name}.so", Path(__file__).parent / "faults" / f"{name}.c"
        try:
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, capture_output=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise SkipError(f"{name}.c cannot be compiled: {error}") from error
        return library

    def close(self) -> None:
        """Ends what kinds have started for all their rounds."""
        for close in reversed(self.closing):
            close()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Round:
    """Faults that share a result at a time, and the commands that they hit."""

    def __init__(self, storm: Storm, kind: str, number: int) -> None:
        self.storm, self.kind, self.number = storm, kind, number
        self.rng = random.Random(f"{storm.seed}/{kind}/{number}")
        self.folder = _made(storm.folder / f"{kind}-{number}")
        self.output = self.folder / "out"
        self.mark = uuid.uuid4().hex
        self.temporary, self.shm = _made(self.folder / "tmp"), _made(self.folder / "shm")
        self.pending: list[str] = []
        self.num_commands = 0

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def environment(self) -> dict[str, str]:
        return {processes.MARK: self.mark, "TMPDIR": str(self.temporary)}

    def say(self, text: str) -> None:
        self.storm.say(f"{time.monotonic() - self.storm.began:7.1f} s  {self.name:<12} {text}")

    def fault(self, text: str, count: int = 1) -> None:
        """Tells of a fault that has just happened, or of many alike."""
        self.pending += [text] * count
        self.say(text)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, before: Callable[[], None] | None = None
    ) -> Command:
        self.num_commands += 1
        everything = {**self.environment, **(environment or {})}
        return processes.start(arguments, self.folder / f"command-{self.num_commands:02d}", everything, self.shm, before)

    def run(self, *more: str, environment: Mapping[str, str] | None = None, mixture: Path | None = None, **options) -> Command:
        """Starts the run of the mixture into the round's output, as each time."""
        chosen = ["run", str(mixture or self.storm.mixture), "--output", str(self.output), "--workers", "2", *more]
        return self.start(chosen, environment, **options)

    def reaches(self, command: Command, num_records: int) -> bool:
        """Waits until the ledger of the output has so many records. Returns False if the command ended before."""
        wait_until(lambda: command.is_over or checks.num_records(self.output) >= num_records, "commits")
        return not command.is_over

    def end_undisturbed(self) -> None:
        """The same command without a fault, to its end. TMPDIR and /dev/shm have only the tracebacks that commands named."""
        self.ended_well(self.run())
        told = "".join(path.read_text(errors="replace") for path in self.folder.glob("command-*/stderr"))
        left = [str(path) for folder in (self.temporary, self.shm) for path in folder.rglob("*") if str(path) not in told]
        assert not left, f"left behind: {left}"

    def ended(self, command: Command) -> Ended:
        """Waits for the end of a command and of all its processes."""
        ended = command.wait()
        processes.without_orphans(self.mark)
        return ended

    def ended_well(self, command: Command) -> Ended:
        """Of a command that no fault may stop."""
        ended = self.ended(command)
        assert ended.status == 0, f"exit status {ended.status}: {ended.errors[-3000:]}"
        return ended

    def finish(self, line: str = "", *, is_verified: bool = False) -> None:
        """The same command without a fault, every check, and the result: the same, or refused with `line`."""
        self.end_undisturbed()
        self.check_output(is_verified=is_verified)
        self.judge(line)

    def judge(self, line: str) -> None:
        """The result of the faults since the last one: refused with `line`, or the same where it is empty."""
        self.refused(line) if line else self.same()

    def refusal(self, ended: Ended, words: Sequence[str], **options: bool) -> str:
        """The last line of a command that failed, checked; empty for one that did not."""
        return self.check_refusal(ended, words, **options) if ended.status else ""

    def check_output(self, *, is_verified: bool = True) -> None:
        """Checks the finished output against the undisturbed one."""
        checks.check_output(self.output, self.storm.expected)
        if is_verified:
            self.ended_well(self.start(["verify", str(self.output)]))

    def check_refusal(self, ended: Ended, words: Sequence[str], *, last_line_only: bool = False) -> str:
        """Checks that a command that failed names the fault in plain lines. Returns its last line.

        Args:
            last_line_only: for faults at which Python itself, without memory, writes lines that cannot be prevented.
        """
        text = (ended.last_line if last_line_only else ended.errors).lower()
        assert ended.status in (1, 2), f"exit status {ended.status}: {ended.errors[-2000:]}"
        assert "traceback (most" not in text and "defect of datapipe" not in text, ended.errors[-2000:]
        assert any(word.lower() in text for word in words), f"the message names none of {words}: {ended.errors[-2000:]}"
        return ended.last_line

    def same(self) -> None:
        self._judge(Verdict.SAME, "")

    def refused(self, text: str, count: int | None = None) -> None:
        """The result of the faults since the last one, or of `count` of them."""
        self._judge(Verdict.REFUSED, text, count)

    def wrong(self, text: str) -> None:
        self.pending = self.pending or ["no fault yet"]
        again = f"again with: python -m tests.storm --seed {self.storm.seed} --round {self.name}; kept: {self.folder}"
        self.storm.table.failures.append(f"{self.name}: {text}\n    {again}")
        self._judge(Verdict.WRONG, f"{text}\n    {again}")

    def _judge(self, verdict: Verdict, text: str, count: int | None = None) -> None:
        judged = self.pending[len(self.pending) - count :] if count is not None else list(self.pending)
        if judged:
            self.storm.table.add(self.kind, verdict, len(judged))
            self.say(f"  {len(judged):,} × {verdict.value}" + (f": {text}" if text else ""))
            del self.pending[len(self.pending) - len(judged) :]

    def close(self, *, keeps: bool) -> None:
        """Ends what is left of its processes, and deletes its folder."""
        for process_id in processes.marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, 9)
        if not keeps:
            shutil.rmtree(self.folder, ignore_errors=True)
