"""Running a mixture from Python, and what the command line does in the same way: the engine, the run, its report.

    datapipe.run("mine.yaml")  ─▶ Mixture ─▶ Run ─▶ execute ─▶ keep_report ─▶ RunResult
    datapipe.plan_run(…)       ─▶ Mixture ─▶ the plan of now ─▶ PlannedRun

A program gets errors as exceptions, and nothing is printed or changed in its process: no signal handler, no exit status. It may
call `run` from any thread. Workers are processes of their own that never import the program, only the modules of its stages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from datapipe.config import Mixture, load_mixture
from datapipe.config.catalogue import is_importing
from datapipe.credentials import masked
from datapipe.document_name import document_name
from datapipe.engine.driver import Observer
from datapipe.engine.history import estimated, node_hours, why
from datapipe.engine.run import EngineFactory, Run, planned
from datapipe.engine.watching.state import Observers, RunState
from datapipe.engine.watching.status import StatusFile
from datapipe.errors import DatapipeError, UserError
from datapipe.machine import activity
from datapipe.report.card.provenance import provenance
from datapipe.report.card.write import write_card
from datapipe.report.contamination import list_counts
from datapipe.report.distributions import distributions
from datapipe.report.html.page import write_page
from datapipe.report.plan_view import plan_json
from datapipe.report.report import Command, Report, write_report
from datapipe.report.summary import summarize, tokenizer_figures
from datapipe.shards.manifest import Manifest
from datapipe.shards.snapshots import publications
from datapipe.steps.compile import Plan
from datapipe.steps.request import Request
from datapipe.steps.splits import file_hash
from datapipe.steps.warnings import RunWarning, run_warnings
from datapipe.storage.hold import LeaseLostError
from datapipe.storage.outages import OutageError, outage_of, refusal_of
from datapipe.storage.root import Root

_log = logging.getLogger("datapipe")

MixtureLike = str | Path | Mapping[str, Any]
"""A mixture file, or a mixture as nested dicts and lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """A run that is done, and the snapshot that it published.

    Attributes:
        name: of the mixture.
        output: path or URL, for `Loader(result.output)`. It may hold credentials, which its display masks.
        fingerprint: of the snapshot; `Loader(output, snapshot=fingerprint)` loads this one after later runs, too.
        outputs: by sequence length, what a loader opens; the first length is `output` itself. Empty for `tokenizer: none`.
        report: report.json: documents, drops, tokens, cost. `report/report.py` has its records.
        warnings: what the run warns of, as texts; `report.warnings` has their kinds and numbers.
    """

    name: str
    output: str
    fingerprint: str
    outputs: Mapping[int, str]
    report: Report = field(repr=False)
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        documents, tokens = self.report.total.documents, self.report.total.tokens
        return (
            f"RunResult(name={self.name!r}, output={masked(self.output)!r}, fingerprint={self.fingerprint!r}, "
            f"documents={documents.kept}, tokens={tokens}, warnings={len(self.warnings)})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """A step of a run, with the names of `datapipe plan --json`.

    Attributes:
        step: "web/read", "dedup.minhash/compare".
        source: None for a step that serves several sources.
        label: what it does, in full.
        tasks: None while the steps before it are not committed.
        committed_tasks: tasks that do not run again.
        reasons: why the others run.
    """

    step: str
    kind: str
    source: str | None
    label: str
    is_committed: bool
    tasks: int | None
    committed_tasks: int
    reasons: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """What a run would do now, as `datapipe plan --json` tells it.

    Attributes:
        output: path or URL, with credentials masked.
        steps: in the order in which they run.
        sources: by name: files, bytes, share, and documents and tokens as far as they are known.
        estimate: `bytes` and `core_seconds` that the run would take, about; see `plan.estimate.Estimate`.
        warnings: what planning warns of, as texts.
    """

    name: str
    output: str
    steps: tuple[PlannedStep, ...]
    sources: Mapping[str, Mapping[str, Any]]
    estimate: Mapping[str, Any]
    warnings: tuple[str, ...]

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
    progress: bool = False,
) -> RunResult:
    """Runs a mixture and publishes its snapshot, as `datapipe run` does. The same call resumes a run that was stopped.

    Warnings, and in detail what the run tells, go to the logger "datapipe".

    Args:
        mixture: a file, or nested dicts and lists.
        set: values to replace by key path, {"pack.sequence_length": 512}, as `--set`.
        output: replaces the mixture's own.
        engine: "local" or "ray".
        workers: processes; None for one on each core.
        address: of a running Ray cluster: "auto", or "host:port".
        limit: documents of each source to read at most, for a trial.
        replace: publish into an output that holds another mixture; its snapshots stay.
        progress: print the live display of the command line.

    Raises:
        UserError: the mixture, an option or an input is wrong.
        DatapipeError: the run failed. What is committed stays, and report.json tells of it.
    """
    make_engine = engine_factory(engine, workers, address)
    with _of_program(output):
        loaded = _loaded(mixture, set, output, limit)
        state = RunState()
        with _watcher(progress, state) as watcher:
            run = Run(loaded, make_engine, watcher, limit, engine=engine, workers=workers, replaces=replace)
            problem = execute(run, state)
        report = keep_report(run, problem)
        warnings = tuple(map(str, report.warnings)) if report is not None else ()
        for warning in warnings:
            _log.warning("%s", warning)
        if problem is not None:
            raise problem
    assert run.snapshot is not None
    assert report is not None
    return RunResult(
        name=loaded.name,
        output=run.root.url,
        fingerprint=run.snapshot.fingerprint,
        outputs={}
        if loaded.tokenizer.is_none
        else {length: run.root.within(loaded.pack.folder(length)).url for length in loaded.pack.sequence_length},
        report=report,
        warnings=warnings,
    )


def plan_run(
    mixture: MixtureLike,
    *,
    set: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    limit: int | None = None,
) -> PlannedRun:
    """The steps of a run, those that are committed and those that would run, as `datapipe plan`. Runs nothing.

    Args and errors as those of `run`.
    """
    with _of_program(output):
        loaded = _loaded(mixture, set, output, limit)
        request, plan = planned(loaded, limit)
        root = Root(loaded.output)
        told = plan_json(loaded, request, plan, why(root, request, plan), estimated(root, request, plan))
    return PlannedRun(
        name=told["name"],
        output=told["output"],
        steps=tuple(PlannedStep(**step) for step in told["steps"]),
        sources=told["sources"],
        estimate=told["estimate"],
        warnings=tuple(warning["text"] for warning in told["warnings"]),
    )


def _loaded(mixture: MixtureLike, values: Mapping[str, Any] | None, output: str | Path | None, limit: int | None) -> Mixture:
    if limit is not None and limit < 1:
        raise UserError(f"limit: found {limit}, expected at least 1, or None for all documents.")
    return load_mixture(mixture, values or {}, output)


@contextmanager
def _of_program(output: str | Path | None) -> Iterator[None]:
    """A context in which a program plans or runs. Raises UserError in a worker, and DatapipeError for errors of disks."""
    if activity.is_told() or is_importing():
        raise UserError(
            "a module of stages runs a mixture while it is imported, which each worker does. Put the call under "
            '`if __name__ == "__main__":`, or the stages into a module of their own.'
        )
    try:
        yield
    except OSError as error:
        if (refusal := refusal_of(error)) is not None:
            raise UserError(f"{refusal}, and run again") from error
        if (outage := outage_of(error, str(output or ""))) is not None:
            raise OutageError(outage) from error
        raise


class _Logger(Observer):
    """Passes what a run tells to the logger."""

    def retried(self, task: Any, failure: Any) -> None:
        self.say(f"retrying: {task.label}: {failure.message}")

    def say(self, line: str) -> None:
        _log.info("%s", masked(line))


def _watcher(progress: bool, state: RunState) -> Any:
    """What watches the run, as a context manager: the live display, or the logger."""
    if not progress:
        return nullcontext(_Logger())
    from datapipe.engine.watching.progress import Progress
    from datapipe.report.terminal import wide_console

    return Progress(wide_console(), state)


# ------------------------------------------------------------------------------------------------ for the command line, too


def engine_factory(engine: str, workers: int | None, address: str | None) -> EngineFactory:
    """What starts the engine of a run. Raises UserError for an engine that there is not.

    Args:
        engine: "local" or "ray".
        workers: processes; None for one on each core.
        address: of a running Ray cluster; None for one that is started for the run.
    """
    if engine not in ("local", "ray"):
        raise UserError(f"engine {engine!r}: expected local or ray")
    if address is not None and engine != "ray":
        raise UserError(f"address {address}: it goes with the engine ray, and this is {engine}")
    if workers is not None and workers < 1:
        raise UserError(f"workers: found {workers}, expected at least 1, or none for one on each core")

    def make(root: Root, request: Request) -> Any:
        if engine == "ray":
            from datapipe.engine.ray import RayEngine

            return RayEngine(root, request, address, workers)
        from datapipe.engine.local import LocalEngine, usable_cores

        return LocalEngine(root.url, workers or usable_cores(), request.mixture.execution)

    return make


def execute(run: Run, state: RunState | None = None) -> DatapipeError | KeyboardInterrupt | None:
    """Runs to the end, with work/status.json, and a report that is kept with the snapshot. Returns what ended it early: the
    caller raises it when the report is kept. `state` sums up what is committed, for others too."""

    def published(plan: Plan, snapshot: Manifest, warnings: Sequence[RunWarning]) -> bytes:
        run.told = _report(run, plan, snapshot, None, warnings)
        return run.told.to_bytes()

    run.report = published
    status = StatusFile(run.root, state := state or RunState())
    state.driver, state.estimate = run.figures, run.step_times
    run.observer = Observers([state, run.observer, status])
    try:
        run.execute()
    except (DatapipeError, KeyboardInterrupt) as error:
        if not isinstance(error, LeaseLostError):  # the file is that of the run that took the output
            status.end(error)
        return error
    status.end(None)
    return None


def keep_report(run: Run, problem: BaseException | None) -> Report | None:
    """Writes report.json, report.html and the card, of what is committed. Returns the report; None for a run that has no plan
    yet. Raises OSError, but after a problem of the run, which is told in its place."""
    if run.plan is None or isinstance(problem, LeaseLostError):  # the report of the run that took the output stays
        return None
    try:
        if problem is None and run.told is not None:
            report = run.told.with_(run=_about(run))
        else:
            report = _report(run, run.plan, run.snapshot, problem, run.of_snapshot)
        write_report(run.root, report)
        write_page(run.root, report)
        if run.snapshot is not None and (told := write_card(run.root, run.snapshot, report)) is not None:
            run.observer.say(told)
    except OSError as error:
        if problem is None:
            raise
        run.observer.say(masked(f"the report cannot be written: {error}"))
        return None
    return report


def _report(
    run: Run, plan: Plan, snapshot: Manifest | None, problem: BaseException | None, of_snapshot: Sequence[RunWarning]
) -> Report:
    status = "done" if problem is None else "stopped" if isinstance(problem, KeyboardInterrupt) else "failed"
    of_snapshot = [*of_snapshot, *run.new_tokenizer(snapshot)]
    warnings = [] if run.request is None else run_warnings(run.request, plan, of_snapshot)
    before = None if snapshot is None else _before(run, snapshot)
    shown = distributions(run.root, plan.steps, _names_of(run))
    report = summarize(run.mixture.name, plan, run.mixture.sources, snapshot, warnings, before).with_(
        status=status,
        problem=None if problem is None else str(problem),
        tokenizer=tokenizer_figures(run.root, plan),
        contamination=tuple(list_counts(run.root, plan.steps)),
        measured=shown.measured,
        lengths=shown.lengths,
        clusters=shown.clusters,
        run=_about(run),
    )
    hours = node_hours(run.root) if run.engine == "ray" else None
    return report.with_(provenance=provenance(run.mixture, plan, report, hours))


def _before(run: Run, snapshot: Manifest) -> str | None:
    """The fingerprint of the snapshot that was published before this one; None for the first."""
    if run.before is None or run.before.fingerprint != snapshot.fingerprint:
        return None if run.before is None else run.before.fingerprint
    names = [publication.snapshot.fingerprint for publication in publications(run.root)]
    return names[-2] if len(names) > 1 else None


def _names_of(run: Run) -> Callable[[bytes], str]:
    """What names a document by its key."""
    sources = {} if run.request is None else run.request.sources
    files = {file_hash(name, path): (name, path) for name, source in sources.items() for path in source.files}

    def name_of(key: bytes) -> str:
        source, path = files[int.from_bytes(key[:8], "big")]
        return document_name(source, path, int.from_bytes(key[8:], "big"))

    return name_of


def _about(run: Run) -> Command:
    """The command that writes the report."""
    from datapipe.engine.local import usable_cores

    workers = run.workers or (usable_cores() if run.engine == "local" else None)
    return Command(
        datapipe=version("datapipe"),
        engine=run.engine,
        workers=workers,
        wall_s=round(perf_counter() - run.started_s, 3),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )
