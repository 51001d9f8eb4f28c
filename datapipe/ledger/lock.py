"""One run per output: a second run is refused while the first is alive.

local          flock on work/lock: the kernel releases it with the process, so nothing is left to clean up
object store   work/lock.json, a lease that the run renews; it expires after a crash
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from datapipe.errors import UserError
from datapipe.ledger.names import LEASE, LOCK
from datapipe.storage import Root

LEASE_S = 60.0
_RENEW_S = 15.0


@contextmanager
def exclusive(root: Root) -> Iterator[None]:
    """Holds the output while the block runs. Raises UserError where another run holds it."""
    if root.local is not None:
        with _flock(root):
            yield
    else:
        with _lease(root):
            yield


@contextmanager
def _flock(root: Root) -> Iterator[None]:
    assert root.local is not None
    path = root.local / LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(
            f"output {root.url} cannot be written: {error.strerror} ({error.filename}). Expected a folder that exists or "
            f"can be made, on a disk with room. Set `output:` in the mixture, or give --output."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
            raise UserError(
                f"{root.url}: another run is using this output (process {holder}). "
                f"Wait for it to end, stop it, or give another --output."
            ) from error
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _lease(root: Root) -> Iterator[None]:
    mine = uuid.uuid4().hex
    held = _read_lease(root)
    if held is not None and time.time() - held["renewed"] < LEASE_S:
        raise UserError(
            f"{root.url}: another run is using this output (process {held['process']}). Wait for it to end, stop it, or give "
            f"another --output. If it was killed, its lease expires within {LEASE_S:.0f} seconds."
        )
    _write_lease(root, mine)
    seen = _read_lease(root)
    if seen is None or seen["holder"] != mine:
        raise UserError(f"{root.url}: another run took this output at the same moment. Run again, or give another --output.")
    done = threading.Event()
    renewing = threading.Thread(target=_renew, args=(root, mine, done), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        done.set()
        renewing.join()
        with suppress(OSError):  # the store does not answer; the lease expires by itself
            root.delete(LEASE)


def _renew(root: Root, mine: str, done: threading.Event) -> None:
    while not done.wait(_RENEW_S):
        with suppress(OSError):  # the store does not answer: the run waits for it, and so does the lease
            _write_lease(root, mine)


def _write_lease(root: Root, mine: str) -> None:
    lease = {"holder": mine, "process": f"{os.getpid()} on {socket.gethostname()}", "renewed": time.time()}
    root.write_atomic(LEASE, json.dumps(lease).encode())


def _read_lease(root: Root) -> dict | None:
    try:
        return json.loads(root.read_bytes(LEASE))
    except (FileNotFoundError, ValueError):
        return None
