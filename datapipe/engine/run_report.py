"""A run with its events, its status and its report: what programs and commands call.

    run_and_report ─▶ RunStarted ─▶ Run.execute ─▶ RunEnded ─▶ report.json, report.html, card
                      work/status.json all the while

A report is made twice: before the snapshot is published, to be kept with it, and at the end, with the time that the run took.
What it says of text and tokens is read once all of it is known, in a thread, while the last tasks run.
A run that changes nothing leaves the report of the run before it.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import Any

from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.engine.events import Event, Planned, RunEnded, RunStarted, all_of
from datapipe.engine.history import node_hours
from datapipe.engine.local import usable_cores
from datapipe.engine.run import Run
from datapipe.engine.watching.state import RunState
from datapipe.engine.watching.status import StatusFile
from datapipe.errors import DatapipeError
from datapipe.records.names import CARD, REPORT_PAGE, TOKENIZER
from datapipe.records.outputs import TableFile
from datapipe.report.card.provenance import provenance
from datapipe.report.card.write import is_unedited, write_card
from datapipe.report.html.page import write_page
from datapipe.report.records import Command
from datapipe.report.report import Report, measured_parts, read_report, write_report
from datapipe.report.summary import summarize, tokenizer_figures
from datapipe.shards.document_files import files_of
from datapipe.shards.manifest import Snapshot, snapshot_file
from datapipe.shards.snapshots import publications
from datapipe.steps.fold import fewest
from datapipe.steps.kind import Plan, Step
from datapipe.steps.measuring import Measured
from datapipe.steps.splits import names_of_keys
from datapipe.steps.warnings import RunWarning, run_warnings
from datapipe.storage.lock import LeaseLostError

_MEASURED = ("map", "sample", "train", "tokenize", "fold")  # the kinds of the steps that the figures of a report are about
_MOST_UNFOLDED = 1024  # files of a kind that the report of a run that failed reads; others are left out


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRun:
    """The result of a run. `report`: None without a plan, and where the report cannot be written.
    `problem`: what ended it early."""

    report: Report | None
    problem: DatapipeError | KeyboardInterrupt | None

    def raise_problem(self) -> None:
        if self.problem is not None:
            raise self.problem


def run_and_report(run: Run, state: RunState | None = None) -> EndedRun:
    """Runs to the end, and writes report.json, report.html and the card of what is committed. `state` gets each event
    before the observer of the run. Raises OSError where the report of a run that is done cannot be written."""
    state, published = state or RunState(), list[Report]()

    def make_report(plan: Plan, snapshot: Snapshot, warnings: Sequence[RunWarning]) -> bytes:
        whole = plan.with_earlier()
        published[:] = [_report(run, whole, snapshot, None, warnings, early.figures(whole))]
        return published[0].to_bytes()

    run.make_report = make_report
    with ThreadPoolExecutor(1) as thread:
        early = _EarlyFigures(run, thread)
        run.emit = all_of([state.observe, run.emit, StatusFile(run.root, state).observe, early.observe])
        problem = _executed(run)
    return EndedRun(report=_kept_report(run, problem, published[0] if published else None), problem=problem)


@dataclass(slots=True)
class _EarlyFigures:
    """The figures of a report, from when all steps that they are about are committed on."""

    run: Run
    thread: ThreadPoolExecutor
    _begun: tuple[list[tuple[str, int]], Future[dict[str, Any]]] | None = None  # of these steps, each with its tasks

    def observe(self, event: Event) -> None:
        if isinstance(event, Planned) and not event.plan.is_committed and self._begun is None:
            steps = [step for step in event.plan.steps if step.kind in _MEASURED]
            if steps and all(step.is_committed for step in steps):
                self._begun = _identity(event.plan), self.thread.submit(_figures, self.run, event.plan, None)

    def figures(self, plan: Plan) -> dict[str, Any]:
        if self._begun is None or self._begun[0] != _identity(plan) or self._begun[1].exception() is not None:
            return _figures(self.run, plan, None)
        return self._begun[1].result()


def _identity(plan: Plan) -> list[tuple[str, int]]:
    return [(step.id, len(step.records)) for step in plan.steps if step.kind in _MEASURED]


def _executed(run: Run) -> DatapipeError | KeyboardInterrupt | None:
    """Runs, and returns what ended the run early. Observers get `RunEnded` whatever ends it."""
    run.emit(RunStarted(mixture=run.mixture.name, output=run.root.url, engine=run.options.engine))
    problem: BaseException | None = None
    try:
        run.execute()
    except (DatapipeError, KeyboardInterrupt) as error:
        problem = error
        return error
    except BaseException as error:
        problem = error
        raise
    finally:
        snapshot = "" if run.snapshot is None else run.snapshot.fingerprint
        run.emit(RunEnded(problem=problem, snapshot=snapshot, is_new=run.is_new))


def _kept_report(run: Run, problem: BaseException | None, published: Report | None) -> Report | None:
    """Writes the report: the published one, with the time of the whole run. After a problem of the
    run, a disk that fails is reported in a line and not raised."""
    if run.plan is None or isinstance(problem, LeaseLostError):  # the report of the run that took the output stays
        return None
    try:
        if problem is None and published is not None:
            report = published.with_(run=_about(run))
            if not run.is_new and _is_written(run, report):
                return report
        else:
            report = _report(run, run.plan, run.snapshot, problem, run.of_snapshot, _figures(run, run.plan, problem))
        write_report(run.root, report)
        write_page(run.root, report)
        if run.snapshot is not None and (line := write_card(run.root, run.snapshot, report)) is not None:
            run.show(line)
    except OSError as error:
        if problem is None:
            raise
        run.show(masked(f"the report cannot be written: {error}"))
        return None
    return report


def _is_written(run: Run, report: Report) -> bool:
    """Whether an earlier run has written the same report, but for its time, and the page and the card of it."""
    with suppress(FileNotFoundError, ValueError):
        before = read_report(run.root)
        if before.run is None or before.run.datapipe != version("datapipe"):
            return False
        is_same = before.with_(run=report.run).to_bytes() == report.to_bytes()
        return is_same and run.root.exists(REPORT_PAGE) and is_unedited(run.root.read_bytes(CARD))
    return False


def _figures(run: Run, plan: Plan, problem: BaseException | None) -> dict[str, Any]:
    """The fields of a report that are read from committed files."""
    measured = Measured(
        root=run.root,
        steps=plan.of_kind("map"),
        name_of=names_of_keys(_paths(run)),
        files_of=partial(_files_of, plan, problem),
    )
    return {"tokenizer": tokenizer_figures(run.root, plan), **measured_parts(measured)}


def _report(
    run: Run,
    plan: Plan,
    snapshot: Snapshot | None,
    problem: BaseException | None,
    of_snapshot: Sequence[RunWarning],
    figures: dict[str, Any],
) -> Report:
    status = "finished" if problem is None else "stopped" if isinstance(problem, KeyboardInterrupt) else "failed"
    of_snapshot = [*of_snapshot, *_new_tokenizer(run, snapshot)]
    warnings = [] if run.request is None else run_warnings(run.request, plan, of_snapshot)
    before = None if snapshot is None else _before(run, snapshot)
    report = summarize(run.mixture.name, plan, run.mixture.sources, snapshot, warnings, before).with_(
        status=status,
        problem=None if problem is None else str(problem),
        **figures,
        run=_about(run),
    )
    hours = node_hours(run.root) if run.options.engine == "ray" else None
    return report.with_(provenance=provenance(run.mixture, plan, report, hours))


def _files_of(plan: Plan, problem: BaseException | None, step: Step, name: str) -> Sequence[TableFile]:
    """The files with what the tasks of a step measured; none of a run that ended before it added up those of many tasks."""
    files = fewest(plan, step, name, TableFile)
    return files if problem is None or len(files) <= _MOST_UNFOLDED else ()


def _new_tokenizer(run: Run, after: Snapshot | None) -> list[RunWarning]:
    """A warning where a corpus that grew is rebuilt with another tokenizer: trainers of the old one cannot move."""
    before = run.before
    if not run.options.rebuilds or before is None or after is None or not (before.has_tokens and after.has_tokens):
        return []
    if before.tokenizer.fingerprint == after.tokenizer.fingerprint:
        return []
    path = run.root.child_url(snapshot_file(run.root, before, TOKENIZER))
    text = (
        f"a tokenizer was trained again, so no trainer of snapshot {before.fingerprint[:12]} can move to this one. To keep "
        f"the old one, copy {path}, and name it in the mixture: tokenizer: {{path: FILE}}"
    )
    return [RunWarning(kind="new_tokenizer", text=text)]


def _before(run: Run, snapshot: Snapshot) -> str | None:
    if run.before is None or run.before.fingerprint != snapshot.fingerprint:
        return None if run.before is None else run.before.fingerprint
    names = [publication.snapshot.fingerprint for publication in publications(run.root)]
    return names[-2] if len(names) > 1 else None


def _paths(run: Run) -> dict[str, list[str]]:
    """The paths of the input files by source, with those that they are added to."""
    assert run.request is not None
    paths, added_to = {name: [*source.files] for name, source in run.request.sources.items()}, run.request.added_to
    for source, path in files_of(run.root, added_to) if added_to is not None else ():
        paths.setdefault(source, []).append(path)
    return paths


def _about(run: Run) -> Command:
    workers = run.options.workers or (usable_cores() if run.options.engine == "local" else None)
    return Command(
        datapipe=version("datapipe"),
        engine=run.options.engine,
        workers=workers,
        wall_s=round(perf_counter() - run.started_s, 3),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )
