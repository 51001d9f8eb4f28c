"""Many kernels compiled at once, in the background, by processes of their own.

    caller ── names, longest first ──▶ compiler ──fork──▶ compilers, one a core     each: the next kernel that is neither kept
           ◀── a line for each that is done ──────────────────────────────────┘            nor being compiled: compile, keep

The compilers agree by the locks of the cache alone, so whoever needs a kernel at once may compile it too: workers of an engine
take part, and no kernel is compiled twice. Numba is imported once and the others are forked from that process, which saves a
second of each. How long a kernel takes is not known beforehand; the size of the bytecode that it reaches puts the ten longest
of the quickstart's 36 first.

A compiler ends when the caller closes its end of the pipe or is gone, however suddenly. What it had in hand is not kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from datapipe.errors import DatapipeError
from datapipe.kernels import IS_COMPILED, Kernel, import_runtime, kernel_named
from datapipe.kernels.cache import remove_unused

Progress = Callable[[str, int, int], None]
"""Called after each kernel with its name, its number from 1, and how many there are."""


_FEW = 4
"""Processes for what somebody waits for: a loader's kernels take 3 CPU seconds, and every rank of a machine may ask at once."""


def missing(names: Iterable[str]) -> list[str]:
    """Those of the kernels ("datapipe.kernels.text.words:split_words") that the cache does not have, longest first."""
    if not IS_COMPILED:
        return []
    declared = [kernel for name in dict.fromkeys(names) if (kernel := kernel_named(name)) is not None]
    waiting = [kernel for kernel in declared if not kernel.entry.exists()]
    waiting.sort(key=lambda kernel: (-kernel.code.bytecode_bytes, kernel.qualified_name))
    return [kernel.qualified_name for kernel in waiting]


def compile_kernels(names: Iterable[str], workers: int, progress: Progress) -> None:
    """Compiles those of the kernels that the cache does not have, and waits. Raises DatapipeError where one cannot be."""
    with Compilation(names, workers, progress) as compilation:
        compilation.wait()


def compile_at_once(names: Iterable[str]) -> None:
    """Compiles those of the kernels that the cache does not have, and imports numba, before the first of them is called.

    A note goes to standard error where it takes long: the first time on a machine.
    """
    names = missing(names)
    import_runtime()
    if names:
        sys.stderr.write(f"datapipe: compiling {len(names)} kernels, once for this machine …\n")
        compile_kernels(names, _FEW, lambda name, number, count: None)


class Compilation:
    """Kernels being compiled in the background, from `start` to `close`.

    Args:
        names: as `missing` takes them.
        workers: processes at most.
        progress: called in a thread of this object.
    """

    def __init__(self, names: Iterable[str], workers: int, progress: Progress) -> None:
        self._names = missing(names)
        self._num_workers = max(1, min(workers, len(self._names)))
        self._progress = progress
        self._failures: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name="datapipe-compile", daemon=True)

    @property
    def num_kernels(self) -> int:
        """How many are compiled."""
        return len(self._names)

    def __enter__(self) -> Compilation:
        if self._names:
            # -P: the working directory may hold another datapipe, a checkout say
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from datapipe.kernels.compiling import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self._say({"path": sys.path, "names": self._names, "workers": self._num_workers})
            self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Until all are compiled. Raises DatapipeError where one cannot be, or where the compiler has died."""
        if self._process is None:
            return
        self._reader.join()
        status = self._process.wait()
        if self._failures or status:
            reason = "; ".join(self._failures) or f"the compiler exited with status {status}"
            raise DatapipeError(f"kernels cannot be compiled: {reason}")

    def close(self) -> None:
        """Ends what is not finished; kernels that are missing then are compiled by whoever calls them."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def _say(self, order: dict[str, object]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        """Passes on what the compilers tell, until the last of them has gone."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        number = 0
        for line in process.stdout:
            name, error = json.loads(line)
            if error:
                self._failures.append(f"{name}: {error}")
            else:
                number += 1
                self._progress(name, number, len(self._names))


# ------------------------------------------------------------------------------------------------ in the compilers


def main() -> None:
    """A compiler: reads its order from standard input and tells of each kernel on standard output."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the caller decides
    order = json.loads(_read_line())
    sys.path[:] = order["path"]
    remove_unused(time.time())
    kernels = [kernel for name in order["names"] if (kernel := kernel_named(name)) is not None]
    from datapipe.kernels.compiled import refresh

    refresh()
    children = _fork(order["workers"] - 1)
    threading.Thread(target=_end_with_caller, daemon=True).start()
    _compile(kernels)
    for child in children:
        os.waitpid(child, 0)


def _read_line() -> bytes:
    """One line, not a byte more: what follows is left for those who are forked."""
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            os._exit(0)
        line += byte
    return bytes(line)


def _fork(count: int) -> list[int]:
    """Process ids of the children, in the parent; none in a child."""
    children: list[int] = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            return []
        children.append(child)
    return children


def _end_with_caller() -> None:
    os.read(0, 1)  # nothing more is written, so this returns when the pipe is closed
    os._exit(0)


def _compile(kernels: Sequence[Kernel]) -> None:
    for kernel in kernels:
        if kernel.entry.exists():
            continue
        with kernel.entry.lock(wait=False) as is_ours:
            error = _error_of(kernel) if is_ours and not kernel.entry.exists() else None
        if error is not None:
            os.write(1, json.dumps([kernel.name, error]).encode() + b"\n")  # one write, so that lines stay whole


def _error_of(kernel: Kernel) -> str:
    """What is wrong with a kernel that cannot be compiled; empty where it can."""
    from datapipe.kernels.compiled import compile_into

    try:
        compile_into(kernel.function, kernel.signature, kernel.entry)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
