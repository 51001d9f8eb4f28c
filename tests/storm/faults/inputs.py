"""Input files that change while a run reads them: the run names the file, or has read it before; put right, it goes on."""

import os
import shutil
from pathlib import Path

from tests.storm import checks
from tests.storm.rounds import Round, faults


@faults("input", aim=40, is_short=True)
def change_inputs(round: Round) -> None:
    """A file is edited in place, replaced, cut off, lengthened, deleted or made a folder, with its old time or a new one."""
    mixture = checks.write_mixture(round.folder / "changing")
    files = sorted((round.folder / "changing" / "corpus").rglob("*.jsonl"))
    sound = {path: (path.read_bytes(), path.stat()) for path in files}
    for _ in range(1 if round.storm.is_small else 2):
        shutil.rmtree(round.output, ignore_errors=True)
        command = round.run(mixture=mixture)
        wanted = round.rng.randint(1, 7)
        if not round.reaches(command, wanted):
            break
        path = round.rng.choice(files)
        how = change(path, round.rng)
        round.fault(f"{path.name} {how}, {checks.num_records(round.output)} commits")
        ended = round.ended(command)
        if not ended.status:
            checks.check_same(checks.digests(round.output), round.storm.expected)
        content, state = sound[path]
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        round.judge(round.refusal(ended, [path.name]))
    round.ended_well(round.run(mixture=mixture))
    round.check_output(is_verified=False)


def change(path: Path, rng) -> str:
    """Changes a file in one of several ways; says which."""
    content, state = path.read_bytes(), path.stat()
    how = rng.choice(("edited in place", "replaced", "cut off", "lengthened", "deleted", "made a folder"))
    other = content.replace(b"w1", b"x1")
    if how == "replaced":
        path.with_suffix(".new").write_bytes(other)
        path.with_suffix(".new").replace(path)
    elif how in ("deleted", "made a folder"):
        path.unlink()
        if how == "made a folder":
            path.mkdir()
        return how
    else:
        new = {"edited in place": other, "cut off": content[: len(content) // 2], "lengthened": content * 2}[how]
        path.write_bytes(new)
    if rng.random() < 0.5:
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        return f"{how}, with its old time"
    return how
