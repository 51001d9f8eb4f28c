"""Records that tasks made with other versions of libraries: which of them a run keeps, or could keep. Pure.

fingerprint = content + versions     `--trust-records`: a record of the same content is that of the task
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from datapipe.dataclass import replace
from datapipe.quantities import counted
from datapipe.records.versions import TrustedRecords, differences
from datapipe.steps.kind import LookUp, Plan, Step, Task
from datapipe.steps.kinds import compile_plan
from datapipe.steps.request import Request, RunWarning


def trusted_records(steps: Iterable[Step]) -> tuple[TrustedRecords, ...]:
    """By library and version, the tasks of a plan whose records were made with another version."""
    found: Counter[tuple[str, str, str]] = Counter()
    for _, versions in _trusted(steps):
        found.update((library, before, now) for library, (before, now) in versions.items())
    entries = [TrustedRecords(library=name, made_with=old, version=new, tasks=n) for (name, old, new), n in found.items()]
    return joined(entries)


def joined(entries: Iterable[TrustedRecords]) -> tuple[TrustedRecords, ...]:
    """One entry for each library and pair of versions, with all tasks; sorted."""
    tasks: Counter[tuple[str, str, str]] = Counter()
    for entry in entries:
        tasks[entry.library, entry.made_with, entry.version] += entry.tasks
    keys = sorted(tasks)
    return tuple(TrustedRecords(library=key[0], made_with=key[1], version=key[2], tasks=tasks[key]) for key in keys)


def offer(request: Request, look_up: LookUp, plan: Plan) -> RunWarning | None:
    """What `--trust-records` would keep of a plan, if anything. `look_up` finds records of any versions."""
    if not any(look_up(task.fingerprint) for task in plan.pending()):
        return None
    trusting = compile_plan(replace(request, trusts_records=True), look_up, earlier=plan.earlier)
    return _warning(trusting.steps, "other_versions", _OFFER)


def trusted_warning(plan: Plan) -> RunWarning | None:
    """The warning about records of other versions that a run has kept; None where there are none."""
    return _warning(plan.steps, "trusted_records", _KEPT)


_OFFER = "{tasks} ran with {before}, and {here}. They, and tasks that follow, run again; --trust-records keeps them."
_KEPT = "{tasks} ran with {before}, and {here}. Their records are kept (--trust-records); snapshot.json lists them."


def _warning(steps: Iterable[Step], kind: str, text: str) -> RunWarning | None:
    listed = list(steps)
    entries, num_tasks = trusted_records(listed), sum(1 for _ in _trusted(listed))
    if not num_tasks:
        return None
    before = " and ".join(dict.fromkeys(f"{entry.library} {entry.made_with}" for entry in entries))
    here = " and ".join(dict.fromkeys(f"{entry.library} {entry.version}" for entry in entries))
    details = {"tasks": num_tasks, "versions": [entry.model_dump() for entry in entries]}
    shown = text.format(tasks=counted(num_tasks, "task"), before=before, here=f"this run has {here}")
    return RunWarning(kind=kind, text=shown, details=details)


def _trusted(steps: Iterable[Step]) -> Iterator[tuple[Task, dict[str, tuple[str, str]]]]:
    for step in steps:
        tasks = {task.fingerprint: task for task in step.tasks or ()} if step.records else {}
        for record in step.records:
            task = tasks.get(record.fingerprint)
            versions = differences(record.versions, task.versions) if task is not None else {}
            if task is not None and versions:
                yield task, versions
