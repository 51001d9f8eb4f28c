"""Generations of an output: files that were added to it later, by the same ledger and into the same manifest.

    first run                      generation 0 of every source
    new files ─▶ generation.json   the choice, before anything runs: a run that is stopped continues with it
              ─▶ tasks             of these files alone, in the ledger of the output
              ─▶ next snapshot     the shards of the newest one, and those of the tasks with the number of the generation

    work/generation.json           {"base": fingerprint, "files": {source: [path, …]}}
    work/published/FINGERPRINT     the committed steps of a snapshot, of all its generations; see `write_steps`

A generation is compared with the rows of all before, and has their tokenizer and thresholds. Nothing that was read, tokenized
or packed before is touched. Published documents are never removed: of a new one that duplicates an old one, the new is dropped.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from datapipe.errors import DatapipeError, UserError
from datapipe.quantities import counted
from datapipe.records.ledger import Ledger
from datapipe.records.names import GENERATION, RUN, published_tasks
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.shard_table import ShardTable
from datapipe.shards.snapshot_folder import has_snapshot, read_note, snapshot_folder
from datapipe.shards.snapshots import data_folders
from datapipe.steps.kind import Plan, Step, Task
from datapipe.steps.kinds import kind_named
from datapipe.steps.request import Generation
from datapipe.storage.root import Root

_OF_REMOVED = {"removed", "lists", "fingerprint"}

_OLD_FOLDER = "additions"
"""Earlier versions built each generation as an output in a folder below this one."""


def next_generation(snapshot: Snapshot) -> int:
    """The number of the generation that is added next. One that kept no document leaves no shard, and no number."""
    parts = ShardTable.of(snapshot.shards).parts
    return int(parts.max()) + 1 if len(parts) else 1


def begun_generation(root: Root, newest: Snapshot) -> Generation | None:
    """The generation that a run has begun to add to the newest snapshot, and not published."""

    def made(content: Any) -> Generation:
        files = {str(name): tuple(map(str, paths)) for name, paths in content["files"].items()}
        return Generation(number=next_generation(newest), base=str(content["base"]), files=files)

    remedy = "It lists the files that are added. Delete it, and follow again: the files are then chosen again."
    begun = read_note(root, GENERATION, made, remedy, DatapipeError)
    return begun if begun is not None and is_base(root, begun.base, newest.fingerprint) else None


def begin_generation(root: Root, newest: Snapshot, files: Mapping[str, tuple[str, ...]]) -> Generation:
    """Notes the files that are added to the newest snapshot."""
    content = {"base": newest.fingerprint, "files": {name: list(paths) for name, paths in sorted(files.items())}}
    root.write_atomic(GENERATION, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return Generation(number=next_generation(newest), base=newest.fingerprint, files=files)


def shard_folder(source: str, generation: int | None) -> str:
    """The name of the folder of a source's shards: "web", and "web+1" for those of generation 1."""
    return f"{source}+{generation}" if generation else source


def has_later_shards(root: Root) -> bool:
    """Whether an output has shards of a later generation, of any snapshot."""
    return any("+" in name for folder in data_folders(root) for name in root.within(folder).folders())


def is_base(root: Root, base: str, newest: str) -> bool:
    """Whether the snapshot that a generation was begun for is the newest one, or was until documents were taken down."""
    if base == newest or not has_snapshot(root, base):
        return base == newest
    before, after = read_snapshot(root, base), read_snapshot(root, newest)
    is_same = before.model_dump(exclude=_OF_REMOVED) == after.model_dump(exclude=_OF_REMOVED)
    return is_same and before.shards == after.shards


def write_steps(root: Root, fingerprint: str, plan: Plan) -> None:
    """Notes the steps that a snapshot is made of, each with the fingerprints of its committed tasks. A
    step without an id has tasks that found that a file cannot be cut, or values of wider types."""
    steps = [
        {"id": step.id, "kind": step.kind, "source": step.source, "tasks": [record.fingerprint for record in step.records]}
        for step in plan.of_all_generations().steps
    ]
    found = [*(name for whole in plan.read_whole.values() for name in whole.values())]
    found += [name for _, wider in plan.widened.values() for name in wider]
    content = [*steps, {"id": "", "kind": "map", "source": "", "tasks": found}]
    root.write_atomic(published_tasks(fingerprint), json.dumps(content).encode())


def tasks_of(root: Root, fingerprint: str) -> list[str]:
    """The tasks of a snapshot by their fingerprints, in the order of its steps. Raises
    FileNotFoundError for a copy of an output without work/."""
    content = root.read_bytes(published_tasks(fingerprint)).decode()
    if not content.startswith("["):  # earlier versions listed the tasks alone
        return content.split()
    return [name for step in json.loads(content) for name in step["tasks"]]


def read_steps(ledger: Ledger, snapshot: Snapshot) -> list[Step]:
    """The committed steps of a snapshot. Raises UserError where work/ has lost some of them."""
    root, listed = ledger.root, list[Mapping[str, Any]]()
    with suppress(FileNotFoundError, ValueError):
        content = root.read_bytes(published_tasks(snapshot.fingerprint)).decode()
        if content.startswith("["):
            listed = [step for step in json.loads(content) if step["id"]]
        else:  # of an earlier version; the steps are those of the run that published it
            steps, known = json.loads(root.read_bytes(RUN))["steps"], set(content.split())
            listed = steps if known.issuperset(name for step in steps for name in step["tasks"]) else []
    steps = [_committed(ledger, step) for step in listed]
    num_lost = sum(len(step.tasks or ()) - len(step.records) for step in steps)
    if not steps or num_lost:
        what = f"{counted(num_lost, 'task')} of " if num_lost else "the tasks of "
        raise UserError(
            f"{root.url}: work/ has lost {what}snapshot {snapshot.fingerprint[:12]}, to which new files would be added. Run "
            f"`datapipe run MIXTURE --rebuild`, which reads all files again, and follow again."
        )
    return steps


def _committed(ledger: Ledger, step: Mapping[str, Any]) -> Step:
    about = {"step": step["id"], "source": step["source"], "seed": 0}
    records = map(ledger.look_up, step["tasks"])
    return Step(
        id=step["id"],
        work=kind_named(step["kind"]),
        label="",
        source=step["source"],
        tasks=tuple(Task(fingerprint=name, **about) for name in step["tasks"]),
        records=tuple(record for record in records if record is not None),
    )


def check_same_steps(plan: Plan) -> None:
    """Raises UserError where documents of the generation would go through other steps than those
    before: counts would no longer add up."""
    for source in dict.fromkeys(step.source for step in plan.earlier if step.kind == "map"):
        before, now = (
            [step.id for step in steps if step.kind == "map" and step.source == source] for steps in (plan.earlier, plan.steps)
        )
        if now and before != now:
            raise UserError(
                f"source '{source}': its steps were {', '.join(before)}, and are {', '.join(now)} now. While a mixture is "
                f"followed, stages that compare documents, and those that keep a share, stay as they are. Set them back, or "
                f"run `datapipe run MIXTURE --rebuild`."
            )


def check_no_old_folders(root: Root, snapshot: Snapshot, where: str = "") -> None:
    """Raises UserError for an output to which an earlier version added files in folders."""
    if not any(entry.path.startswith(f"{_OLD_FOLDER}/") for entry in snapshot.shards) and not root.exists(
        f"{snapshot_folder(snapshot.fingerprint)}/{_OLD_FOLDER}.json"
    ):
        return
    raise UserError(
        f"{where}{root.url}: an earlier version of datapipe added files to this output, in {_OLD_FOLDER}/. Its rows can be "
        f"loaded and exported as before. For anything else first run `datapipe run MIXTURE --rebuild`, which reads all files "
        f"again."
    )
