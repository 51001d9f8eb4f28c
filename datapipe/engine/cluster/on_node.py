"""What a task of the cluster does on its node: it checks the node, makes the user's stages importable, and supervises a worker.

    Order ─▶ node fit? ─▶ install_modules ─▶ supervise ─▶ record or failure
               └─▶ what the node lacks, and the driver sends the task elsewhere

A process looks at its node before its first task, and again after a failure that the node may have caused: mounts go away and
disks fill up during a run. It reports before it looks, so that a disk that hangs is found.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from datapipe.config.execution import ExecutionSpec
from datapipe.engine.cluster.arrival import Expectation, lacks_here
from datapipe.engine.protocol import Failure, Message
from datapipe.engine.workers.supervisor import Report, start_time, supervise
from datapipe.errors import UserError
from datapipe.machine.activity import Activity
from datapipe.machine.cache import cache_home
from datapipe.machine.files import write_atomic
from datapipe.records.outputs import Record
from datapipe.steps.kind import Task

Ended = tuple[list[str], Record | None, Failure | None]
"""What the node lacks, and the end of the attempt; of a node that was not fit before it, neither a record nor a failure."""

_MAY_BE_OF_THE_NODE = frozenset({"infrastructure", "task", "user"})
"""Kinds of failure."""

_fit_for: set[str] = set()
"""Probes of the runs that this process has checked its node for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One attempt at a task, as it travels.

    Attributes:
        task: pickled: it is read once the node has the same versions.
        label: of the task.
        modules: of the user, as `user_modules` returns them.
    """

    expectation: Expectation
    task: bytes
    label: str
    attempt: str
    modules: Mapping[str, bytes]
    limits: ExecutionSpec


def run_attempt(order: Order, tell: Callable[[Report], bool]) -> Ended:
    """Runs an order. Failures come back as values, so that errors of the cluster mean that the cluster lost the task."""
    lacks = _lacks(order, tell)
    if lacks:
        return lacks, None, None
    record, failure = supervise(pickle.loads(order.task), order.expectation.output, order.attempt, order.limits, tell)
    is_doubtful = failure is not None and failure.kind in _MAY_BE_OF_THE_NODE
    return lacks_here(order.expectation) if is_doubtful else [], record, failure


def _lacks(order: Order, tell: Callable[[Report], object]) -> list[str]:
    probe = order.expectation.probe
    if probe not in _fit_for:
        message = Message(attempt=order.attempt, task=order.label, activity=Activity(work="look at the node"))
        process_id = os.getpid()
        tell(Report(number=0, message=message, process_id=process_id, started=start_time(process_id)))
        if lacks := lacks_here(order.expectation):
            return lacks
        _fit_for.add(probe)
    try:
        install_modules(order.modules)
    except (OSError, UserError) as error:
        return [f"it cannot keep the modules of the stages: {error}"]
    return []


PACKAGES = ("datapipe", "stages")
"""Installed on every node; everything else that a stage is defined in is shipped."""


def user_modules(task: Task) -> dict[str, bytes]:
    """The sources of modules that a task and its stages are defined in and that no node can be expected to have.

    Returns:
        Each file by path relative to an import root. Of a package all files travel; of one without `__init__.py`, which may be
        any folder, the modules that are imported here.
    """
    classes = [type(task), *(type(bound.stage) for bound in task.stages_run)]
    sources: dict[str, bytes] = {}
    for module_name in {each.__module__ for each in classes}:
        top = module_name.partition(".")[0]
        if top not in PACKAGES:
            sources.update(module_sources(top))
    return sources


def module_sources(top: str) -> dict[str, bytes]:
    """The files of a module or package that is imported, by path relative to its import root."""
    origin = sys.modules[top].__file__
    if origin is None:
        return {path: Path(file).read_bytes() for path, file in _imported(top)}
    file = Path(origin)
    is_package = file.name == "__init__.py"
    base, files = (file.parent.parent, sorted(file.parent.rglob("*.py"))) if is_package else (file.parent, [file])
    return {str(path.relative_to(base)): path.read_bytes() for path in files}


def _imported(top: str) -> Iterable[tuple[str, str]]:
    """The modules of a package that are imported: path relative to the import root, and file."""
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.startswith(f"{top}.") and file.endswith(".py"):
            yield name.replace(".", "/") + ("/__init__.py" if Path(file).name == "__init__.py" else ".py"), file


def install_modules(modules: Mapping[str, bytes]) -> None:
    """Makes shipped modules importable in this process, from a folder named by their content that this user alone can write."""
    if not modules:
        return
    digest = hashlib.sha256(repr(sorted(modules.items())).encode()).hexdigest()[:32]
    folder = cache_home() / "modules" / digest
    if str(folder) in sys.path:
        return
    cache_home().mkdir(parents=True, exist_ok=True)
    make_private(folder.parent)
    make_private(folder)
    for name, content in modules.items():
        write_atomic(folder / name, content, is_synced=False)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def make_private(folder: Path) -> None:
    """Makes a folder that this user alone can use. Raises UserError for an existing one that others can write to."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_own or status.st_mode & 0o077:
        raise UserError(
            f"{folder}: found {stat.filemode(status.st_mode)} of user {status.st_uid}, expected a folder that user "
            f"{os.getuid()} alone can use, because code is imported from it. Delete it or set XDG_CACHE_HOME to another folder."
        )
