"""The kernels of a run on a node: how many its cache lacks, and their compilation, before the node gets tasks.

    driver: names ─▶ `num_missing` ─▶ `compile_here`, on all cores ─▶ the cache of the machine ─▶ workers load them

Names are "module:function", of this installation: modules of users are not on a node before its first task.
"""

import os
from collections.abc import Sequence

from datapipe.engine.local import usable_cores
from datapipe.errors import DatapipeError
from datapipe.kernels import kernels_named
from datapipe.kernels.cache import kernels_folder
from datapipe.kernels.compiling import compile_kernels, missing
from datapipe.storage.outages import error_line


def num_missing(names: Sequence[str]) -> int:
    """How many kernels the cache lacks. 0 where the cache keeps none: then each worker compiles those that it needs."""
    return len(missing(names)) if _keeps_files() else 0


def compile_here(names: Sequence[str]) -> list[str]:
    """Compiles what the cache lacks, and waits. Returns what the node lacks, in words: the error of a compilation."""
    try:
        _compile(names)
        for name in missing(names):  # those that other processes compile at the same time
            for kernel in kernels_named(name):
                with kernel.entry.lock():
                    pass
        _compile(names)  # those whose process was killed
    except DatapipeError as error:
        return [f"its {error}"]
    except Exception as error:
        return [f"its kernels do not compile: {error_line(error)}"]
    return []


def _compile(names: Sequence[str]) -> None:
    compile_kernels(names, usable_cores(), lambda name, number, count: None)


def _keeps_files() -> bool:
    folder = kernels_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
