"""datapipe: a streaming pretraining-data pipeline. Start at `README.md` beside this file.

    datapipe.run("mine.yaml", set={"pack.sequence_length": 512})     ->  the published snapshot
    datapipe.plan_run("mine.yaml")                                   ->  the steps that would run

Each name is imported on first use, so that a worker or a trainer never pays for parts it does not use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datapipe.api import PlannedRun, PlannedStep, RunResult, plan_run, run
    from datapipe.errors import DatapipeError, UserError

__all__ = ["DatapipeError", "PlannedRun", "PlannedStep", "RunResult", "UserError", "plan_run", "run"]

_MODULES = {"DatapipeError": "errors", "UserError": "errors"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
