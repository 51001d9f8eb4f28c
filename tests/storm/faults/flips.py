"""One flipped bit at a time, in every kind of file that datapipe writes and reads again.

    of a stopped run     ledger, files of attempts, everything else in work/ ─▶ the same command
    of a finished one    shards, manifests, tokenizer, list of files ─▶ `verify`; records, reports ─▶ what reads them

A flip must be found and named, or must not matter.
"""

import os
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.storm import checks
from tests.storm.forks import command, in_fork
from tests.storm.processes import Ended
from tests.storm.rounds import Round, faults

_STOPS_AFTER = (7, 14, 22, 30, 38, 46, 53)
_READERS: tuple[tuple[str, ...], ...] = (
    ("report",),
    ("report", "--full"),
    ("inspect", "-n", "1"),
    ("inspect", "--dropped", "dedup.exact", "-n", "1"),
    ("snapshots",),
    ("trace", "--step", "0", "--global-batch-size", "4"),
    ("clean", "--dry-run"),
)


def flip(path: Path, rng: random.Random) -> str:
    """Flips a bit of a file, which gets its own copy of the bytes if others are linked to them. Returns where."""
    content = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    state = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as a disk does it
    return f"bit {bit} of byte {place}"


@faults("flip-work", aim=300, is_short=True)
def flip_work(round: Round) -> None:
    """A flip in the working files of a run that was stopped; then the same command."""
    states = round.storm.once("stopped", lambda: _stopped(round))
    number = round.rng.choice(_STOPS_AFTER)
    for _ in range(2 if round.storm.is_small else 6):
        shutil.rmtree(round.output, ignore_errors=True)
        shutil.copytree(states[number], round.output)
        paths = _choose(round)
        for path in paths:
            where = flip(path, round.rng)
            round.fault(f"{where} of {path.relative_to(round.output)}, {number} tasks done")
        line = _run_again(round, paths[-1])  # of the only file whose damage may stop the run
        verified = in_fork(command, ["verify", str(round.output)], environment=round.environment)
        if line or not verified.status:
            checks.check_output(round.output, round.storm.expected)
        if line or verified.status:
            round.refused(line or f"verify: {verified.printed.strip().splitlines()[0]}", 1)
        round.same()


def _choose(round: Round) -> list[Path]:
    """Three records, which run again, and last another file of work/."""
    ledger = _files((round.output / "work" / "ledger").rglob("*"))
    others = round.rng.random() < 0.15
    work = _files((round.output / "work").iterdir() if others else (round.output / "work" / "attempts").rglob("*"))
    return [*round.rng.sample(ledger, min(3, len(ledger))), round.rng.choice(work)]


def _stopped(round: Round) -> dict[int, Path]:
    """Outputs of runs that were stopped after so many tasks."""
    states = {}
    for number in _STOPS_AFTER:
        output = round.storm.folder / f"stopped-{number}"
        arguments = ["run", str(round.storm.mixture), "--output", str(output)]
        ended = in_fork(command, arguments, number, environment=round.environment)
        assert ended.status == 130, ended.errors
        states[number] = output
    return states


@faults("flip-snapshot", aim=300, is_short=True)
def flip_snapshot(round: Round) -> None:
    """A flip in the files of a snapshot; `verify` names the file."""
    shutil.copytree(round.storm.finished, round.output)
    paths = [round.output / name for name in round.storm.expected]
    chosen = [round.rng.choice(paths) for _ in range(5 if round.storm.is_small else 30)]
    flips = [(str(path), round.rng.randrange(1 << 30)) for path in chosen]
    results = in_fork(verify_flipped, str(round.output), flips, environment=round.environment)
    for path, found in zip(chosen, results):
        name = str(path.relative_to(round.output))
        where, status, text = found
        round.fault(f"{where} of {name}")
        folder = name.rpartition("/")[0]
        named = name in text or (name.startswith("snapshots/") and path.name in text) or (folder and folder in text)
        assert status in (1, 2) and named, f"verify ends with {status} and does not name {name}: {text}"
        assert "Traceback" not in text and "defect" not in text, text
        round.refused(text.strip().splitlines()[0])
    ended = _run(round)
    assert ended.status == 0, ended.errors
    checks.check_output(round.output, round.storm.expected)


def verify_flipped(output: str, chosen: Sequence[tuple[str, int]]) -> list[tuple[str, int, str]]:
    """For each file and seed: what was flipped, and the status and words of `verify`. The files are put right again."""
    found = []
    for name, seed in chosen:
        path = Path(name)
        content = path.read_bytes()
        where = flip(path, random.Random(seed))
        own = path.relative_to(output).parts
        snapshot = ["--snapshot", own[1]] if own[0] == "snapshots" and seed % 2 else []
        ended = command(["verify", output, *snapshot])
        found.append((where, ended.status, ended.printed + ended.errors))
        path.write_bytes(content)
    return found


@faults("flip-records", aim=150)
def flip_records(round: Round) -> None:
    """A flip in a finished run's records, reports and index; a command that reads them, then the run again."""
    for _ in range(10):
        shutil.rmtree(round.output, ignore_errors=True)
        shutil.copytree(round.storm.finished, round.output)
        published = {round.output / name for name in round.storm.expected}
        paths = _files(round.output.rglob("*"))
        path = round.rng.choice([path for path in paths if path not in published and "attempts" not in path.parts])
        where = flip(path, round.rng)
        reader = round.rng.choice(_READERS)
        round.fault(f"{where} of {path.relative_to(round.output)}; datapipe {' '.join(reader)}")
        read = in_fork(command, [reader[0], str(round.output), *reader[1:]], environment=round.environment)
        round.refusal(read, [path.name, str(round.output)])
        line = _run_again(round, path)
        checks.check_output(round.output, round.storm.expected)
        round.judge(line or (read.last_line if read.status else ""))


def _run_again(round: Round, path: Path) -> str:
    """The same command after damage to a file. If it refuses, the file is deleted, as its message says; returns the message."""
    ended = _run(round)
    line = round.refusal(ended, [str(path.relative_to(round.output)), path.name])
    if line:
        path.unlink(missing_ok=True)
        ended = _run(round)
        assert ended.status == 0, f"the file is deleted, and the same command ends with {ended.status}: {ended.errors[-1000:]}"
    return line


def _files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_file() and path.stat().st_size)


def _run(round: Round) -> Ended:
    arguments = ["run", str(round.storm.mixture), "--output", str(round.output)]
    return in_fork(command, arguments, environment=round.environment)
