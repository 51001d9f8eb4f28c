"""Running a mixture from Python, and what the command line does in the same way: the engine, the run, its report.

mixture ─▶ Run ─▶ execute ─▶ keep_report ─▶ report.json
             └── engine_factory: local workers, or Ray
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipe.engine.run import EngineFactory, Run
from datapipe.errors import DatapipeError, UserError
from datapipe.plan.compile import Plan
from datapipe.plan.request import Request
from datapipe.plan.warnings import RunWarning, run_warnings
from datapipe.report.fertility import tokenizer_report
from datapipe.report.summary import report_bytes, summarize, write_report
from datapipe.shards.manifest import Manifest
from datapipe.storage import Root

# ------------------------------------------------------------------------------------------------ for the command line, too


def engine_factory(engine: str, workers: int | None, address: str | None) -> EngineFactory:
    """What starts the engine of a run. Raises UserError for an engine that there is not.

    Args:
        engine: "local" or "ray".
        workers: processes; None for one on each core.
        address: of a running Ray cluster; None for one that is started for the run.
    """
    if engine not in ("local", "ray"):
        raise UserError(f"--engine {engine}: expected local or ray")
    if address is not None and engine != "ray":
        raise UserError("--address goes with --engine ray")

    def make(root: Root, request: Request) -> Any:
        if engine == "ray":
            from datapipe.engine.ray import RayEngine

            return RayEngine(root, request, address, workers)
        from datapipe.engine.local import LocalEngine, usable_cores

        return LocalEngine(root.url, workers or usable_cores(), request.mixture.execution.stall_s)

    return make


def execute(run: Run) -> DatapipeError | KeyboardInterrupt | None:
    """Runs to the end, with a report that is kept with the snapshot. Returns what ended it early: the caller raises it when
    the report is kept."""
    run.report = lambda plan, snapshot, warnings: report_bytes(_report(run, plan, snapshot, None, warnings))
    try:
        run.execute()
    except (DatapipeError, KeyboardInterrupt) as error:
        return error
    return None


def keep_report(run: Run, problem: BaseException | None) -> dict[str, Any] | None:
    """Writes report.json, of what is committed, and returns it; None for a run that has no plan yet. Raises OSError."""
    if run.plan is None:
        return None
    report = _report(run, run.plan, run.snapshot, problem, run.of_snapshot)
    write_report(run.root, report)
    return report


def _report(
    run: Run, plan: Plan, snapshot: Manifest | None, problem: BaseException | None, of_snapshot: Sequence[RunWarning]
) -> dict[str, Any]:
    status = "done" if problem is None else "stopped" if isinstance(problem, KeyboardInterrupt) else "failed"
    tokenizer = tokenizer_report(run.root, plan)
    message = None if problem is None else str(problem)
    warnings = [] if run.request is None else run_warnings(run.request, plan, of_snapshot)
    return summarize(run.mixture.name, plan, run.mixture.sources, status, message, tokenizer, snapshot, warnings)
