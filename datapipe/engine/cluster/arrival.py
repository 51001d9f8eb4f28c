"""Whether a node can run tasks, found out on the node itself before it runs the first one.

    driver: Expectation ─▶ node: lacks_here ─▶ what the node lacks, in words; nothing for a node that is fit

A node is unlike the others in what is installed on it and in what it sees. Other versions may give other bytes, so they are
refused. OUTPUT must be the driver's own: a node sees a file that the driver has just written, and the driver sees the answer
that the node writes beside it. A local folder of the same name on another machine passes neither.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from datapipe.credentials import masked
from datapipe.machine.libraries import installed_version
from datapipe.records.source_code import source_digest
from datapipe.storage.outages import error_line, free_bytes
from datapipe.storage.root import Root, open_input

_PACKAGES = ("datapipe", "numba", "pyarrow", "numpy", "fastokens", "tokenizers")
_SOURCE = "source of datapipe"

_THREADS = 8

LEAST_FREE_BYTES = 16 << 20
"""Room that a node's own disk must have, for shipped stages and compiled kernels: those of the quickstart take 4 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What every node of a run must have.

    Attributes:
        versions: of the driver, by name.
        output: URL.
        probe: a file in OUTPUT that the driver has written for this run.
        inputs: URLs of the first file of each source.
    """

    versions: Mapping[str, str]
    output: str
    probe: str
    inputs: tuple[str, ...]

    def answer(self, node_id: str) -> str:
        """The file by which a node shows that the driver sees what it writes."""
        return f"{self.probe}-{node_id}"


@lru_cache(maxsize=1)
def versions_here() -> Mapping[str, str]:
    """The versions on which the bytes of outputs may depend."""
    return {
        "Python": platform.python_version(),
        **{name: installed_version(name) for name in _PACKAGES},
        _SOURCE: source_digest()[:12],
    }


# ------------------------------------------------------------------------------------------------ on the node


def other_versions(expected: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """The versions that differ, in words that name both."""
    names = [name for name in expected if here.get(name, "none") != expected[name]]
    if names == [_SOURCE]:
        return [f"it has datapipe {here.get('datapipe', 'none')} with other source code than the driver"]
    return [f"it has {name} {here.get(name, 'none')}, and the driver has {expected[name]}" for name in names if name != _SOURCE]


def lacks_here(expected: Expectation, node_id: str = "") -> list[str]:
    """What this node lacks. Never raises an exception.

    Args:
        node_id: of a node that shall write an answer, which the driver deletes; empty for a process of a node.
    """
    lacks = other_versions(expected.versions, versions_here())
    if lacks:
        return lacks
    return [*_local_lacks(), *_output_lacks(expected, node_id), *_unseen(expected.inputs)]


def _output_lacks(expected: Expectation, node_id: str) -> list[str]:
    try:
        root = Root(expected.output)
        if not root.exists(expected.probe):
            return [masked(f"it does not see what the driver writes to {expected.output}")]
        if node_id:
            root.write_atomic(expected.answer(node_id), b"datapipe")
    except Exception as error:
        return [masked(f"it cannot use {expected.output}: {error_line(error)}")]
    return []


def _unseen(urls: Iterable[str]) -> list[str]:
    def unseen(url: str) -> str:
        try:
            open_input(url).close()
        except Exception as error:
            return masked(f"it does not see {url}: {error_line(error)}")
        return ""

    with ThreadPoolExecutor(_THREADS) as pool:
        return [text for text in pool.map(unseen, urls) if text]


def _local_lacks() -> list[str]:
    """Whether the node has room for temporary files."""
    try:
        folder = tempfile.gettempdir()
    except OSError as error:
        return [f"it has no folder for temporary files: {error_line(error)}"]
    free = free_bytes(folder)
    return [f"its disk is full: {folder}"] if free is not None and free < LEAST_FREE_BYTES else []
