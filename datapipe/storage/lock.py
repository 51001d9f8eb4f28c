"""One run per output: a second run is refused while the first is alive.

local          flock on work/lock: the kernel releases it with the process
object store   a lease, which a run takes, renews, and may lose:

    work/lock.json      holder, epoch, beat          every write is conditional on the version that the writer knows
    work/deleting-…     what a holder is deleting    written before the lease names it

The lease of a killed run expires by the clock of the store. A run that is paused for longer may wake after another run has
taken the output, so asking for the lease before each step would not help. Instead

- committing is harmless: a task has the first of its records;
- deletions are listed before they begin. The lease of the next holder names the same lists, and that run uses none of them;
- what is replaced is written on condition of the version that stood there while the lease was surely held: a fencing token.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any, Self

from datapipe.errors import DatapipeError, UserError
from datapipe.machine.files import lock_file, release, write_at
from datapipe.storage.conditional import ConditionalStore, ConflictError, Version
from datapipe.storage.root import Root

LOCK = "work/lock"
LEASE = "work/lock.json"
PENDING_DELETIONS = "work/deleting-"
PROBE = "work/probe-"  # begins the names of files that read the clock of a store or show that a node sees OUTPUT
LEASE_S = 60.0  # seconds without a renewal until another run may take the output
_RENEW_S = 15.0
_RETRY_S = 3.0
_MOST_CONFLICTS = 3


class LeaseLostError(DatapipeError):
    """Another run has taken the output. This one deletes and publishes nothing more."""


def exclusive(root: Root) -> OutputLock:
    """A context in which this process alone changes an output. Raises UserError where another run holds it."""
    return OutputLock(root) if root.local is not None else Lease(root)


class OutputLock:
    """The lock of an output on a local disk, which a paused process keeps."""

    pending_deletions: frozenset[str] = frozenset()  # paths that a run which lost the output may still be deleting

    def __init__(self, root: Root) -> None:
        self.root, self._holder = root, f"{os.getpid()} on {socket.gethostname()}"
        self._descriptor = -1

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def take(self) -> None:
        path = Path(self.root.path(LOCK))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = lock_file(path)
        except BlockingIOError as error:
            raise self._taken(path.read_text(errors="replace").strip()) from error
        except OSError as error:
            raise UserError(
                f"output {self.root.url} cannot be written: {error.strerror} ({error.filename}). Expected a folder that exists "
                f"or can be made, on a disk with room. Set `output:` in the mixture, or give --output."
            ) from error
        try:
            os.truncate(self._descriptor, 0)
            write_at(self._descriptor, f"{self._holder}\n".encode(), 0)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        release(self._descriptor)

    def _taken(self, holder: str, until: str = "") -> UserError:
        return UserError(
            f"{self.root.url}: another run is using this output (process {holder or 'unknown'}). Wait for it to end, stop it, "
            f"or give another --output.{until}"
        )

    def check(self) -> None:
        """Raises LeaseLostError where another run is known to have the output. Costs nothing."""

    def check_pending_deletions(self, wanted: Iterable[str]) -> None:
        """Raises DatapipeError where a cleaning that was interrupted, or is paused, deletes a file that is to be published."""
        path = next((path for path in wanted if path in self.pending_deletions), None)
        if path is not None:
            raise DatapipeError(
                f"{self.root.url}: a `datapipe clean` that did not end is deleting {path}, which is to be published. Make "
                f"sure that it no longer runs, end it with `datapipe clean {quote(self.root.url)}`, and run the same command "
                f"again."
            )

    @contextmanager
    def deleting(self, paths: Sequence[str], below: str = "") -> Iterator[None]:
        """A context in which these files and folders may be deleted, even by a process that is paused within it while another
        run takes the output: that run does not use them. With these all pending deletions below the folder `below` are done."""
        yield

    def replace(self, files: Mapping[str, bytes]) -> None:
        """Writes files, in this order. Raises LeaseLostError where a newer run has written one."""
        for path, content in files.items():
            self.root.write_atomic(path, content)


class Lease(OutputLock):
    """The lease of one run. `state`: what it wrote last, with the paths of the lists of pending deletions."""

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        self.store = ConditionalStore(root)
        self.state: dict[str, Any] = {"holder": uuid.uuid4().hex, "process": self._holder, "beat": 0, "pending_deletions": []}
        self._version: Version | None = None
        self._writing = threading.Lock()
        self._lost = ""
        self._done = threading.Event()
        self._renewing = threading.Thread(target=self._keep, name="lease", daemon=True)

    def take(self) -> None:
        """Takes the lease, and renews it until `release`."""
        before, self._version = self._read()
        if before.get("holder"):
            age_s = self.store.age_s(LEASE, PROBE + self.state["holder"])
            if age_s is not None and age_s < LEASE_S:
                until = f" If it was killed, its lease expires within {LEASE_S:.0f} seconds."
                raise self._taken(str(before.get("process")), until)
        pending = before.get("pending_deletions", before.get("condemned", []))  # the name of the first release
        self.state |= {"epoch": before.get("epoch", 0) + 1, "pending_deletions": pending}
        try:
            self._version = self.store.write(LEASE, _bytes(self.state), self._version)
        except ConflictError as error:
            raise UserError(
                f"{self.root.url}: another run took this output at the same moment. Run again, or give another --output."
            ) from error
        self.pending_deletions = frozenset(path for name in pending for path in self._listed(name))
        self._renewing.start()

    def release(self) -> None:
        """Ends the lease, if the store answers; else it expires by itself."""
        self._done.set()
        self._renewing.join()
        with suppress(OSError, LeaseLostError):
            self.renew(holder="")

    def check(self) -> None:
        if self._lost:
            raise LeaseLostError(self._lost)

    def renew(self, **changes: Any) -> None:
        """Writes the lease again, with changes. Raises LeaseLostError where another run has it, OSError without an answer."""
        with self._writing:
            self.check()
            state = {**self.state, **changes, "beat": self.state["beat"] + 1}
            for _ in range(_MOST_CONFLICTS):
                try:
                    self._version = self.store.write(LEASE, _bytes(state), self._version)
                except ConflictError:
                    self._version = self._version_after_conflict()
                else:
                    self.state = state
                    return
            self._lost = f"{self.root.url}: other processes write {LEASE} at the same time"
            self.check()

    def _read(self) -> tuple[dict[str, Any], Version | None]:
        """The state in the lease, empty for a damaged one, and its version; None for no lease."""
        found = self.store.read(LEASE)
        if found is None:
            return {}, None
        with suppress(ValueError):
            state = json.loads(found[0])
            return (state if isinstance(state, dict) else {}), found[1]
        return {}, found[1]

    def _version_after_conflict(self) -> Version:
        """The version of our write without an answer. Raises LeaseLostError for another run."""
        state, version = self._read()
        if version is None or state.get("holder") != self.state["holder"]:
            holder = state.get("process") or "unknown"
            self._lost = (
                f"{self.root.url}: this run did not renew its lease for more than {LEASE_S:.0f} seconds, and another run has "
                f"taken the output since (process {holder}). This one deletes and publishes nothing more, and what it has "
                f"committed stays. When the other has ended, run the same command again"
            )
            raise LeaseLostError(self._lost)
        return version

    def _keep(self) -> None:
        pause_s = _RENEW_S
        while not self._done.wait(pause_s):
            try:
                self.renew()
                pause_s = _RENEW_S
            except LeaseLostError:
                return
            except OSError:  # no answer: the run waits for the store, and so does the lease
                pause_s = _RETRY_S

    @contextmanager
    def deleting(self, paths: Sequence[str], below: str = "") -> Iterator[None]:
        own = f"{PENDING_DELETIONS}{uuid.uuid4().hex}.json"
        before: list[str] = self.state["pending_deletions"]
        if paths:
            self.root.write_atomic(own, json.dumps(sorted(paths)).encode())
        try:
            self.renew(pending_deletions=[*before, own] if paths else before)
        except LeaseLostError:
            self.root.delete(own)  # no lease names it
            raise
        yield
        done = [name for name in before if all(path.startswith(below) for path in self._listed(name))]
        done += [own] if paths else []
        if done:
            self.renew(pending_deletions=[name for name in self.state["pending_deletions"] if name not in done])
        for name in done:
            self.root.delete(name)

    def replace(self, files: Mapping[str, bytes]) -> None:
        known = {path: self.store.version(path) for path in files}
        self.renew()  # held until now, so whatever another run publishes comes after these versions
        for path, content in files.items():
            try:
                self.store.write(path, content, known[path])
            except ConflictError as error:
                raise LeaseLostError(
                    f"{self.root.child_url(path)}: another run has written this file since this run began to publish. It stays "
                    f"as it is. When the other run has ended, run the same command again"
                ) from error

    def _listed(self, name: str) -> list[str]:
        try:
            return json.loads(self.root.read_bytes(name))
        except (FileNotFoundError, ValueError):
            return []


def _bytes(state: dict[str, Any]) -> bytes:
    return json.dumps(state | {"renewed": time.time()}).encode()


def holder(root: Root) -> str:
    if root.local is None:
        with suppress(FileNotFoundError, ValueError, KeyError):
            lease = json.loads(root.read_bytes(LEASE))
            if lease["holder"] and time.time() - lease["renewed"] < LEASE_S:
                return str(lease["process"])
        return ""
    try:
        lock = root.local / LOCK
        inode = lock.stat().st_ino
        # The kernel's list of locks. To ask by taking the lock would stop a run that begins meanwhile.
        locks = map(str.split, Path("/proc/locks").read_text(encoding="ascii").splitlines())
        held = any(len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}") for fields in locks)
        return lock.read_text(errors="replace").strip() or "unknown" if held else ""
    except OSError:
        return ""
