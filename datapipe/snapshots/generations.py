"""Generations of an output: files that were added to it later, by the same ledger and into the same manifest.

    first run                      generation 0 of every source
    new files ─▶ generation.json   the choice, before anything runs: a run that is stopped continues with it
              ─▶ tasks             of these files alone, in the ledger of the output
              ─▶ next snapshot     the shards of the newest one, and those of the tasks, as the next part of each source

    work/generation.json           {"base": fingerprint, "files": {source: [path, …]}}

A generation is compared with the rows of all before, and has their tokenizer and thresholds. Nothing that was read, tokenized
or packed before is touched. Published documents are never removed: of a new one that duplicates an old one, the new is dropped.
"""

import json
from collections.abc import Mapping
from typing import Any

from datapipe.dataclass import asdict, dataclass
from datapipe.errors import DatapipeError, SnapshotError, UserError
from datapipe.quantities import counted
from datapipe.records.names import GENERATION, SNAPSHOT
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.snapshot_folder import has_snapshot, read_note
from datapipe.shards.snapshots import data_folders
from datapipe.steps.kind import Plan
from datapipe.storage.root import Root

_OF_REMOVED = {"removed", "lists", "fingerprint"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """New files of the sources, which a run adds to the newest snapshot of its output."""

    base: str  # fingerprint of the snapshot that it is added to
    files: Mapping[str, tuple[str, ...]]  # by source, paths as the source lists them


def begun_generation(root: Root, newest: Snapshot) -> Generation | None:
    """The generation that a run has begun to add to the newest snapshot, and not published."""

    def made(content: Any) -> Generation:
        files = {str(name): tuple(map(str, paths)) for name, paths in content["files"].items()}
        return Generation(base=str(content["base"]), files=files)

    remedy = "It lists the files that are added. Delete it, and follow again: the files are then chosen again."
    begun = read_note(root, GENERATION, made, remedy, DatapipeError)
    if begun is None or begun.base == newest.fingerprint:
        return begun
    if not has_snapshot(root, begun.base):
        return None
    before = read_snapshot(root, begun.base)
    is_same = before.model_dump(exclude=_OF_REMOVED) == newest.model_dump(exclude=_OF_REMOVED)
    return begun if is_same and before.shards == newest.shards else None  # documents were taken down since


def begin_generation(root: Root, newest: Snapshot, files: Mapping[str, tuple[str, ...]]) -> Generation:
    """Notes the files that are added to the newest snapshot."""
    begun = Generation(base=newest.fingerprint, files=dict(sorted(files.items())))
    root.write_atomic(GENERATION, (json.dumps(asdict(begun), indent=1, ensure_ascii=False) + "\n").encode())
    return begun


def check_readable(root: Root) -> None:
    """Raises SnapshotError where files were added to the output and its newest manifest is damaged: a
    run of all files would take their place."""
    try:
        if root.exists(SNAPSHOT):
            read_snapshot(root)
    except SnapshotError:
        if any("+" in name for folder in data_folders(root) for name in root.within(folder).folders()):
            raise


def check_not_grown(root: Root, newest: Snapshot) -> None:
    """Raises UserError for an output to which files were added, and which a run of all files would pack again."""
    if not newest.last_part:
        return
    raise UserError(
        f"{root.url} holds a snapshot to which files were added in {counted(newest.last_part, 'generation')}, and this run "
        f"would pack all rows again, in another order. To add new files, run `datapipe run MIXTURE --follow SECONDS`, with "
        f"--once to exit then; to rebuild and reshuffle all rows, `datapipe run MIXTURE --rebuild`."
    )


def check_same_steps(plan: Plan) -> None:
    """Raises UserError where added documents would go through other steps than those before: counts would no longer add up."""
    for source in dict.fromkeys(step.source for step in plan.earlier if step.kind == "map"):
        before = [step.id for step in plan.earlier if step.kind == "map" and step.source == source]
        now = [step.id for step in plan.of_kind("map", source)]
        if now and before != now:
            raise UserError(
                f"source '{source}': its steps were {', '.join(before)}, and are {', '.join(now)} now. While a mixture is "
                f"followed, stages that compare documents, and those that keep a share, stay as they are. Set them back, or "
                f"run `datapipe run MIXTURE --rebuild`."
            )
