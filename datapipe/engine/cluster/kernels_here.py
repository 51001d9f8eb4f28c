"""The kernels of a run on a node: how many its cache lacks, and how it gets them, before the node gets tasks.

    driver: names ─▶ `num_missing` ─▶ `compile_here`, on all cores ─▶ the cache of the machine ─▶ workers load them
                                           ▲
    a node like it that has them ─▶ `shared_from_here`

Measured with the 55 kernels of the quickstart: 52 CPU seconds to compile them, 4.5 MB, 0.3 s to take and 0.6 s to load them.

Names are "module:function", of this installation: modules of users are not on a node before its first task.

Compiled kernels are pickles, and so code. They go from node to node by Ray, as tasks do, and never by way of the output: who
can write there cannot run code on nodes. A kernel is taken for the same code alone, and from a machine with the same
processor, its features, and versions of libraries: the name of its file and `version_key` are digests of all that.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from datapipe.dataclass import dataclass, field
from datapipe.engine.local import usable_cores
from datapipe.errors import DatapipeError
from datapipe.kernels import kernels_named
from datapipe.kernels.cache import Entry, kernels_folder
from datapipe.kernels.compiling import compile_kernels, missing
from datapipe.kernels.keys import version_key
from datapipe.machine.cache import data_of, write_checked
from datapipe.storage.outages import error_line


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedKernels:
    """Compiled kernels on their way: files with their checksums, by name, for machines with the same `version_key`."""

    version_key: str
    files: Mapping[str, bytes] = field(repr=False)


def num_missing(names: Sequence[str]) -> int:
    """How many kernels the cache lacks. 0 where the cache keeps none: then each worker compiles those that it needs."""
    return len(missing(names)) if _keeps_files() else 0


def shared_from_here(names: Sequence[str]) -> SharedKernels:
    """The kernels of this cache, without those that it lacks."""
    files: dict[str, bytes] = {}
    for entry in _entries(names):
        with suppress(OSError):
            files[entry.path.name] = entry.path.read_bytes()
    return SharedKernels(version_key=version_key(), files=files)


def compile_here(names: Sequence[str], shared: SharedKernels | None = None) -> list[str]:
    """Takes what the cache lacks from `shared`, compiles the rest, and waits. Returns what the node lacks, in words: the error
    of a compilation."""
    try:
        if shared is not None and shared.version_key == version_key():
            _keep(names, shared.files)
        _compile(names)
        for entry in _entries(missing(names)):  # those that other processes compile at the same time
            with entry.lock():
                pass
        _compile(names)  # those whose process was killed
    except DatapipeError as error:
        return [f"its {error}"]
    except Exception as error:
        return [f"its kernels do not compile: {error_line(error)}"]
    return []


def _entries(names: Sequence[str]) -> Iterator[Entry]:
    return (kernel.entry for name in names for kernel in kernels_named(name))


def _keep(names: Sequence[str], files: Mapping[str, bytes]) -> None:
    for entry in _entries(missing(names)):
        if (data := data_of(files.get(entry.path.name, b""))) is not None:
            with suppress(OSError):  # it is compiled, and that reports why it cannot be stored
                write_checked(entry.path, data)


def _compile(names: Sequence[str]) -> None:
    compile_kernels(names, usable_cores(), lambda name, number, count: None)


def _keeps_files() -> bool:
    folder = kernels_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
