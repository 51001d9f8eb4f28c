"""The committed steps of a snapshot: cleaning keeps their tasks, exports find their texts, and later runs add to them.

work/published/FINGERPRINT    [{"id", "kind", "source", "tasks": [fingerprint, …]}, …], as in work/run.json
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from datapipe.errors import UserError
from datapipe.quantities import counted
from datapipe.records.ledger import Ledger
from datapipe.records.names import PUBLISHED, published_tasks
from datapipe.shards.manifest import Snapshot
from datapipe.steps.kind import Plan, Step, Task
from datapipe.steps.kinds import kind_named
from datapipe.storage.root import Root


def write_steps(root: Root, fingerprint: str, plan: Plan) -> None:
    """Notes the steps that a snapshot is made of. A step without an id has tasks that found that a file cannot be cut, or
    values of wider types."""
    tasks = [*(name for whole in plan.read_whole.values() for name in whole.values())]
    tasks += [name for _, wider in plan.widened.values() for name in wider]
    content = [*map(step_entry, plan.with_earlier().steps), {"id": "", "kind": "map", "source": "", "tasks": tasks}]
    root.write_atomic(published_tasks(fingerprint), json.dumps(content).encode())


def step_entry(step: Step) -> dict[str, Any]:
    tasks = [task.fingerprint for task in step.tasks or ()]
    return {"id": step.id, "kind": step.kind, "source": step.source, "tasks": tasks}


def read_step(ledger: Ledger, entry: Mapping[str, Any]) -> Step:
    """The step of an entry, with the records that still exist."""
    about = {"step": entry["id"], "source": entry["source"], "seed": 0}
    return Step(
        id=entry["id"],
        work=kind_named(entry["kind"]),
        label="",
        source=entry["source"],
        tasks=tuple(Task(fingerprint=name, **about) for name in entry["tasks"]),
        records=tuple(record for record in map(ledger.look_up, entry["tasks"]) if record is not None),
    )


def tasks_of(root: Root, fingerprint: str) -> list[str]:
    """The tasks of a snapshot by their fingerprints, in the order of its steps. Raises
    FileNotFoundError for a copy of an output without work/."""
    return tasks_in(_entries(root, fingerprint))


def _entries(root: Root, fingerprint: str) -> list[dict[str, Any]]:
    return json.loads(root.read_bytes(published_tasks(fingerprint)))


def tasks_of_snapshots(root: Root, without: str = "") -> set[str]:
    """The tasks of all snapshots of an output but one."""
    names = (path.rpartition("/")[2] for path, _ in root.list_files(PUBLISHED, recursive=False))
    return {task for name in names if name != without for task in tasks_of(root, name)}


def tasks_in(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    return [name for entry in entries for name in entry["tasks"]]


def read_steps(ledger: Ledger, snapshot: Snapshot) -> list[Step]:
    """The committed steps of a snapshot. Raises UserError where work/ has lost some of them."""
    root, steps = ledger.root, list[Step]()
    with suppress(FileNotFoundError, ValueError):
        steps = [read_step(ledger, entry) for entry in _entries(root, snapshot.fingerprint) if entry["id"]]
    num_lost = sum(len(step.tasks or ()) - len(step.records) for step in steps)
    if not steps or num_lost:
        what = f"{counted(num_lost, 'task')} of " if num_lost else "the tasks of "
        raise UserError(
            f"{root.url}: work/ has lost {what}snapshot {snapshot.fingerprint[:12]}, to which new files would be added. Run "
            f"`datapipe run MIXTURE --rebuild`, which reads all files again, and follow again."
        )
    return steps
