"""Compiles many kernels at once, in the background, in separate processes.

    caller ── names, longest first ──▶ compiler ──fork──▶ compilers, one per core    each takes the next kernel that is neither
           ◀── a line per finished kernel ──────────────────────────────────┘        stored nor being compiled

The locks of the cache are the only coordination, so a worker may compile a kernel that it needs at once. The compilers are
forked from one process that has imported numba, which saves a second each. Kernels are ranked by the size of the bytecode
that they reach. A compiler ends when the caller closes the pipe or dies; its unfinished kernel is not stored.
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
from datapipe.kernels import IS_COMPILED, Kernel, import_runtime, kernels_named
from datapipe.kernels.cache import remove_unused

Progress = Callable[[str, int, int], None]
"""Called after each kernel with its name, its number from 1, and the number of kernels."""


_FEW = 4
"""Processes where a caller waits: the kernels of a loader take 3 CPU seconds, and all ranks of a machine may start at once."""

_MAIN = "from datapipe.kernels.compiling import main; main()"


def missing(names: Iterable[str]) -> list[str]:
    """The kernels ("datapipe.kernels.text.words:split_words") that the cache does not hold, longest first."""
    if not IS_COMPILED:
        return []
    named = [kernel for name in dict.fromkeys(names) for kernel in kernels_named(name) if not kernel.is_loaded]
    waiting = [kernel for kernel in named if not kernel.entry.path.exists()]
    waiting.sort(key=lambda kernel: (-kernel.code.bytecode_bytes, kernel.qualified_name))
    return [kernel.qualified_name for kernel in waiting]


def compile_kernels(names: Iterable[str], workers: int, progress: Progress) -> None:
    """Compiles the kernels that the cache does not hold, and waits. Raises DatapipeError where a kernel does not compile."""
    with Compilation(names, workers, progress) as compilation:
        compilation.wait()


def compile_at_once(names: Iterable[str]) -> None:
    """Compiles missing kernels, with a line on standard error, and imports numba."""
    import_runtime()
    with Compilation(names, _FEW, lambda name, number, count: None) as compilation:
        if compilation.num_kernels:
            sys.stderr.write(f"datapipe: compiling {compilation.num_kernels} kernels, once for this machine …\n")
        compilation.wait()


class Compilation:
    """Kernels being compiled in the background inside a `with` block, by at most `workers`
    processes. `num_kernels`, known inside the block, counts those that the cache does not hold."""

    def __init__(self, names: Iterable[str], workers: int, progress: Progress) -> None:
        self.num_kernels = 0
        self._names = names
        self._max_workers = workers
        self._progress = progress
        self._failures: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name="datapipe-compile", daemon=True)

    def __enter__(self) -> Compilation:
        waiting = missing(self._names)
        self.num_kernels = len(waiting)
        if waiting:
            # -P: the working directory may contain another datapipe, for example a checkout
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN, str(min(self._max_workers, len(waiting))), *waiting],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self._reader.start()
        return self

    def wait(self) -> None:
        """Waits for all kernels. Raises DatapipeError where a kernel does not compile or the compiler dies."""
        if self._process is None:
            return
        self._reader.join()
        status = self._process.wait()
        if self._failures or status:
            reason = "; ".join(self._failures) or f"the compiler exited with status {status}"
            raise DatapipeError(f"kernels do not compile: {reason}")

    def __exit__(self, *_: object) -> None:
        """Ends the compilers. The first caller of an unfinished kernel compiles it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def _read(self) -> None:
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
                self._progress(name, number, self.num_kernels)


def main() -> None:
    """A compiler of the kernels that the command line names. Reports each on standard output."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the caller decides
    workers, *names = sys.argv[1:]
    remove_unused(time.time())
    kernels = [kernel for name in names for kernel in kernels_named(name)]
    from datapipe.kernels.compiled import refresh

    refresh()
    children = _fork(int(workers) - 1)
    threading.Thread(target=_end_with_caller, daemon=True).start()
    _compile(kernels)
    for child in children:
        os.waitpid(child, 0)


def _fork(count: int) -> list[int]:
    """Process ids of the children in the parent; an empty list in a child."""
    children: list[int] = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            return []
        children.append(child)
    return children


def _end_with_caller() -> None:
    os.read(0, 1)  # the caller writes nothing, so the read returns when the pipe closes
    os._exit(0)


def _compile(kernels: Sequence[Kernel]) -> None:
    for kernel in kernels:
        if kernel.entry.path.exists():
            continue
        with kernel.entry.lock(wait=False) as is_ours:
            error = _error_of(kernel) if is_ours and not kernel.entry.path.exists() else None
        if error is not None:
            os.write(1, json.dumps([kernel.name, error]).encode() + b"\n")  # one write, so that lines stay whole


def _error_of(kernel: Kernel) -> str:
    from datapipe.kernels.compiled import compile_into

    try:
        compile_into(kernel.function, kernel.signature, kernel.entry)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
