"""One run per output: a second run is refused while the first is alive.

local          flock on work/lock: the kernel releases it with the process, so nothing is left to clean up
object store   work/lock.json, a lease that the run renews (`lease.py`)
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from datapipe.errors import UserError
from datapipe.ledger.hold import Hold
from datapipe.ledger.lease import leased
from datapipe.ledger.names import LOCK
from datapipe.storage import Root


def exclusive(root: Root) -> AbstractContextManager[Hold]:
    """Holds the output while the block runs. Raises UserError where another run holds it, LeaseLostError where one took it."""
    return _flock(root) if root.local is not None else leased(root)


@contextmanager
def _flock(root: Root) -> Iterator[Hold]:
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
        yield Hold(root)
    finally:
        os.close(descriptor)
