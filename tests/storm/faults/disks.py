"""Disks that fail: calls that return errors, disks that fill up, that become read-only, that lose power.

calls     failing_calls.c fails one call in some hundred below OUTPUT: EIO, ENOSPC, EDQUOT, ESTALE, EROFS, EACCES
full      a tmpfs of a few hundred KiB; room is made while the run waits, or before the same command
loop      ext4 on a loop device: an error of the file system makes it read-only for good; fsck, mounted again
thin      the same on a backing store that fills up: data that was not flushed is lost, and fsync tells
power     the same with a journal that commits once in 5 minutes, copied without a flush: what was not fsynced is gone
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.storm import checks, processes
from tests.storm.rounds import Round, SkipError, faults
from tests.support.cli_processes import wait_until
from tests.support.small_disk import Resize, small_disk

_ERRORS = (errno.EIO, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EROFS, errno.EACCES)
_IMPATIENT = ("--set", "execution.max_infrastructure_retries=3", "--set", "execution.check_disk=false")
_ROOMY = 256 << 20
_IMAGE_BYTES = 96 << 20
_DISK_WORDS = ("disk", "read-only", "input/output", "quota", "stale", "permission denied", "no space")


@faults("disk-error", aim=50, is_short=True)
def disk_error(round: Round) -> None:
    """Commands of which one call in some hundred fails, one after the other, then the same command without."""
    library = round.storm.library("failing_calls")
    for _ in range(1 if round.storm.is_small else 3):
        number = round.rng.choice(_ERRORS)
        log = round.folder / f"failed-{round.num_commands}"
        environment = {
            "LD_PRELOAD": library,
            "STORM_FOLDER": str(round.output),
            "STORM_EVERY": str(round.rng.choice((150, 300, 600))),
            "STORM_SEED": str(round.rng.randrange(1 << 30)),
            "STORM_ERRNO": str(number),
            "STORM_LOG": str(log),
        }
        ended = round.ended(round.run(*_IMPATIENT, environment=environment))
        failed = log.read_text().splitlines() if log.exists() else []
        for line in failed:
            call, _, path = line.partition(" ")
            round.fault(f"{errno.errorcode[number]} of {call}({os.path.relpath(path, round.output)})")
        if not ended.status:
            checks.check_same(checks.digests(round.output), round.storm.expected)
        round.judge(round.refusal(ended, (*_DISK_WORDS, os.strerror(number))))
    round.end_undisturbed()
    round.check_output(is_verified=False)


@faults("disk-full", aim=20)
def disk_full(round: Round) -> None:
    """A disk of a few hundred KiB. Room is made while the run waits, or after it stopped."""
    round.output = round.folder / "disk" / "out"
    size = round.rng.randrange(64 << 10, 1400 << 10)
    with _small_disk(round.output.parent, size) as resize:
        waits = round.rng.random() < 0.5
        command = round.run("--set", "execution.check_disk=false", *(() if waits else _IMPATIENT[:2]))
        round.fault(f"a disk of {size >> 10} KiB, room is made {'while the run waits' if waits else 'after it'}")
        if waits:
            wait_until(lambda: command.is_over or command.says("disk is full"), "full disk")
            resize(_ROOMY)
        line = round.refusal(round.ended(command), ("the disk is full",))
        resize(_ROOMY)
        round.finish(line)


@faults("disk-broken", aim=20)
def disk_broken(round: Round) -> None:
    """ext4 on a loop device that becomes read-only, loses what is not flushed, or loses power."""
    kind = ("read-only", "thin", "power")[round.number % 3]
    store = round.folder / "store"
    round.output = store / "disk" / "out"
    with ExitStack() as stack:
        resize = stack.enter_context(_small_disk(store, _ROOMY))
        _run("mount", "--make-shared", str(store))  # so that no other process's mount namespace keeps the disk mounted
        disk = LoopDisk(store / "image", store / "disk")
        disk.mount("commit=300" if kind == "power" else "commit=1")
        stack.callback(disk.unmount)
        line = _break(round, kind, disk, resize)
        round.finish(line, is_verified=True)


def _break(round: Round, kind: str, disk: LoopDisk, resize: Resize) -> str:
    wanted = round.rng.randint(1, 50)
    if kind == "thin":
        held = disk.image.stat().st_blocks * 512
        resize(held + (1 << 20) + wanted * (16 << 10))
    command = round.run(*_IMPATIENT)
    round.reaches(command, wanted)
    if kind == "power":
        return _cut_power(round, command, disk)
    if kind == "read-only":
        disk.fail()
        round.fault(f"ext4 becomes read-only after {checks.num_records(round.output)} commits")
    else:
        round.fault(f"the store below ext4 has room for {1024 + 16 * wanted} KiB more")
    line = round.refusal(round.ended(command), _DISK_WORDS)
    resize(_ROOMY)
    disk.repair()
    return line


def _cut_power(round: Round, command: processes.Command, disk: LoopDisk) -> str:
    """Stops all processes and goes on with a copy of the disk's blocks, as they are at that moment."""
    stopped = [command.pid, *processes.workers_of(command)]
    for process_id in stopped:
        os.kill(process_id, signal.SIGSTOP)
    committed = checks.num_records(round.output)
    shutil.copyfile(disk.image, disk.image.with_suffix(".copy"))
    command.kill_group()
    round.ended(command)
    disk.cut_power()
    round.fault(f"power cut after {committed} commits; {checks.num_records(round.output)} records are on the disk")
    return ""


class LoopDisk:
    """ext4 in a file, on a loop device."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder, self.options = image, folder, ""
        with open(image, "wb") as file:
            file.truncate(_IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-m0", str(image))
        folder.mkdir()

    def mount(self, options: str) -> None:
        self.options = options
        _run("mount", "-o", f"loop,errors=remount-ro,{options}", str(self.image), str(self.folder))

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)

    def _unmounted(self) -> None:
        """Unmounts it, once the last process that was killed has closed its files."""
        unmount = ["umount", str(self.folder)]
        wait_until(lambda: subprocess.run(unmount, capture_output=True, check=False).returncode == 0, "unmount", 20)

    def fail(self) -> None:
        """An error of the file system, after which it is read-only."""
        device = _run("findmnt", "-n", "-o", "SOURCE", str(self.folder)).strip()
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """As somebody does it: unmounted, checked, mounted again."""
        self._unmounted()
        checked = subprocess.run(["e2fsck", "-fy", str(self.image)], capture_output=True, text=True, check=False)
        assert checked.returncode in (0, 1, 2), checked.stdout
        self.mount(self.options)

    def cut_power(self) -> None:
        """Goes on with the copied blocks: the journal is replayed, and what was never flushed is gone."""
        self._unmounted()
        os.replace(self.image.with_suffix(".copy"), self.image)
        self.mount(self.options)


@contextmanager
def _small_disk(folder: Path, num_bytes: int) -> Iterator[Resize]:
    try:
        with small_disk(folder, num_bytes) as resize:
            yield resize
    except pytest.skip.Exception as error:
        raise SkipError(str(error)) from error


def _run(*arguments: str) -> str:
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SkipError(f"there is no {arguments[0]} command") from error
    if done.returncode:
        raise SkipError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
