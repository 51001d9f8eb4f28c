"""Running a mixture from Python.

    datapipe.run("mine.yaml")  ─▶ Mixture ─▶ Run ─▶ run_and_report ─▶ RunResult
    datapipe.plan_run(…)       ─▶ Mixture ─▶ the plan of now ─▶ PlannedRun

Errors are exceptions, and nothing is printed or changed in the process: no signal handler, no exit status. Any thread may
call `run`. Workers are other processes that import only the modules of the program's stages.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datapipe.config import load_mixture
from datapipe.config.catalogue import is_importing
from datapipe.credentials import masked
from datapipe.dataclass import dataclass, field
from datapipe.engine.events import Event, Observer, line_of
from datapipe.engine.history import estimated, why
from datapipe.engine.run import Run, RunOptions, planned
from datapipe.engine.run_report import run_and_report
from datapipe.engine.watching.state import RunState
from datapipe.errors import UserError
from datapipe.machine import activity
from datapipe.report.plan_view import plan_json
from datapipe.report.report import Report
from datapipe.storage.outages import OutageError, outage_of, refusal_of
from datapipe.storage.root import Root

_log = logging.getLogger("datapipe")

MixtureLike = str | Path | Mapping[str, Any]
"""A mixture file, or a mixture as nested dicts and lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """A run that is done, and the snapshot that it published."""

    name: str  # of the mixture
    output: str  # path or URL, for `Loader(result.output)`. It may hold credentials; `repr` masks them.
    # of the snapshot; `Loader(output, snapshot=fingerprint)` loads this one after later runs, too
    fingerprint: str
    # by sequence length, what a loader opens; the first length is `output` itself. `Loader(output,
    # sequence_length=8192)` opens the same rows. Empty for `tokenizer: none`.
    outputs: Mapping[int, str]
    # report.json: documents, drops, tokens, cost. `report/report.py` has its records.
    report: Report = field(repr=False)
    # its warnings, as texts; `report.warnings` has their kinds and numbers
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        documents, tokens = self.report.total.documents, self.report.total.tokens
        return (
            f"RunResult(name={self.name!r}, output={masked(self.output)!r}, fingerprint={self.fingerprint!r}, "
            f"documents={documents.kept}, tokens={tokens}, warnings={len(self.warnings)})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """A step of a run, with the names of `datapipe plan --json`."""

    step: str  # "web/read", "dedup.minhash/compare"
    kind: str
    source: str | None  # None for a step that serves several sources
    label: str  # what it does, in full
    is_committed: bool
    tasks: int | None  # None while the steps before it are not committed
    committed_tasks: int  # tasks that do not run again
    reasons: Sequence[str]  # why the others run


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """What a run would do now, as `datapipe plan --json` prints it."""

    name: str
    output: str  # path or URL, with credentials masked
    steps: tuple[PlannedStep, ...]  # in the order in which they run
    # by name: files, bytes, share, and documents and tokens as far as they are known
    sources: Mapping[str, Mapping[str, Any]]
    # `bytes` and `core_seconds` that the run would take, about; see `steps.estimate.Estimate`
    estimate: Mapping[str, Any]
    warnings: tuple[str, ...]  # the warnings of planning, as texts

    @property
    def is_committed(self) -> bool:
        """Whether everything is done, so that a run would only publish."""
        return all(step.is_committed for step in self.steps)


def run(
    mixture: MixtureLike,
    *,
    set: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    limit: int | None = None,
    replace: bool = False,
    trust_records: bool = False,
    progress: bool = False,
) -> RunResult:
    """Runs a mixture and publishes its snapshot, as `datapipe run` does. The same call resumes a run that was stopped.

    Warnings, and in detail the messages of the run, go to the logger "datapipe".

    Args:
        mixture: a file, or nested dicts and lists.
        set: values to replace by key path, {"pack.sequence_length": 512}, as `--set`.
        output: replaces the mixture's own.
        engine: "local" or "ray".
        workers: processes; None for one on each core.
        address: of a running Ray cluster: "auto", or "host:port".
        limit: documents of each source to read at most, for a trial.
        replace: publish into an output that holds another mixture; its snapshots stay.
        trust_records: keep finished tasks whose only difference is versions of libraries.
        progress: print the live display of the command line.

    Raises:
        UserError: the mixture, an option or an input is wrong.
        DatapipeError: the run failed. What is committed stays, and report.json has it.
    """
    given = {"engine": engine, "workers": workers, "address": address, "limit": limit}
    options = RunOptions(**given, replaces=replace, trusts_records=trust_records)
    with _of_program(output):
        loaded, state = load_mixture(mixture, set or {}, output), RunState()
        run = Run(loaded, _observer(progress, state), options)
        ended = run_and_report(run, state)
        warnings = () if ended.report is None else tuple(map(str, ended.report.warnings))
        for warning in warnings:
            _log.warning("%s", warning)
        ended.raise_problem()
    assert run.snapshot is not None
    assert ended.report is not None
    return RunResult(
        name=loaded.name,
        output=run.root.url,
        fingerprint=run.snapshot.fingerprint,
        outputs={}
        if loaded.tokenizer.is_none
        else {
            length: run.root.within(f"length-{length}" if number else "").url
            for number, length in enumerate(loaded.pack.sequence_length)
        },
        report=ended.report,
        warnings=warnings,
    )


def plan_run(
    mixture: MixtureLike,
    *,
    set: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    limit: int | None = None,
    trust_records: bool = False,
) -> PlannedRun:
    """The steps of a run, committed or to run, as in `datapipe plan`. Runs nothing. Arguments and errors as of `run`."""
    options = RunOptions(limit=limit)
    with _of_program(output):
        loaded = load_mixture(mixture, set or {}, output)
        request, plan = planned(loaded, options.limit, trusts_records=trust_records)
        root = Root(loaded.output)
        planned_run = plan_json(loaded, request, plan, why(root, request, plan), estimated(root, request, plan))
    return PlannedRun(
        name=planned_run["name"],
        output=planned_run["output"],
        steps=tuple(PlannedStep(**step) for step in planned_run["steps"]),
        sources=planned_run["sources"],
        estimate=planned_run["estimate"],
        warnings=tuple(warning["text"] for warning in planned_run["warnings"]),
    )


@contextmanager
def _of_program(output: str | Path | None) -> Iterator[None]:
    """A context in which a program plans or runs. Raises UserError in a worker, and DatapipeError for errors of disks."""
    if activity.is_published() or is_importing.get():
        raise UserError(
            "a module of stages runs a mixture while it is imported, which each worker does. Put the call under "
            '`if __name__ == "__main__":`, or the stages into a separate module.'
        )
    try:
        yield
    except OSError as error:
        if (refusal := refusal_of(error)) is not None:
            raise UserError(f"{refusal}, and run again") from error
        if (outage := outage_of(error, str(output or ""))) is not None:
            raise OutageError(outage) from error
        raise


def _observer(progress: bool, state: RunState) -> Observer:
    if not progress:
        return _log_event
    from datapipe.engine.watching.terminal import Terminal
    from datapipe.report.layout import wide_console

    return Terminal(wide_console(), state).observe


def _log_event(event: Event) -> None:
    if line := line_of(event):
        _log.info("%s", masked(line))
