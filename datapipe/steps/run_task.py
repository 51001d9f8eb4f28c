"""`run_task`, the function that every worker of every engine runs."""

import traceback
from contextlib import suppress
from time import perf_counter

from datapipe.dataclass import replace
from datapipe.errors import UserError
from datapipe.kernels import import_runtime
from datapipe.machine.activity import doing
from datapipe.machine.files import sync_all
from datapipe.machine.memory import keep_freed_memory, peak_bytes
from datapipe.metrics import TaskMetrics
from datapipe.records.checksum import READINGS, Rereads
from datapipe.records.names import ATTEMPTS
from datapipe.records.option_files import path_here, with_paths
from datapipe.records.outputs import Content, Outputs, Record
from datapipe.stage.base import Stage, StageContext
from datapipe.steps.guard import breaches_raised
from datapipe.steps.kind import StepKind, Task
from datapipe.steps.pipeline import BoundStage
from datapipe.storage.outages import OutageError, outage_of, refusal_of
from datapipe.storage.root import Root

_ran: set[StepKind] = set()  # the kinds whose data this process holds
_opened: dict[tuple[str, str, int, int | None], Stage] = {}
"""Stages opened in this process, by name, digest, seed and position of the source, so that a worker loads a model once."""


def run_task(task: Task, root: Root, attempt: str) -> Record:
    """Runs an attempt, with a name that is unique over all runs, and returns the record. The
    outputs exist only once the driver has committed it; an attempt that fails deletes its files.
    Raises OutageError for a full disk, or a disk or store without an answer, and UserError for
    refused access and wrong input."""
    started, rereads = perf_counter(), Rereads.count
    for other in _ran - {type(task)}:
        other.release()
    _ran.clear()
    _ran.add(type(task))
    import_runtime()  # once a process, and before the time of any work
    keep_freed_memory()
    folder = f"{ATTEMPTS}/{task.step.replace('/', '.')}/{task.fingerprint[:16]}-{attempt}"
    try:
        outputs, metrics = _run(task, root, folder)
        _flush(outputs, root)
    except BaseException as error:
        error.add_note(f"in {task.label}")
        if root.local is not None or outage_of(error, root.url) is None:  # a silent store keeps the files until the run's end
            # frames hold the writers: a deleted file takes room until it is closed
            traceback.clear_frames(error.__traceback__)
            with suppress(OSError):
                root.delete_folder(folder)
        outage, refusal = outage_of(error, root.url), refusal_of(error, root.url)
        if outage is not None:
            raise OutageError(outage) from error
        if refusal is not None:
            raise UserError(f"{task.label}: {refusal}, and run the same command again.") from error
        raise
    metrics.seconds, metrics.rereads = round(perf_counter() - started, 6), Rereads.count - rereads  # as in the ledger
    metrics.peak_bytes = peak_bytes()
    return Record(task.step, task.fingerprint, Content(outputs, metrics), task.versions)


def _run(task: Task, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """The outputs and metrics of a task, which reads its input again while the damage in it is doubtful."""
    opened = task.with_open_stages(lambda bound, position: _open(bound, root, task.seed, position))
    outputs, metrics = opened.run(root, folder)
    for _ in range(READINGS - 1):
        if not task.is_doubtful(metrics):
            break
        root.delete_folder(folder)
        Rereads.count += 1
        outputs, metrics = opened.run(root, folder)
    return outputs, metrics


def _flush(outputs: Outputs, root: Root) -> None:
    """Flushes local outputs to the disk: only then may the driver commit them."""
    if root.local is None:
        return
    paths = [root.local / output.path for group in outputs.values() for output in group]
    sync_all([*paths, *{path.parent for path in paths}])


def _open(bound: BoundStage, root: Root, seed: int, source_position: int | None) -> BoundStage:
    identity = (bound.name, bound.digest, seed, source_position)
    if identity not in _opened:
        paths = {file.path: path_here(file, root) for file in bound.files}
        opened: Stage = with_paths(bound.stage, paths)  # a copy: in one process a stage may be opened for several positions
        with breaches_raised(bound.name, opened, opened.open), doing(f"{bound.name}: open"):
            opened.open(StageContext(name=bound.name, seed=seed, source_position=source_position))
        _opened[identity] = opened
    return replace(bound, stage=_opened[identity])
