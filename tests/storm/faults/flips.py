"""One flipped bit at a time, in every kind of file that datapipe writes and reads again.

    of a stopped run     ledger, files of attempts, everything else in work/ ─▶ the same command
    of a finished one    shards, manifests, tokenizer, list of files ─▶ `verify`; records, reports ─▶ what reads them
    beside them          states of loaders, look-up files, compiled kernels

A flip must be found and named, or must not matter.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from datapipe.kernels.cache import kernels_folder
from tests.storm import checks
from tests.storm.forks import command, in_fork
from tests.storm.processes import Ended
from tests.storm.rounds import Round

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


def flip(path: Path, rng) -> str:
    """Flips a bit of a file, which gets its own copy of the bytes if others are linked to them. Returns where."""
    content = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    state = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as a disk does it
    return f"bit {bit} of byte {place}"


class StoppedFlip:
    """A flip in the working files of a run that was stopped; then the same command."""

    name = "flip-work"
    aim = 300
    is_short = True

    def play(self, round: Round) -> None:
        states = round.storm.once("stopped", lambda: self._stopped(round))
        number = round.rng.choice(_STOPS_AFTER)
        for _ in range(2 if round.storm.is_small else 6):
            shutil.rmtree(round.output, ignore_errors=True)
            shutil.copytree(states[number], round.output)
            paths = self._choose(round)
            for path in paths:
                where = flip(path, round.rng)
                round.fault(f"{where} of {path.relative_to(round.output)}, {number} tasks done")
            self._judge(round, paths[-1])

    def _choose(self, round: Round) -> list[Path]:
        """Three records, which run again, and last another file of work/."""
        ledger = _files((round.output / "work" / "ledger").rglob("*"))
        others = round.rng.random() < 0.15
        work = _files((round.output / "work").iterdir() if others else (round.output / "work" / "attempts").rglob("*"))
        return [*round.rng.sample(ledger, min(3, len(ledger))), round.rng.choice(work)]

    def _judge(self, round: Round, path: Path) -> None:
        """The verdict, where `path` is the only file whose damage may stop the run."""
        ended = _run(round)
        if ended.status == 0:
            verified = in_fork(command, ["verify", str(round.output)], environment=round.environment)
            if verified.status == 0:
                checks.check_output(round.output, round.storm.expected)
            else:
                round.refused(f"verify: {verified.printed.strip().splitlines()[0]}", 1)
            round.same()
            return
        name = str(path.relative_to(round.output))
        line = round.check_refusal(ended, [name])
        path.unlink(missing_ok=True)  # as the message says
        again = _run(round)
        assert again.status == 0, f"the file is deleted, and the same command ends with {again.status}: {again.errors[-1000:]}"
        checks.check_output(round.output, round.storm.expected)
        round.refused(line, 1)
        round.same()

    def _stopped(self, round: Round) -> dict[int, Path]:
        """Outputs of runs that were stopped after so many tasks."""
        states = {}
        for number in _STOPS_AFTER:
            output = round.storm.folder / f"stopped-{number}"
            arguments = ["run", str(round.storm.mixture), "--output", str(output)]
            ended = in_fork(command, arguments, number, environment=round.environment)
            assert ended.status == 130, ended.errors
            states[number] = output
        return states


class PublishedFlip:
    """A flip in the files of a snapshot; `verify` names the file."""

    name = "flip-snapshot"
    aim = 300
    is_short = True

    def play(self, round: Round) -> None:
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
    import random

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


class RecordFlip:
    """A flip in a finished run's records, reports and index; a command that reads them, then the run again."""

    name = "flip-records"
    aim = 150
    is_short = False

    def play(self, round: Round) -> None:
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
            if read.status:
                round.check_refusal(read, [path.name, str(round.output)])
            ended = _run(round)
            if ended.status:
                line = round.check_refusal(ended, [str(path.relative_to(round.output)), path.name])
                path.unlink()
                ended = _run(round)
                assert ended.status == 0, ended.errors
                checks.check_output(round.output, round.storm.expected)
                round.refused(line)
            else:
                checks.check_output(round.output, round.storm.expected)
                if read.status:
                    round.refused(read.last_line)
                else:
                    round.same()


class BesideFlip:
    """Flips in states of loaders, look-up files and compiled kernels."""

    name = "flip-beside"
    aim = 250
    is_short = False

    def play(self, round: Round) -> None:
        kinds: Sequence[tuple[str, Callable]] = (
            ("state", flipped_states),
            ("look-up", flipped_look_ups),
            ("kernel", flipped_kernels),
        )
        kind, function = kinds[round.number % len(kinds)]
        shutil.copytree(round.storm.finished, round.output)
        seeds = [round.rng.randrange(1 << 30) for _ in range(25)]
        own_cache = {"XDG_CACHE_HOME": str(round.folder / "cache")}
        if kind == "kernel":
            shutil.copytree(kernels_folder(), round.folder / "cache" / "datapipe" / "kernels")
        for where, verdict in in_fork(
            function, str(round.output), seeds, environment={**round.environment, **(own_cache if kind == "kernel" else {})}
        ):
            round.fault(f"{where} of a {kind}")
            assert not verdict.startswith("wrong"), verdict
            round.same() if verdict == "same" else round.refused(verdict)


def flipped_states(output: str, seeds: Sequence[int]) -> list[tuple[str, str]]:
    """States of a loader as JSON, with a flipped bit each: refused, or the batches go on as they would have."""
    import random

    import numpy as np

    from datapipe.errors import DatapipeError
    from datapipe.loader import Loader

    loader = Loader(output, global_batch_size=4)
    for _ in range(3):
        next(loader)
    saved = json.dumps(loader.state_dict()).encode()
    expected = [next(loader)["input_ids"].copy() for _ in range(3)]
    found = []
    for seed in seeds:
        rng, content = random.Random(seed), bytearray(saved)
        place, bit = rng.randrange(len(content)), rng.randrange(8)
        content[place] ^= 1 << bit
        where = f"bit {bit} of byte {place}"
        try:
            state = json.loads(content)
        except ValueError:
            found.append((where, "no JSON any more"))
            continue
        fresh = Loader(output, global_batch_size=4)
        try:
            fresh.load_state_dict(state)
        except DatapipeError as error:
            found.append((where, str(error)))
            continue
        same = all(np.array_equal(next(fresh)["input_ids"], batch) for batch in expected)
        found.append((where, "same" if same else f"wrong: the loader goes on elsewhere, with {content.decode()}"))
    return found


def flipped_look_ups(output: str, seeds: Sequence[int]) -> list[tuple[str, str]]:
    """Look-up files with a flipped bit each: made anew, or the answers are right."""
    import random

    from datapipe.browse.lookup.making import look_up
    from datapipe.browse.output import BrowsedOutput

    def tell(documents: int, total: int, seconds: float) -> None:
        """Says nothing."""

    browsed = BrowsedOutput.open(output)
    look_up(browsed, tell)
    (path,) = (path for path in (Path(output) / "work" / "browse").iterdir() if path.name != "lock")
    sound = path.read_bytes()
    found = []
    for seed in seeds:
        where = flip(path, random.Random(seed))
        try:
            look_up(browsed, tell)
        except Exception as error:
            found.append((where, f"wrong: {type(error).__name__}: {error}"))
        else:
            is_sound = path.read_bytes() == sound
            found.append((where, "same" if is_sound else "wrong: the flipped look-up file is used"))
        path.write_bytes(sound)
    return found


def flipped_kernels(output: str, seeds: Sequence[int]) -> list[tuple[str, str]]:
    """Compiled kernels with a flipped bit each count as absent."""
    import random

    from datapipe.machine_cache import cache_home, read_checked

    paths = _files((cache_home() / "kernels").rglob("*.bin"))
    found = []
    for seed in seeds:
        rng = random.Random(seed)
        path = rng.choice(paths)
        sound = path.read_bytes()
        where = flip(path, rng)
        found.append((f"{where} of {path.name}", "made anew" if read_checked(path) is None else "wrong: damaged, and loaded"))
        path.write_bytes(sound)
    return found


def _files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_file() and path.stat().st_size)


def _run(round: Round) -> Ended:
    arguments = ["run", str(round.storm.mixture), "--output", str(round.output)]
    return in_fork(command, arguments, environment=round.environment)


FAULTS = (StoppedFlip(), PublishedFlip(), RecordFlip(), BesideFlip())
