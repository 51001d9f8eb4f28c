"""What runs on a node: the check whether it can run tasks, the modules of the user, and a supervised worker.

    driver: Expectation, Order ─▶ node fit? has files? ─▶ install_modules ─▶ supervise ─▶ record or failure
                                     └─▶ what the node lacks, in words; the driver sends the task elsewhere

Other versions may give other bytes, so they are refused. OUTPUT must be the driver's own: a node
sees a file that the driver has just written, and the driver sees the answer that the node writes
beside it. A local folder of the same name on another machine passes neither. The check also copies
the files that options of stages name from OUTPUT to the node, once a node.

A process checks its node before its first task, and again after a failure that the node may have caused: mounts disappear
and disks fill up during a run. It reports before it checks, so that a disk that hangs is found.
"""

import importlib
import os
import pickle
import platform
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from datapipe.config.execution import ExecutionSpec
from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.engine.protocol import Failure, Message
from datapipe.engine.workers.supervisor import Report, start_time, supervise
from datapipe.machine.activity import Activity
from datapipe.machine.libraries import installed_version
from datapipe.records.option_files import OptionFile, unavailable
from datapipe.records.outputs import Record
from datapipe.records.source_code import source_digest
from datapipe.steps.kind import Task
from datapipe.storage.outages import error_line, free_bytes
from datapipe.storage.root import Root, open_input

_PACKAGES = ("datapipe", "numba", "pyarrow", "numpy", "fastokens", "tokenizers")
_SOURCE = "source of datapipe"
INSTALLED = ("datapipe", "stages")
"""Packages that every node has. Every other package that defines a stage is shipped."""

_MAY_BE_OF_THE_NODE = frozenset({"infrastructure", "task", "user"})  # kinds of failure
_THREADS = 8

LEAST_FREE_BYTES = 16 << 20
"""Free space for shipped stages and compiled kernels; the quickstart takes 4 MB."""

Ended = tuple[list[str], Record | None, Failure | None]
"""What the node lacks, and the end of the attempt; neither a record nor a failure if the node was unfit before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What every node of a run must have: the `versions` of the driver, `probe`, a file that the driver has written to
    `output` for this run, `inputs`, the URL of the first file of each source, and `files`, which options of stages name."""

    versions: Mapping[str, str]
    output: str
    probe: str
    inputs: tuple[str, ...]
    files: tuple[OptionFile, ...] = ()

    def answer(self, node_id: str) -> str:
        """The file that a node writes for the driver to see."""
        return f"{self.probe}-{node_id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One attempt at a task, as it travels. `task` is pickled."""

    expectation: Expectation
    task: bytes
    label: str
    attempt: str
    modules: Mapping[str, bytes]
    limits: ExecutionSpec

    def to_bytes(self) -> bytes:
        """A pickle, compressed: 256 files of a task are 48 kB, and 22 so."""
        return zlib.compress(pickle.dumps(self), 1)


_fit_for: set[str] = set()  # Probes of the runs that this process has checked its node for


def run_attempt(order: Order, send: Callable[[Report], bool]) -> Ended:
    """Runs an order. Failures are returned: errors mean that the cluster lost the task."""
    if lacks := _lacks(order, send):
        return lacks, None, None
    record, failure = supervise(pickle.loads(order.task), order.expectation.output, order.attempt, order.limits, send)
    is_doubtful = failure is not None and failure.kind in _MAY_BE_OF_THE_NODE
    return lacks_here(order.expectation) if is_doubtful else [], record, failure


def _lacks(order: Order, send: Callable[[Report], object]) -> list[str]:
    probe = order.expectation.probe
    if probe not in _fit_for:
        message = Message(attempt=order.attempt, task=order.label, activity=Activity(work="check the node"))
        process_id = os.getpid()
        send(Report(number=0, message=message, process_id=process_id, started=start_time(process_id)))
        if lacks := lacks_here(order.expectation):
            return lacks
        _fit_for.add(probe)
    try:
        install_modules(order.modules)
    except OSError as error:
        return [f"it cannot keep the modules of the stages: {error}"]
    return []


@lru_cache(maxsize=1)
def versions_here() -> Mapping[str, str]:
    """The versions on which the bytes of outputs may depend."""
    versions = {name: installed_version(name) for name in _PACKAGES}
    return {"Python": platform.python_version(), **versions, _SOURCE: source_digest()[:12]}


def other_versions(expected: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    names = [name for name in expected if here.get(name, "none") != expected[name]]
    if names == [_SOURCE]:
        return [f"it has datapipe {here.get('datapipe', 'none')} with other source code than the driver"]
    return [f"it has {name} {here.get(name, 'none')}, and the driver has {expected[name]}" for name in names if name != _SOURCE]


def lacks_here(expected: Expectation, node_id: str = "") -> list[str]:
    """What this node lacks. Never raises an exception.

    Args: node_id: of a node that writes an answer, which the driver deletes; empty for a process of
        a node.
    """
    lacks = other_versions(expected.versions, versions_here())
    lacks = lacks or [*_local_lacks(), *_output_lacks(expected, node_id), *_unseen(expected.inputs)]
    return lacks or _unavailable(expected)


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


def _unavailable(expected: Expectation) -> list[str]:
    root = Root(expected.output)
    with ThreadPoolExecutor(_THREADS) as pool:
        return [text for text in pool.map(lambda file: unavailable(file, root), expected.files) if text]


def _local_lacks() -> list[str]:
    try:
        folder = tempfile.gettempdir()
    except OSError as error:
        return [f"it has no folder for temporary files: {error_line(error)}"]
    free = free_bytes(folder)
    return [f"its disk is full: {folder}"] if free is not None and free < LEAST_FREE_BYTES else []


def user_modules(task: Task) -> dict[str, bytes]:
    """The sources of the modules of a task and its stages that a node may lack, by path relative to an import root.

    Of a package all files travel; of one without `__init__.py`, which may be any folder, the modules that are imported here.
    """
    classes = [type(task), *(type(bound.stage) for bound in task.stages_run)]
    tops = {each.__module__.partition(".")[0] for each in classes}
    return {path: content for top in tops.difference(INSTALLED) for path, content in module_sources(top).items()}


def module_sources(top: str) -> dict[str, bytes]:
    """The files of an imported module or package, by path relative to its import root."""
    origin = sys.modules[top].__file__
    if origin is None:
        return {path: Path(file).read_bytes() for path, file in _imported(top)}
    file = Path(origin)
    is_package = file.name == "__init__.py"
    base, files = (file.parent.parent, sorted(file.parent.rglob("*.py"))) if is_package else (file.parent, [file])
    return {str(path.relative_to(base)): path.read_bytes() for path in files}


def _imported(top: str) -> Iterable[tuple[str, str]]:
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.startswith(f"{top}.") and file.endswith(".py"):
            yield name.replace(".", "/") + ("/__init__.py" if Path(file).name == "__init__.py" else ".py"), file


_shipped: dict[frozenset[tuple[str, bytes]], tempfile.TemporaryDirectory[str]] = {}
"""The folders of shipped modules, by their content. They are deleted with this process, whose worker imports from them."""


def install_modules(modules: Mapping[str, bytes]) -> None:
    """Makes shipped modules importable, from a folder that only this user can open."""
    content = frozenset(modules.items())
    if not modules or content in _shipped:
        return
    folder = tempfile.TemporaryDirectory(prefix="datapipe-modules-")
    for name, source in modules.items():
        path = Path(folder.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
    _shipped[content] = folder
    sys.path.insert(0, folder.name)
    importlib.invalidate_caches()
