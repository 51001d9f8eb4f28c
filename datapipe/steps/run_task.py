"""`run_task`, the function that every worker of every engine runs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from time import perf_counter
from typing import Any

from datapipe.errors import DatapipeError, UserError
from datapipe.kernels import import_runtime
from datapipe.machine.activity import doing
from datapipe.machine.files import sync
from datapipe.machine.memory import peak_bytes
from datapipe.metrics import TaskMetrics
from datapipe.records.checksum import READINGS, Rereads
from datapipe.records.names import ATTEMPTS
from datapipe.records.outputs import Outputs
from datapipe.records.record import Record
from datapipe.stage.base import Stage, StageContext
from datapipe.steps.contract.breaches import error_without_document
from datapipe.steps.encoding import encoder_of
from datapipe.steps.fingerprint import MODULES
from datapipe.steps.work import BoundStage, MapTask, ReduceTask, Task, TokenizeTask
from datapipe.storage.outages import OutageError, outage_of, refusal_of
from datapipe.storage.root import Root, is_remote

Runner = Callable[[Any, Root, str], tuple[Outputs, TaskMetrics]]

_opened: dict[tuple[str, str, int, int | None], Stage] = {}
"""Stages opened in this process, by name, digest, seed and position of the source, so that a worker loads a model once."""


def run_task(task: Task, root: Root, attempt: str) -> Record:
    """Runs one attempt of a task and returns its record. Its outputs exist only once the driver has committed the record; an
    attempt that fails deletes what it has written.

    Args:
        attempt: unique over all attempts of all runs.

    Raises:
        OutageError: a disk is full, or a disk or store does not answer.
        UserError: a disk or store refuses access, or the input is wrong.
    """
    started, rereads = perf_counter(), Rereads.count
    if not isinstance(task, TokenizeTask):
        encoder_of.cache_clear()  # frees the tokenizer
    import_runtime()  # once a process, and before the time of any work
    _runner(task.kind)
    folder = f"{ATTEMPTS}/{task.step.replace('/', '.')}/{task.fingerprint[:16]}-{attempt}"
    try:
        outputs, metrics = _run(task, root, folder)
        _flush(outputs, root)
    except BaseException as error:
        error.add_note(f"in {task.label}")
        if root.local is not None or outage_of(error, root.url) is None:
            _clean_up(error, root, folder)
        outage, refusal = outage_of(error, root.url), refusal_of(error, root.url)
        if outage is not None:
            raise OutageError(outage) from error
        if refusal is not None:
            raise UserError(f"{task.label}: {refusal}, and run the same command again.") from error
        raise
    metrics.seconds, metrics.rereads = perf_counter() - started, Rereads.count - rereads
    metrics.peak_bytes = peak_bytes()
    return Record(step=task.step, fingerprint=task.fingerprint, outputs=outputs, metrics=metrics)


def _run(task: Task, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """The outputs and metrics of a task. Where it finds damage in a file of a store or web server, which the network may have
    done, it reads its input again: only what it finds each time is damage of the file."""
    run, opened = _runner(task.kind), _with_open_stages(task)
    outputs, metrics = run(opened, root, folder)
    for _ in range(READINGS - 1):
        is_local = not isinstance(task, MapTask) or not any(is_remote(split.file.url) for split in task.splits)
        if is_local or not metrics.unreadable_files:
            break
        root.delete_folder(folder)
        Rereads.count += 1
        outputs, metrics = run(opened, root, folder)
    return outputs, metrics


def _runner(kind: str) -> Runner:
    """The function for tasks of a kind, `run_pack` of `steps/pack.py`; a worker imports the modules of what it runs."""
    return getattr(import_module(f"datapipe.steps.{MODULES[kind]}"), f"run_{kind}")


def _flush(outputs: Outputs, root: Root) -> None:
    """Flushes the outputs of a task to the disk, where they are on one: only then may the driver commit them."""
    if root.local is None:
        return
    paths = [root.local / output.path for group in outputs.values() for output in group]
    for path in (*paths, *{path.parent for path in paths}):
        sync(path)


def _clean_up(error: BaseException, root: Root, folder: str) -> None:
    """Deletes the files of a failed attempt, open ones too. A store that does not answer keeps them until the run's end."""
    traceback.clear_frames(error.__traceback__)  # frames hold the writers: a deleted file takes room until it is closed
    with suppress(OSError):
        root.delete_folder(folder)


def _with_open_stages(task: Task) -> Task:
    """The task with the stages that this process has opened in the place of its own."""
    if isinstance(task, MapTask):
        stages = tuple(_open(bound, task.seed) for bound in task.stages)
        emit = None if task.emit is None else _open(task.emit, task.seed, task.source_position)
        return replace(task, stages=stages, emit=emit)
    if isinstance(task, ReduceTask):
        return replace(task, stage=_open(task.stage, task.seed))
    return task


def _open(bound: BoundStage, seed: int, source_position: int | None = None) -> BoundStage:
    identity = (bound.name, bound.digest, seed, source_position)
    if identity not in _opened:
        opened = bound.stage.model_copy()  # in one process a stage may be opened for several positions
        try:
            with doing(f"{bound.name}: open"):
                opened.open(StageContext(name=bound.name, seed=seed, source_position=source_position))
        except BaseException as error:
            told = error_without_document(bound.name, opened, opened.open, error)
            if told is None:
                raise
            raise told from error
        _opened[identity] = opened
    stage = _opened[identity]
    if type(stage) is not type(bound.stage):
        raise DatapipeError(f"{bound.name}: two different stages have one digest")
    return replace(bound, stage=stage)
